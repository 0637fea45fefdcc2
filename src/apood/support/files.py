"""Files and folders that are either complete or absent, locks on folders, and digests of files.

Everything is written under a temporary name and renamed at the end. Windows is untested.
"""

import contextlib
import ctypes
import errno
import glob
import hashlib
import json
import math
import os
import platform
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from apood.support.errors import InputError

__all__ = [
    "LOCK_FILE",
    "MOST_TEXT_BYTES",
    "atomic_file",
    "atomic_folder",
    "find_user_cache",
    "is_being_replaced",
    "is_temporary",
    "lock_folder",
    "open_regular",
    "parse_json",
    "read_json",
    "read_text",
    "read_toml",
    "refuse_irregular",
    "refuse_unwritable",
    "replace_half_pairs",
    "replace_nonfinite",
    "reserve_path",
    "sha256_of",
    "source_digest",
    "temporary_folder",
    "write_json",
]

LOCK_FILE = ".lock"
"""The file in a folder that `lock_folder` holds; it exists only while the folder is locked, or after a kill."""

MOST_TEXT_BYTES = 256 << 20
"""The largest size of a JSON or TOML file, in bytes."""

_TEMPORARY = ".partial-"
_RESERVED = ".reserved"  # the end of the name of the lock file beside a path that a command will write
_ORIGIN = re.compile(r"(?:([0-9a-f]{8})-(\d+)-)?[0-9a-f]{8}")  # of a temporary file: computer, process, random digits
_OLD_SECONDS = 24 * 3600.0  # no write takes this long
_PREVIOUS = ".previous"  # the end of the name of a folder that was moved aside
_PACKAGE = Path(__file__).parent.parent
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")  # what a path makes of an address such as s3://bucket/key
_FIT_PACKAGES = ("tokens", "pooling", "fitting", "detectors")  # the code that decides what a fit learns


def _temporary(path: Path) -> Path:
    return path.parent / f"{path.name}{_TEMPORARY}{_this_computer()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@cache
def _this_computer() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def is_temporary(path: Path) -> bool:
    """Return whether `path` has the name of a file that is being written, or that a killed process left."""
    _, mark, origin = path.name.rpartition(_TEMPORARY)
    return bool(mark) and _ORIGIN.fullmatch(origin) is not None


def _sweep(path: Path) -> None:
    """Delete the temporary files of `path` that killed processes left, as far as possible.

    Those of a running process are kept, and those of another computer until they are a day old.
    """
    for found in path.parent.glob(f"{glob.escape(path.name)}{_TEMPORARY}*"):
        origin = _ORIGIN.fullmatch(found.name.removeprefix(f"{path.name}{_TEMPORARY}"))
        if origin is None:  # somebody else's
            continue
        with contextlib.suppress(OSError):
            is_old = time.time() - found.stat().st_mtime > _OLD_SECONDS
            if is_old or (origin[1] == _this_computer() and not _is_running(int(origin[2]))):
                found.unlink()


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, which is named after it and deleted after the block.

    Before, those that killed processes of this computer left are deleted. Nobody knows of those of other computers
    whether they are still in use, which may take days.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for found in path.parent.glob(f"{glob.escape(path.name)}{_TEMPORARY}{_this_computer()}-*"):
        origin = _ORIGIN.fullmatch(found.name.removeprefix(f"{path.name}{_TEMPORARY}"))
        if origin is not None and not _is_running(int(origin[2])):
            _delete(found)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        _delete(temporary)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # there, this signal would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, and belongs to another user
        pass
    return True


