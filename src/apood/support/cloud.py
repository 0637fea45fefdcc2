"""Cloud addresses: what `s3://bucket/key`, `gs://bucket/key` and `file:///path` stand for, through pyarrow.

An address names a place and nothing else. Credentials, regions and endpoints come from the environment, as for other
programs: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_REGION and AWS_ENDPOINT_URL for s3://,
GOOGLE_APPLICATION_CREDENTIALS and STORAGE_EMULATOR_HOST for gs://. `file://` is a path of this machine.
"""

import contextlib
import io
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Self
from urllib.parse import unquote

from apood.support.checks import import_optional, shorten
from apood.support.errors import CloudError, InputError
from apood.support.files import atomic_file, open_regular

__all__ = [
    "CloudAddress",
    "ObjectState",
    "Place",
    "list_names",
    "name_locally",
    "open_stream",
    "parse_place",
    "refuse_file",
    "write_file",
]

_ALLOWED = "s3://BUCKET/KEY, gs://BUCKET/KEY or file:///PATH"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CUT_SCHEME = re.compile(r"(s3|gs|file):/[^/]")  # what a Path makes of an address
_QUERY = re.compile(r"\?[\w-]+=")  # a lone question mark is a sign of patterns
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ANSWER_SECONDS = 20.0  # until a store that has not answered once is given up
_CONNECT_SECONDS, _REQUEST_SECONDS, _ATTEMPTS = 4.0, 8.0, 2
_BUFFER_BYTES = 8 << 20  # of a stream: each filling is a request
_DENIED = "access was denied"
_REASONS = (
    (r"NO_SUCH_BUCKET|NoSuchBucket", "there is no such bucket"),
    (
        r"ACCESS_DENIED|INVALID_ACCESS_KEY|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|InvalidClientTokenId|"
        r"PERMISSION_DENIED|UNAUTHENTICATED|HTTP status (?:code: )?40[13]|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT",
        f"{_DENIED}: allowed is what the credentials of the environment may do",
    ),
    (r"access token|credentials", "there are no credentials in the environment"),
    (r"HTTP status 301|PermanentRedirect", "the bucket is in another region: set AWS_REGION to it"),
    (r"NETWORK_CONNECTION|CURL error|curlCode|UNAVAILABLE|DEADLINE_EXCEEDED", "the store does not answer"),
)
"""What is said about the errors of the libraries below pyarrow."""


class ObjectState(NamedTuple):
    """What a store says about an object: its size in bytes, and when it was written, in nanoseconds since 1970."""

    size: int
    written: int

    @classmethod
    def of(cls, found: Any) -> Self:
        """Return what pyarrow has found."""
        return cls(int(found.size), int(found.mtime_ns or 0))


