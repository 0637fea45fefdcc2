"""Atomic files and folders, locks, JSON and digests: whatever happens, files are complete or absent."""

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import context

import apood
from apood.support import files
from apood.support.errors import InputError
from apood.support.files import (
    atomic_file,
    atomic_folder,
    is_being_replaced,
    is_temporary,
    lock_folder,
    read_json,
    read_toml,
    refuse_unwritable,
    reserve_path,
    sha256_of,
    source_digest,
    write_json,
)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path):
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


def test_a_folder_appears_when_it_is_complete(tmp_path):
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


@pytest.fixture(params=[True, False], ids=["exchanged", "moved aside"])
def can_exchange(request, monkeypatch):
    """Run a test on a system that exchanges two folders in one step, and on one that cannot."""
    if not request.param:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupt_between_the_renames_brings_the_old_folder_back(tmp_path, monkeypatch, error):
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
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


def write_folder(path, text):
    with atomic_folder(path) as temporary:
        for name in ("a.txt", "b.txt"):
            (temporary / name).write_text(text)


def texts(folder):
    """Return the texts in a folder."""
    return [file.read_text() for file in sorted(folder.iterdir())]


def test_the_next_writer_restores_a_folder_that_was_moved_aside(tmp_path):
    path = tmp_path / "store"
    write_folder(path, "old")
    path.rename(tmp_path / "store.partial-0f0f0f0f.previous")
    assert is_being_replaced(path)
    with pytest.raises(ValueError, match="not now"), atomic_folder(path, refuse):
        pass
    assert texts(path) == ["old", "old"] and names(tmp_path) == ["store"] and not is_being_replaced(path)


def refuse(_path):
    raise ValueError("not now")


def test_a_check_sees_the_old_folder_and_can_refuse_to_replace_it(tmp_path):
    write_folder(tmp_path / "store", "old")
    seen = []
    with atomic_folder(tmp_path / "store", lambda path: seen.append(texts(path))):
        pass
    assert seen == [["old", "old"]]


@pytest.mark.usefixtures("can_exchange")
def test_folders_of_others_are_left_alone(tmp_path):
    others = ["store-2.partial-0f0f0f0f", "store.being-replaced", "store.lock.d", "store.partial-notes"]
    for other in others:
        write_folder(tmp_path / other, "other")
    for text in ("old", "new"):
        write_folder(tmp_path / "store", text)
    assert texts(tmp_path / "store") == ["new", "new"]
    assert names(tmp_path) == ["store", *others]


@pytest.mark.usefixtures("can_exchange")
def test_a_replaced_link_leaves_what_it_points_to(tmp_path):
    write_folder(tmp_path / "target", "old")
    (tmp_path / "link").symlink_to("target")
    for text in ("new", "newer"):
        write_folder(tmp_path / "link", text)
    assert texts(tmp_path / "target") == ["old", "old"] and texts(tmp_path / "link") == ["newer", "newer"]
    assert names(tmp_path) == ["link", "target"]


def _die_before(path, operation):
    """Kill the process right before its `operation`-th file operation on `path` and its neighbours."""
    seen = 0

    def count_operations(event, arguments):
        nonlocal seen
        kinds = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
        # files that rmtree deletes are named relative to their folder
        if event in kinds and (str(path) in str(arguments[0]) or event == "os.remove"):
            seen += 1
            if seen == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_operations)


def _replace_and_die(path, operation, exchange):
    if not exchange:
        files._exchange = lambda *_: False
    _die_before(path, operation)
    write_folder(path, "new")


@pytest.mark.parametrize("exchange", [True, False])
def test_a_process_killed_anywhere_leaves_the_old_or_the_new_folder(tmp_path, exchange):
    versions, missing = [], 0
    for operation in range(1, 80):
        path = tmp_path / f"{operation}" / "store"
        write_folder(path, "old")
        process = context.Process(target=_replace_and_die, args=(path, operation, exchange))
        process.start()
        process.join()
        missing += not path.exists()
        assert path.exists() != is_being_replaced(path)
        if process.exitcode:  # the next writer restores a folder that was moved aside
            assert process.exitcode == -signal.SIGKILL
            with contextlib.suppress(ValueError), atomic_folder(path, refuse):
                pass
        assert texts(path) in (["old", "old"], ["new", "new"]) and names(path.parent) == ["store"]
        versions.append(texts(path)[0])
        if process.exitcode == 0:
            break
    assert process.exitcode == 0 and missing == (0 if exchange else 1)
    assert versions[0] == "old" and versions[-2:] == ["new"] * 2 and versions == sorted(versions, reverse=True)


