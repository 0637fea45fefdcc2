"""Files that are either whole or absent: temporary name first, then rename."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from apood.support.errors import InputError

__all__ = [
    "atomic_file",
    "atomic_folder",
    "is_temporary",
    "lock_folder",
    "read_json",
    "recover_folder",
    "refuse_unwritable",
    "sha256_of",
    "source_digest",
    "write_json",
]

_TEMPORARY = ".partial-"
_PREVIOUS = ".being-replaced"  # nobody else's name: what bears it is deleted once the new folder is in place


def _temporary(path: Path) -> Path:
    return path.parent / f"{path.name}{_TEMPORARY}{uuid.uuid4().hex[:8]}"


def is_temporary(path: Path) -> bool:
    """Whether `path` is a leftover of an interrupted write and may be deleted."""
    return _TEMPORARY in path.name


def _flush_folder(folder: Path) -> None:
    """Makes a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path; when the block ends well, it replaces `path` in one step."""
    temporary = _temporary(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder; when the block ends well, it replaces the folder `path`.

    A folder cannot be renamed onto a non-empty one, so an old `path` is moved aside first, to a name
    that `recover_folder` knows: a process killed between the two renames costs neither. What killed processes
    left of their temporary folders is deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(path)
    _sweep(path)
    temporary, lock = _locked_folder(path)
    try:
        yield temporary
        _flush_tree(temporary)
        if path.exists():
            path.rename(_previous(path))
        temporary.rename(path)
        _flush_folder(path.parent)
    finally:
        os.close(lock)
        _delete(temporary)
        recover_folder(path)  # after an interrupt between the renames it brings the old folder back


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new temporary folder, and the lock that tells it from one whose process was killed."""
    while True:
        temporary = _temporary(path)
        temporary.mkdir()
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            lock = _lock(temporary)
            if temporary.exists():
                return temporary, lock
            os.close(lock)


def _sweep(path: Path) -> None:
    """Deletes the temporary folders of `path` that no living process holds."""
    for left in path.parent.glob(f"{glob.escape(path.name)}{_TEMPORARY}*/"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _delete(left)
            finally:
                os.close(lock)


def recover_folder(path: Path) -> None:
    """Ends an interrupted replacement of `path`: the new folder stays if it is there, else the old one returns."""
    previous = _previous(path)
    if not previous.exists():
        return
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        if path.exists():
            # renamed before it is deleted, so that half a folder never returns
            _delete(previous.rename(_temporary(path)))
        else:
            previous.rename(path)


def _previous(path: Path) -> Path:
    return path.parent / f"{path.name}{_PREVIOUS}"


def _flush_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            _flush_folder(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    _flush_folder(folder)


def _delete(path: Path) -> None:
    """Whatever it is; a link is not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One at a time: whoever else asks for this folder, in any process, waits until the block has ended."""
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    """A descriptor that has the folder for itself until it is closed."""
    lock = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a disk without locks: nobody waits, and nothing is swept there
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: Any) -> None:
    """Writes readable JSON in one step; NaN and infinity are refused rather than written as non-JSON."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def refuse_unwritable(path: Path) -> None:
    """Makes the folder that `path` will lie in, and refuses a place where nothing can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Nothing can be written to {path}: its folder cannot be made ({error.strerror or error})."
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"Nothing can be written to {path}: its folder is read-only.")


_ROOMS = ("tokens", "pooling", "fitting", "detectors")  # all that a fit follows from
_PACKAGE = Path(__file__).parent.parent


@cache
def source_digest() -> str:
    """A sha256 over the source files that decide what a fit learns."""
    digest = hashlib.sha256()
    for path in sorted(path for room in _ROOMS for path in (_PACKAGE / room).rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# old names
locked = lock_folder