@dataclass(frozen=True)
class CloudAddress:
    """The address of an object, or of a folder of objects, in a cloud store.

    Its methods have the names of those of `Path`. Every error is a `CloudError`, a sentence that names the address.

    Attributes:
        scheme: s3 or gs.
        bucket: the name of the bucket.
        key: the rest, without a slash at its ends; empty for the bucket itself.
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self._path}"

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def _path(self) -> str:
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    def exists(self) -> bool:
        """Return whether an object, or a folder of objects, is at this address."""
        return bool(self._ask().type != self._fs.FileType.NotFound)

    def is_file(self) -> bool:
        """Return whether an object is at this address."""
        return bool(self._ask().is_file)

    def is_dir(self) -> bool:
        """Return whether there are objects below this address."""
        return bool(self._ask().type == self._fs.FileType.Directory)

    def _ask(self) -> Any:
        with self.explain_errors("read"):
            return self._connect().get_file_info(self._path)

    def list_names(self) -> list[str]:
        """Return the names of the objects and folders in this folder; none if there is no such folder."""
        return sorted(PurePosixPath(found.path).name for found in self._list(recursive=False))

    def find(self) -> "list[CloudAddress]":
        """Return the object at this address or, if there is none, those that match it as a pattern, sorted.

        In a pattern, `*` and `?` stand for characters of a name, and `**` for any folders. Hidden objects are left out.
        """
        return list(self.describe_objects())

    def describe_objects(self) -> "dict[CloudAddress, ObjectState]":
        """Return the state of each object that `find` returns; it takes no more requests than that."""
        alone = self._ask()
        if alone.is_file:
            return {self: ObjectState.of(alone)}
        patterns = self.key.split("/")
        plain = next((place for place, part in enumerate(patterns) if re.search(r"[*?[]", part)), None)
        if plain is None:
            return {}
        folder = type(self)(self.scheme, self.bucket, "/".join(patterns[:plain]))
        recursive = plain < len(patterns) - 1
        states = {
            found.path.removeprefix(f"{self.bucket}/"): ObjectState.of(found)
            for found in folder._list(recursive=recursive)
            if found.is_file
        }
        return {
            type(self)(self.scheme, self.bucket, key): states[key]
            for key in sorted(states)
            if _matches(key.split("/"), patterns)
        }

    def _list(self, *, recursive: bool) -> list[Any]:
        selector = self._fs.FileSelector(self._path, allow_not_found=True, recursive=recursive)
        with self.explain_errors("listed"):
            return list(self._connect().get_file_info(selector))

    def read_bytes(self) -> bytes:
        """Return the content of an object; raise FileNotFoundError if there is none."""
        with self.open() as file:
            return file.read()

    def open(self) -> BinaryIO:
        """Return an object as a stream; raise FileNotFoundError if there is none."""
        with self.explain_errors("read"):
            # Without `compression=None`, pyarrow would unpack what ends in .gz, and pack it below.
            stream = self._connect().open_input_stream(self._path, compression=None)
            return io.BufferedReader(_Stream(self, stream), _BUFFER_BYTES)

    def open_anywhere(self) -> Any:
        """Return an object as a file of pyarrow that is read at any place; raise FileNotFoundError if there is none.

        Reading it raises errors of pyarrow: do it in the block of `explain_errors("read")`.
        """
        with self.explain_errors("read"):
            return self._connect().open_input_file(self._path)

    def download(self, file: Path) -> None:
        """Write the content of an object to a file, which is complete or absent."""
        with atomic_file(file) as temporary, self.open() as source, temporary.open("wb") as target:
            shutil.copyfileobj(source, target, _BUFFER_BYTES)

    def upload(self, file: Path) -> None:
        """Replace the object at this address by the content of a file, in one step: readers find either one."""
        import pyarrow

        with self.explain_errors("written"):
            content = pyarrow.memory_map(str(file)).read_buffer() if file.stat().st_size else b""
            # Everything is handed over in one call: a stream that is closed after a part of it would be an object.
            with self._connect().open_output_stream(self._path, compression=None) as target:
                target.write(content)

    @property
    def _fs(self) -> Any:
        import_optional("pyarrow", "cloud", str(self))
        import pyarrow.fs

        return pyarrow.fs

    def _connect(self) -> Any:
        return _connect(type(self)(self.scheme, self.bucket, ""))

    @contextlib.contextmanager
    def explain_errors(self, done: str) -> Iterator[None]:
        """Turn errors of pyarrow into sentences; that an object to be read is missing stays a FileNotFoundError."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and done == "read":
                raise
            raise CloudError(f"{self} cannot be {done}: {_find_reason(error)}.") from error


Place = Path | CloudAddress
"""Where files are: on this machine or in a cloud store."""


class _Stream(io.RawIOBase):
    """The stream of an object, whose errors are sentences."""

    def __init__(self, address: CloudAddress, file: Any) -> None:
        self._address, self._file = address, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._address.explain_errors("read"):
            return int(self._file.readinto(buffer))

    def close(self) -> None:
        self._file.close()
        super().close()


def parse_place(given: str | Path) -> Place:
    """Return what a name stands for: a path, also from `file://`, or an address in a cloud store.

    Raises:
        InputError: if it is an address of an unknown kind, without a bucket, or with credentials or settings in it.
    """
    text = str(given)
    if isinstance(given, Path) or not (scheme := _SCHEME.match(text)):
        if _CUT_SCHEME.match(text):
            raise InputError(f"{text!r} has one slash too few: give an address as a text, such as {_ALLOWED}.")
        return Path(given)
    kind, rest = scheme[1].lower(), text[scheme.end() :]
    if kind != "file" and re.search("[:@]", rest.partition("/")[0]):  # the message must not quote a password
        raise InputError(
            f"An address {kind}://… has a user, a password or a port before its first slash: give these in the "
            "environment, where they are not stored."
        )
    if kind == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not path:
            raise InputError(f"{text!r} is not a path of this machine: write it as file:///PATH.")
        return Path(unquote(slash + path))
    if kind not in ("s3", "gs"):
        shown = text.partition("?")[0]  # what follows may be a signature
        raise InputError(f"{shown!r} is an address of an unknown kind: allowed are {_ALLOWED}.")
    if _QUERY.search(rest):
        raise InputError(
            f"The address {text.partition('?')[0]!r} has settings after its question mark: give them in the "
            "environment, such as AWS_ENDPOINT_URL and AWS_REGION."
        )
    bucket, _, key = rest.partition("/")
    key = key.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise InputError(f"{text!r} does not name a bucket: an address is {kind}://BUCKET/KEY.")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        raise InputError(f"{text!r} has an empty part, or a part '.' or '..', which no address has.")
    return CloudAddress(kind, bucket, key)


