"""Files that are either whole or absent: temporary name first, then rename."""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["atomic_file", "atomic_folder", "is_temporary", "read_json", "sha256_of", "write_json"]

_TEMPORARY = ".partial-"


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}{_TEMPORARY}{uuid.uuid4().hex[:8]}")


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

    A folder cannot be renamed onto a non-empty one, so an old `path` is moved aside first and
    moved back if the last rename fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _temporary(path), _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb+") as handle:
                    os.fsync(handle.fileno())
        try:
            if path.exists():
                path.rename(old)
            temporary.rename(path)
        except BaseException:  # an interrupt between the two renames must not cost the old folder either
            if old.exists() and not path.exists():
                old.rename(path)
            raise
        _flush_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


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