def _write_many(path, text):
    for _ in range(30):
        write_folder(path, text)


@pytest.mark.usefixtures("can_exchange")
def test_two_writers_of_one_folder_take_turns(tmp_path):
    forks = multiprocessing.get_context("fork")
    writers = [forks.Process(target=_write_many, args=(tmp_path / "store", text)) for text in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert texts(tmp_path / "store") in (["one", "one"], ["two", "two"]) and names(tmp_path) == ["store"]


def _write_and_die(path, operation):
    _die_before(path, operation)
    write_json(path, {"version": "new"})


def test_a_process_killed_anywhere_leaves_the_old_or_the_new_file(tmp_path):
    path = tmp_path / "a.json"
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


def _write_until_killed(sender, path):
    with atomic_file(path) as temporary:
        temporary.write_text("half")
        sender.send(temporary.name)
        signal.pause()


def test_the_next_writer_deletes_what_a_killed_one_left(tmp_path):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_write_until_killed, args=(sender, tmp_path / "a.json"))
    process.start()
    temporary = receiver.recv()
    write_json(tmp_path / "a.json", 1)
    assert names(tmp_path) == ["a.json", temporary], "its writer still runs"
    process.kill()
    process.join()
    write_json(tmp_path / "b.json", 1)
    assert read_json(tmp_path / "a.json") == 1
    assert names(tmp_path) == ["a.json", temporary, "b.json"], "neither a reader nor the writer of another file sweeps"
    write_json(tmp_path / "a.json", 2)
    assert names(tmp_path) == ["a.json", "b.json"]


def test_only_old_files_of_unknown_processes_are_deleted_and_no_foreign_ones(tmp_path):
    foreign = ["a.json.partial-", "a.json.partial-notes", "a.json.partial-0123abcd.bak", "aXjson.partial-0123abcd"]
    new = ["a.json.partial-0123abcd", "a.json.partial-ffffffff-1-0123abcd"]
    old = ["a.json.partial-4567abcd", "a.json.partial-ffffffff-1-4567abcd"]
    for name in foreign + new + old:
        (tmp_path / name).write_text("x")
    (tmp_path / "a.json.partial-89ababcd").mkdir()
    for name in (*foreign, *old, "a.json.partial-89ababcd"):
        os.utime(tmp_path / name, (0, 0))
    write_json(tmp_path / "a.json", 1)
    assert names(tmp_path) == sorted(["a.json", "a.json.partial-89ababcd", *foreign, *new])
    assert [name for name in foreign if is_temporary(Path(name))] == ["aXjson.partial-0123abcd"]


def _make_folder_until_killed(sender, path):
    with files.temporary_folder(path) as temporary:
        (temporary / "inner").mkdir()
        sender.send(temporary.name)
        time.sleep(60)


def test_folders_of_killed_processes_of_this_computer_are_deleted_by_the_next_one(tmp_path):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_make_folder_until_killed, args=(sender, tmp_path / "new"))
    process.start()
    left = receiver.recv()
    others = ["new.partial-ffffffff-1-4567abcd", "new.partial-notes"]
    for name in others:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    for is_left in (True, False):
        with files.temporary_folder(tmp_path / "new") as temporary:
            assert names(tmp_path) == sorted([temporary.name, *others, *[left] * is_left])
        process.kill()
        process.join()
    assert names(tmp_path) == others


def test_json_round_trip(tmp_path):
    path = tmp_path / "a.json"
    content = {"name": "ünï", "list": [1, 2.5, None, True], "nested": {"a": "b"}}
    write_json(path, content)
    assert read_json(path) == content and "ünï" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [float("nan"), {1j}])