def name_locally(given: str) -> str:
    """Return a name with `file://` as the path it stands for, and any other name as it is."""
    return str(parse_place(given)) if given.lower().startswith("file:") else given


def list_names(place: Place) -> list[str]:
    """Return the names of what is in a folder; none if there is no such folder."""
    if isinstance(place, CloudAddress):
        return place.list_names()
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def refuse_file(place: Place) -> None:
    """Raise InputError if a file is in the place of a folder to write."""
    if place.is_file():
        raise InputError(f"{place} is a file: choose the name of a new folder.")


def open_stream(place: Place) -> BinaryIO:
    """Open a regular file or an object for reading from its beginning to its end."""
    return open_regular(place) if isinstance(place, Path) else place.open()


@contextlib.contextmanager
def write_file(place: Place, *, keep: bool = False) -> Iterator[Path]:
    """Yield a temporary path whose file is at `place`, in one step, if the block ends without an error.

    With `keep`, a file that cannot be written to a cloud store is kept on this machine, and the error says where.
    """
    if isinstance(place, Path):
        with atomic_file(place) as temporary:
            yield temporary
        return
    with contextlib.ExitStack() as tidying:
        folder = Path(tempfile.mkdtemp(prefix="apood-"))
        tidying.callback(shutil.rmtree, folder, ignore_errors=True)
        file = folder / place.name
        yield file
        try:
            place.upload(file)
        except CloudError as error:
            if not keep:
                raise
            tidying.pop_all()
            raise CloudError(f"{str(error).rstrip('.')}; the file is kept as {file}.") from error


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    first, rest = patterns[0], patterns[1:]
    if first == "**" and rest:
        return _matches(parts, rest) or (bool(parts) and not parts[0].startswith(".") and _matches(parts[1:], patterns))
    if not parts or (parts[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatchcase(parts[0], first) and _matches(parts[1:], rest)


def _find_reason(error: OSError) -> str:
    text = " ".join(str(error).split())
    found = next((reason for signs, reason in _REASONS if re.search(signs, text)), "the store refuses it")
    return f"{found} ({shorten(text, str)})"


@cache
def _connect(bucket: CloudAddress) -> Any:
    """Return the file system of a bucket, after a first answer; raise CloudError if there is none, or no such bucket.

    The libraries have time limits of their own, but not for every step, so the first answer is awaited in a thread.
    """
    fs = bucket._fs
    answers: list[Any] = []

    def ask() -> None:
        try:
            system = (_open_s3 if bucket.scheme == "s3" else _open_gcs)(fs, bucket.bucket)
            answers.append(system)
            answers.append(system.get_file_info(bucket.bucket).type != fs.FileType.NotFound)
        except Exception as error:
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True, name=f"connect to {bucket}")
    asking.start()
    asking.join(_ANSWER_SECONDS)
    match answers:
        case [system, True]:
            return system
        case [_, False]:
            raise CloudError(f"There is no bucket {bucket}.")
        case [system, OSError() as error] if _DENIED in _find_reason(error):
            return system  # whoever may read some objects only may not ask about the bucket
        case [*_, Exception() as error]:
            reason = _find_reason(error) if isinstance(error, OSError) else shorten(error, str)
            raise CloudError(f"{bucket} cannot be opened: {reason}.") from error
    raise CloudError(f"{bucket} cannot be opened: the store did not answer within {_ANSWER_SECONDS:g} seconds.")


def _open_s3(fs: Any, bucket: str) -> Any:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        region = "us-east-1" if endpoint else fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def _open_gcs(fs: Any, bucket: str) -> Any:
    del bucket  # a file system of Google holds all of them
    limit = timedelta(seconds=_REQUEST_SECONDS)
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        scheme, _, host = emulator.rpartition("://")
        return fs.GcsFileSystem(anonymous=True, endpoint_override=host, scheme=scheme or "http", retry_time_limit=limit)
    return fs.GcsFileSystem(retry_time_limit=limit)