@contextlib.contextmanager
def atomic_file(path: Path, *, sweep: bool = True) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` in one step if the block ends without an error.

    Missing parent folders are created. An OSError without a file name gets that of `path`. With `sweep`, temporary
    files of `path` that killed processes left are deleted, for which the whole folder is listed.
    """
    temporary = _temporary(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if sweep:
        _sweep(path)
    try:
        yield temporary
        _flush_file(temporary)
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # a full disk, for example, does not say which file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield a temporary folder that replaces the folder `path` if the block ends without an error.

    One process at a time replaces `path`; others wait. `check` is called with `path` before anything is written, and
    raises an error if the folder must not be replaced. On Linux the two folders are exchanged in one step, so that a
    reader finds either the old or the new one. Elsewhere the old folder is moved aside first, and the next writer
    restores it if the process is killed before the new one is in place. Only writers delete or restore anything.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 (unlike resolve, it keeps links)
    if not path.name:
        raise InputError(f"The folder {path} cannot be replaced: it has no name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _hold(path.with_name(f"{path.name}{LOCK_FILE}")) as alone:
        if alone:
            _tidy(path)
        if check is not None:
            check(path)
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            for inner in temporary.rglob("*"):
                (_flush_folder if inner.is_dir() else _flush_file)(inner)
            _flush_folder(temporary)
            _replace_folder(path, temporary)
            _flush_folder(path.parent)
        finally:
            _delete(temporary)
            if alone:
                _tidy(path)


def _replace_folder(path: Path, new: Path) -> None:
    """Move `new` to `path`. The old folder, if there is one, is then at the place of `new`, or beside it."""
    if not path.exists():
        new.rename(path)
    elif not _exchange(path, new):
        path.rename(new.with_name(f"{new.name}{_PREVIOUS}"))
        new.rename(path)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step, and return whether the system can do this."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    done: int = libc.renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange)
    return done == 0


def _tidy(path: Path) -> None:
    """Delete temporary folders of `path` that killed writers left, and restore a folder that one moved aside."""
    for found in path.parent.glob(f"{glob.escape(path.name)}{_TEMPORARY}*"):
        if not is_temporary(found.with_name(found.name.removesuffix(_PREVIOUS))):  # somebody else's
            continue
        if found.name.endswith(_PREVIOUS) and not path.exists():
            found.rename(path)
        else:
            _delete(found)


def is_being_replaced(path: Path) -> bool:
    """Return whether a writer has moved the folder `path` aside, to put a new one there."""
    return not path.exists() and any(path.parent.glob(f"{glob.escape(path.name)}{_TEMPORARY}*{_PREVIOUS}"))


def _flush_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    if os.name == "nt":  # Windows does not open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    """Delete a file, a folder or a link (not what it points to), if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold `folder` during the block, so that no other process or thread can hold it.

    If it is held already, wait until it is free, or raise TimeoutError at once if `wait` is false.
    """
    with _hold(folder / LOCK_FILE, wait=wait):
        yield


@contextlib.contextmanager
def _hold(lock_file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock during the block, and yield whether it is held: a disk without locks has none to hold."""
    from filelock import FileLock  # not above: `apood --help` has no need of it

    lock = FileLock(lock_file, thread_local=False)
    try:
        lock.acquire(blocking=wait)
    except TimeoutError:  # somebody else holds it
        raise
    except (OSError, NotImplementedError):
        pass  # a disk without locks, or a folder that is read-only
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            # It is deleted while it is held: whoever locks the deleted file notices and opens a new one.
            with contextlib.suppress(OSError):
                lock_file.unlink()
            lock.release()


def find_user_cache(kind: str) -> Path:
    """Return the folder in which apood keeps files of this kind for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apood" / kind


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def source_digest(*, everything: bool = False) -> str:
    """Return a sha256 of the source files that decide what a fit learns, or of all of them.

    Cached results depend on it, because the version does not change with every commit.
    """
    digest = hashlib.sha256()
    folders = [_PACKAGE] if everything else [_PACKAGE / name for name in _FIT_PACKAGES]
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON in one step; raise ValueError for NaN and infinity."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def replace_nonfinite(content: Any) -> Any:
    """Return JSON values with null in the place of NaN and infinities, because JSON has neither."""
    if isinstance(content, Mapping):
        return {key: replace_nonfinite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [replace_nonfinite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def replace_half_pairs(content: Any) -> Any:
    r"""Return JSON values; half a surrogate pair in their texts, which no UTF-8 holds, is written like \ud800."""
    if isinstance(content, str):
        return content.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(content, Mapping):
        return {replace_half_pairs(key): replace_half_pairs(value) for key, value in content.items()}
    return [replace_half_pairs(value) for value in content] if isinstance(content, list) else content


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ValueError if it is above `MOST_TEXT_BYTES` or no JSON."""
    return parse_json(read_text(path))


def parse_json(content: bytes | str) -> Any:
    """Return the content of JSON text; raise ValueError for anything that Python cannot read, deep nesting too."""
    try:
        return json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise ValueError for anything that Python cannot read, deep nesting too."""
    import tomllib

    text = read_text(path)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_text(path: Path) -> str:
    """Return the content of a text file; raise ValueError if it is above `MOST_TEXT_BYTES` or not UTF-8."""
    with open_regular(path) as file:
        content = file.read(MOST_TEXT_BYTES + 1)
    if len(content) > MOST_TEXT_BYTES:
        raise ValueError(f"it is larger than {MOST_TEXT_BYTES >> 20} MiB, the limit for such a file")
    return content.decode("utf-8")


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; raise OSError for a pipe, a socket or a device, which may block or never end."""
    refuse_irregular(path)
    return path.open("rb")


def refuse_irregular(path: Path) -> None:
    """Raise OSError if `path` is a pipe, a socket or a device, which may block or never end, or if it is missing."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and only regular files are read", str(path))


def refuse_unwritable(path: Path) -> None:
    """Raise InputError if nothing can be written to `path`. No folder is created."""
    if _ADDRESS.match(str(path)):
        raise InputError(f"Nothing can be written to {path}: it is an address, and a path of this machine is needed.")
    folder = path.parent
    try:
        while not folder.exists() and not folder.is_symlink() and folder != folder.parent:
            folder = folder.parent
        is_folder = folder.is_dir()  # not a link to nothing
    except OSError as error:  # such as a name that is too long
        raise InputError(f"Nothing can be written to {path}: {error.strerror or error}.") from error
    if not is_folder:
        raise InputError(f"Nothing can be written to {path}: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"Nothing can be written to {path}: the folder {folder} is read-only.")


@contextlib.contextmanager
def reserve_path(path: Path) -> Iterator[None]:
    """Keep other processes from reserving `path` during the block. Raise InputError if one has reserved it.

    Missing parent folders are created, and removed after the block if they are still empty.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing:
        refuse_unwritable(path)
    with contextlib.ExitStack() as held:
        held.callback(_delete_if_empty, missing)
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.resolve()
        try:
            held.enter_context(_hold(place.parent / f"{place.name}{_RESERVED}", wait=False))
        except TimeoutError as error:
            raise InputError(
                f"Another process is writing to {path}: choose another place, or wait until it has ended."
            ) from error
        yield


def _delete_if_empty(folders: Iterable[Path]) -> None:
    """Delete those of the folders that are empty; an inner folder comes before the outer ones."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
