"""A cloud store that is a folder of this machine, for tests that need no server."""

from pathlib import Path
from typing import Any

import pytest

from apood.support import cloud

__all__ = ["Bucket", "put_bucket_in_place"]


class Bucket:
    """What pyarrow's file system of a cloud store does, in a folder: an object needs no folder to be made for it.

    Attributes:
        asked: the calls so far, by the names of the methods and the paths they were given.
    """

    def __init__(self, root: Path) -> None:
        import pyarrow.fs

        self._root, self._system = root, pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem())
        self.asked: list[tuple[str, Any]] = []

    def open_output_stream(self, path: str, **options: Any) -> Any:
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        return self._system.open_output_stream(path, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._system, name)

        def call(*given: Any, **options: Any) -> Any:
            self.asked.append((name, getattr(given[0], "base_dir", given[0])))
            return method(*given, **options)

        return call


def put_bucket_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Let all addresses stand for objects in this folder, and the cache be beside it."""
    folder.mkdir()
    bucket = Bucket(folder)
    monkeypatch.setattr(cloud, "_connect", lambda _: bucket)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.with_name("cache")))
    return bucket
