"""Folders in cloud stores: copies of them on this machine, and how they are written.

A cloud store has no folders that could be renamed, so a folder is written file by file, with its manifest (the file
that names the others, with their hashes) last. A folder without a manifest is incomplete. A folder is read through a
copy in the user's cache, which belongs to the content of one manifest, and was checked before it is used.
"""

import contextlib
import hashlib
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from apood.support.background import map_concurrently
from apood.support.cloud import CloudAddress, Place
from apood.support.errors import ApoodError, CloudError
from apood.support.files import atomic_folder, find_user_cache, lock_folder, temporary_folder
from apood.support.progress import progress_bar

__all__ = [
    "download_folder",
    "fetch_folder",
    "find_work_folder",
    "keep_copy",
    "publish_folder",
    "upload_folder",
    "write_folder",
]

_ATTEMPTS = 3  # to read a folder that others replace meanwhile


def fetch_folder(
    address: CloudAddress, manifest: str, list_files: Callable[[Path], Iterable[str]], check: Callable[[Path], object]
) -> Path:
    """Return a folder on this machine with the files of a folder in a cloud store.

    Files of the same manifest are fetched once. An interrupted fetch goes on where it stopped.

    Args:
        address: the folder.
        manifest: the name of the file in it that is written last.
        list_files: yields the names of the other files; it is called with a folder that holds the manifest, and each
            file is in it before the next name is asked for.
        check: raises an ApoodError if the files in a folder do not belong together. It is given the copy, which is used
            only if it passes.

    Raises:
        CloudError: if there is no such folder, if it is incomplete, or if it cannot be read.
    """
    for attempt in range(_ATTEMPTS):
        content = _read_manifest(address, manifest)
        place = _cache_folder(address)
        copy = place / _name_copy(content)
        if copy.exists():
            return copy
        place.mkdir(parents=True, exist_ok=True)
        with lock_folder(place):
            if copy.exists():  # another process has fetched it meanwhile
                return copy
            part = copy.with_name(f"{copy.name}.part")
            began_before = part.exists()  # by a process that was interrupted
            try:
                _fetch(address, manifest, content, list_files, check, part)
                part.rename(copy)
                return copy
            except ApoodError:
                # Another process may have replaced the folder between two reads. A new try then helps.
                is_settled = not began_before and _read_manifest(address, manifest) == content
                if is_settled or attempt == _ATTEMPTS - 1:
                    raise
    raise AssertionError("unreachable")


def _fetch(
    address: CloudAddress,
    manifest: str,
    content: bytes,
    list_files: Callable[[Path], Iterable[str]],
    check: Callable[[Path], object],
    part: Path,
) -> None:
    """Fetch those files of a manifest into the folder `part` that are not there yet, and check all of them."""
    part.mkdir(exist_ok=True)
    (part / manifest).write_bytes(content)
    try:
        for name in list_files(part):
            if not (part / name).exists():
                try:
                    (address / name).download(part / name)
                except FileNotFoundError as error:
                    raise CloudError(f"{address} is incomplete: {name} is missing.") from error
        check(part)
    except CloudError:
        raise
    except ApoodError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise type(error)(str(error).replace(str(part), str(address))) from error


def _read_manifest(address: CloudAddress, manifest: str) -> bytes:
    try:
        return (address / manifest).read_bytes()
    except FileNotFoundError as error:
        if address.exists():
            raise CloudError(
                f"{address} is incomplete: it has no {manifest}, which is written last; it may be written just now, or "
                "its writing was interrupted."
            ) from error
        raise CloudError(f"There is nothing at {address}.") from error


def upload_folder(folder: Path, address: CloudAddress, manifest: str) -> None:
    """Write the files of a folder to a cloud store, its manifests last and the outermost one at the very end.

    Files with hidden names are left out. Nothing is deleted. Until the end, readers find either no manifest, or an
    older one that does not fit, and refuse the folder.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    files.sort(key=lambda path: (path.name == manifest, -len(path.parts), path))
    with progress_bar(sum(path.stat().st_size for path in files), "upload", "B") as progress:
        for path in files:
            (address / path.relative_to(folder).as_posix()).upload(path)
            progress.update(path.stat().st_size)


def download_folder(address: CloudAddress, folder: Path) -> None:
    """Copy the objects of a folder in a cloud store, which has no folders in it, to a folder on this machine."""
    names = address.list_names()
    deque(map_concurrently(lambda name: (address / name).download(folder / name), names), maxlen=0)


@contextlib.contextmanager
def write_folder(place: Place, manifest: str) -> Iterator[Path]:
    """Yield a new folder on this machine whose files replace those at `place` if the block ends without an error.

    Unlike `publish_folder`, it leaves no copy on this machine, where nobody reads it.
    """
    if isinstance(place, Path):
        with atomic_folder(place) as temporary:
            yield temporary
        return
    with _make_new_folder(place) as folder:
        yield folder
        upload_folder(folder, place, manifest)


@contextlib.contextmanager
def publish_folder(place: Place, manifest: str, check: Callable[[Place], None]) -> Iterator[Path]:
    """Yield a new folder on this machine whose files are at `place` if the block ends without an error.

    On this machine the folder is then replaced in one step (see `atomic_folder`), in a cloud store file by file (see
    `upload_folder`). `check` is called with `place` before, and raises an error if it must not be replaced.
    """
    if isinstance(place, Path):
        with atomic_folder(place, check) as temporary:
            yield temporary
        return
    check(place)
    with _make_new_folder(place) as folder:
        yield folder
        upload_folder(folder, place, manifest)
        keep_copy(folder, place, manifest)


@contextlib.contextmanager
def _make_new_folder(address: CloudAddress) -> Iterator[Path]:
    """Yield a folder in the cache for the files of an address; it is deleted after the block."""
    with temporary_folder(find_user_cache("cloud") / "@new") as temporary:
        folder = temporary / (address.name or address.bucket)
        folder.mkdir()
        yield folder


def keep_copy(folder: Path, address: CloudAddress, manifest: str) -> None:
    """Move a folder of the cache that was uploaded to where `fetch_folder` looks for its copy.

    Its manifest is in it, or one is in each of its folders.
    """
    for found in [folder] if (folder / manifest).exists() else [path.parent for path in folder.glob(f"*/{manifest}")]:
        own = address if found == folder else address / found.name
        copy = _cache_folder(own) / _name_copy((found / manifest).read_bytes())
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # there is such a copy
            found.rename(copy)
    shutil.rmtree(folder, ignore_errors=True)


def find_work_folder(place: Place) -> Path:
    """Return where this machine keeps a folder that is not finished: the place itself, unless it is in the cloud."""
    return place if isinstance(place, Path) else _cache_folder(place) / "@work" / place.name


def _name_copy(manifest: bytes) -> str:
    return f"@{hashlib.sha256(manifest).hexdigest()[:16]}"


def _cache_folder(address: CloudAddress) -> Path:
    return find_user_cache("cloud") / address.scheme / address.bucket / address.key