def test_invalid_json_is_not_written(tmp_path, content):
    path = tmp_path / "a.json"
    write_json(path, "old")
    with pytest.raises((TypeError, ValueError)):
        write_json(path, content)
    assert json.loads(path.read_text()) == "old" and names(tmp_path) == ["a.json"]


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 10**6)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(b"abc" * 10**6).hexdigest()


def _count_up(folder, times):
    for _ in range(times):
        with lock_folder(folder):
            number = int((folder / "number").read_text())
            time.sleep(0.001)
            (folder / "number").write_text(str(number + 1))


def test_a_folder_has_one_holder_at_a_time(tmp_path):
    (tmp_path / "number").write_text("0")
    processes = [context.Process(target=_count_up, args=(tmp_path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "number").read_text() == "60" and names(tmp_path) == ["number"]


def _hold_until_killed(sender, folder):
    with lock_folder(folder):
        sender.send("held")
        signal.pause()


def test_a_killed_holder_frees_the_folder(tmp_path):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_hold_until_killed, args=(sender, tmp_path))
    process.start()
    receiver.recv()
    with pytest.raises(TimeoutError), lock_folder(tmp_path, wait=False):
        pass
    process.kill()
    process.join()
    with lock_folder(tmp_path, wait=False):
        assert names(tmp_path) == [".lock"]
    assert names(tmp_path) == []


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a copy of the package to change."""
    copy = tmp_path / "apood"
    shutil.copytree(Path(apood.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(files, "_PACKAGE", copy)
    return copy


def test_the_digest_of_the_code_does_not_depend_on_its_folder(package, tmp_path, monkeypatch):
    before = source_digest.__wrapped__()
    monkeypatch.setattr(files, "_PACKAGE", package.rename(tmp_path / "elsewhere"))
    assert source_digest.__wrapped__() == before


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("fitting/optimise.py", True),
        ("pooling/algebra.py", True),
        ("tokens/loader.py", True),
        ("detectors/new.py", True),
        ("report/new.py", False),
    ],
)
def test_the_digest_covers_the_code_that_fits(package, file, counts):
    before, everything = source_digest.__wrapped__(), source_digest.__wrapped__(everything=True)
    with (package / file).open("a", encoding="utf-8") as code:
        code.write("# changed")
    assert (source_digest.__wrapped__() != before) == counts
    assert source_digest.__wrapped__(everything=True) != everything


def test_a_renamed_file_changes_the_digest(package):
    before = source_digest.__wrapped__()
    (package / "fitting/optimise.py").rename(package / "fitting/other.py")
    assert source_digest.__wrapped__() != before


def test_the_check_of_a_place_creates_nothing(tmp_path):
    refuse_unwritable(tmp_path / "new" / "deep" / "file")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "a", tmp_path / "file" / "a" / "b"):
        with pytest.raises(InputError, match=r"file is not a folder"):
            refuse_unwritable(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(InputError, match=r"link is not a folder"):
        refuse_unwritable(tmp_path / "link" / "a")


@pytest.mark.parametrize("read", [read_json, read_toml])
def test_a_huge_text_file_is_refused_before_it_fills_memory(read, tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 36)  # it takes no space on the disk
    with pytest.raises(ValueError, match=r"larger than 256 MiB, the limit for such a file"):
        read(path)


def test_a_reserved_path_is_refused_at_once_and_free_afterwards(tmp_path):
    path = tmp_path / "new" / "detector"
    with reserve_path(path):
        with pytest.raises(InputError, match=rf"writing to {path}"), reserve_path(path):
            pass
        with reserve_path(tmp_path / "new" / "other"):
            pass
        assert path.parent.exists()
    assert not list(tmp_path.iterdir()), "neither locks nor empty folders are left"
    with reserve_path(path):
        path.mkdir()
        (path / "file").write_text("kept")
    assert [found.name for found in tmp_path.rglob("*")] == ["new", "detector", "file"]


def test_a_folder_that_was_there_before_is_kept(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(ZeroDivisionError), reserve_path(tmp_path / "old" / "new" / "out"):
        raise ZeroDivisionError
    assert [found.name for found in tmp_path.rglob("*")] == ["old"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def fail(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write_json(tmp_path / "results.json", {})
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "results.json")
    assert not list(tmp_path.iterdir())
