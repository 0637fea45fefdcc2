import hashlib
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest

from apood.support.files import atomic_file, atomic_folder, is_temporary, read_json, sha256_of, write_json


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("first", "second"):
        with atomic_file(path) as temporary:
            temporary.write_text(text)
            assert is_temporary(temporary) and not is_temporary(path)
            assert temporary.parent == tmp_path and (not path.exists() or path.read_text() == "first")
        assert path.read_text() == text and names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_folder_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "store"
    for number in range(2):
        with atomic_folder(path) as temporary:
            (temporary / f"{number}.txt").write_text("x")
            (temporary / "inner").mkdir()
            (temporary / "inner" / "y.txt").write_text("y")
        assert names(path) == [f"{number}.txt", "inner"] and names(path.parent) == ["store"]
        assert (path / "inner" / "y.txt").read_text() == "y"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_folder(tmp_path, error):
    path = tmp_path / "store"
    path.mkdir()
    (path / "old.txt").write_text("old")
    with pytest.raises(error), atomic_folder(path) as temporary:
        (temporary / "new.txt").write_text("half")
        raise error
    assert names(path) == ["old.txt"] and names(tmp_path) == ["store"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupt_between_the_renames_brings_the_old_folder_back(tmp_path, monkeypatch, error):
    path = tmp_path / "store"
    path.mkdir()
    (path / "old.txt").write_text("old")
    rename = Path.rename

    def fail_onto_the_target(self, target):
        if Path(target) == path and "new.txt" in names(self):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_onto_the_target)
    with pytest.raises(error), atomic_folder(path) as temporary:
        (temporary / "new.txt").write_text("new")
    assert names(path) == ["old.txt"] and names(tmp_path) == ["store"]


def _write_and_die(path, operation):
    seen = 0

    def count_operations(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.remove") and str(path) in str(arguments[0]):
            seen += 1
            if seen == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_operations)
    write_json(path, {"version": "new"})


def test_a_process_killed_anywhere_leaves_the_old_or_the_new_file(tmp_path):
    path = tmp_path / "a.json"
    context = multiprocessing.get_context("forkserver")
    versions = []
    for operation in range(1, 20):
        write_json(path, {"version": "old"})
        process = context.Process(target=_write_and_die, args=(path, operation))
        process.start()
        process.join()
        versions.append(read_json(path)["version"])
        assert all(is_temporary(p) for p in tmp_path.iterdir() if p != path)
        if process.exitcode == 0:
            break
    assert versions[0] == "old" and versions[-1] == "new" and versions == sorted(versions, reverse=True)


def test_json_round_trip(tmp_path):
    path = tmp_path / "a.json"
    content = {"name": "ünï", "list": [1, 2.5, None, True], "nested": {"a": "b"}}
    write_json(path, content)
    assert read_json(path) == content and "ünï" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [float("nan"), float("inf"), {1j}])
def test_what_is_no_json_is_not_written(tmp_path, content):
    path = tmp_path / "a.json"
    write_json(path, "old")
    with pytest.raises((TypeError, ValueError)):
        write_json(path, content)
    assert json.loads(path.read_text()) == "old" and names(tmp_path) == ["a.json"]


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 10**6)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"abc" * 10**6).hexdigest()
