"""Checkpoints: saving, loading, digests of runs, damaged files and full disks."""

import resource
import time
from dataclasses import replace

import pytest
import torch
from builders import random_tokens
from processes import context

from apood.fitting.optimise import Checkpoint, run_digest
from apood.support.errors import ArtefactError
from apood.tokens.batch import TokenBatch

STATE = {"parameter": torch.arange(12.0).view(3, 4).T, "mean": torch.zeros(2, 0)}


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "not there yet" / "checkpoint", every_seconds=0)


def test_a_state_is_loaded_as_it_was_saved(checkpoint):
    assert checkpoint.load("a run") is None
    checkpoint.save_if_due("a run", 17, STATE)
    step, tensors = checkpoint.load("a run")
    assert step == 17 and tensors.keys() == STATE.keys()
    assert all(torch.equal(tensors[name], STATE[name]) for name in STATE)
    assert [path.name for path in checkpoint.path.parent.iterdir()] == ["checkpoint"]
    checkpoint.delete()
    checkpoint.delete()
    assert checkpoint.load("a run") is None


def test_it_is_written_only_when_it_is_due(tmp_path, monkeypatch):
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    checkpoint = Checkpoint(tmp_path / "checkpoint", every_seconds=5)
    monkeypatch.setattr(checkpoint, "_saved_at", clock)
    for clock, expected in [(104.9, None), (105.0, 1), (109.9, 1), (110.0, 3)]:
        step = {104.9: 0, 105.0: 1, 109.9: 2, 110.0: 3}[clock]
        checkpoint.save_if_due("a run", step, STATE)
        found = checkpoint.load("a run")
        assert (None if found is None else found[0]) == expected


def test_the_state_of_another_run_is_refused(checkpoint):
    checkpoint.save_if_due("a run", 1, STATE)
    with pytest.raises(ArtefactError, match="other settings, data or version of apood; delete it"):
        checkpoint.load("another run")


def test_a_changed_number_is_noticed(checkpoint):
    checkpoint.save_if_due("a run", 1, STATE)
    content = checkpoint.path.read_bytes()
    for change in (
        lambda: content[:-1] + bytes([content[-1] ^ 1]),
        lambda: content.replace(b'"step":"1"', b'"step":"2"'),
    ):
        assert change() != content
        checkpoint.path.write_bytes(change())
        with pytest.raises(ArtefactError, match=r"its hash differs.*delete it"):
            checkpoint.load("a run")


@pytest.mark.parametrize(("keep", "filler"), [(0, b""), (20, b""), (-5, b""), (0, b"\xff" * 1000)])
def test_a_damaged_file_is_refused(checkpoint, keep, filler):
    checkpoint.save_if_due("a run", 1, STATE)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:keep] + filler)
    with pytest.raises(ArtefactError, match=r"cannot be read .*delete it"):
        checkpoint.load("a run")


def test_a_folder_in_its_place_is_refused(checkpoint):
    checkpoint.path.mkdir(parents=True)
    with pytest.raises(ArtefactError, match="cannot be read"):
        checkpoint.load("a run")


def test_files_of_killed_processes_are_deleted_but_no_others(checkpoint):
    folder = checkpoint.path.parent
    folder.mkdir()
    (folder / "checkpoint.partial-0123abcd").write_bytes(b"half a state")
    others = ["checkpoint-2", "checkpoint-2.partial-0123abcd", "checkpoint.txt", "notes"]
    for name in others:
        (folder / name).write_bytes(b"")
    assert checkpoint.load("a run") is None
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)


def test_a_digest_depends_on_settings_and_data():
    tokens, aux = random_tokens([3, 4, 5], 2), random_tokens([2], 2, seed=1)
    settings = {"steps": 3, "beta": None}
    expected = run_digest(settings, tokens, aux)
    assert run_digest({"beta": None, "steps": 3}, random_tokens([3, 4, 5], 2), aux) == expected
    changed = TokenBatch(tokens.values.clone(), tokens.offsets)
    changed.values[-1, -1] += 1e-6
    others = [
        run_digest({**settings, "steps": 4}, tokens, aux),
        run_digest(settings, tokens, None),
        run_digest(settings, aux, tokens),
        run_digest(settings, tokens.select([0, 1]), aux),
        run_digest(settings, tokens.select([2, 1, 0]), aux),
        run_digest(settings, TokenBatch.from_lengths(tokens.values, [4, 3, 5]), aux),
        run_digest(settings, changed, aux),
    ]
    assert len({expected, *others}) == 1 + len(others)


def test_a_digest_reads_sequences_spread_over_the_data():
    tokens = random_tokens([1] * 31, 2)
    expected = run_digest({}, tokens)
    noticed = []
    for number in range(len(tokens)):
        changed = TokenBatch(tokens.values.clone(), tokens.offsets)
        changed.values[number] += 1
        if run_digest({}, changed) != expected:
            noticed.append(number)
    assert noticed == list(range(0, 31, 2))


def test_a_digest_depends_on_the_encoder_but_not_on_its_folder():
    def digest(encoder):
        return run_digest({}, replace(random_tokens([3, 4], 2), encoder=encoder))

    different = [None, {"model": "a"}, {"model": "b"}, {"model": "a", "layer": 1}]
    different += [{"model": "a", "fingerprint": "f"}, {"model": "a", "fingerprint": "g"}]
    assert len({digest(encoder) for encoder in different}) == len(different)
    moved = [{"model": model, "revision": model, "fingerprint": "f"} for model in ("here", "there")]
    assert len({digest(encoder) for encoder in moved}) == 1


# Disks that cannot be written.


@pytest.mark.parametrize("place", ["file/checkpoint", "folder"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    checkpoint = Checkpoint(tmp_path / place, every_seconds=0)
    with pytest.raises(ArtefactError, match=f"could not be kept in {checkpoint.path}: "):
        checkpoint.save_if_due("a run", 1, STATE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def _save_on_a_full_disk(sender, path):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    checkpoint = Checkpoint(path, every_seconds=0)
    checkpoint.save_if_due("a run", 1, STATE)
    try:
        checkpoint.save_if_due("a run", 2, {"parameter": torch.zeros(100_000)})
    except ArtefactError as error:
        sender.send(str(error))


def test_a_full_disk_keeps_the_last_state(tmp_path):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_save_on_a_full_disk, args=(sender, tmp_path / "checkpoint"))
    process.start()
    sender.close()
    sentence = receiver.recv()
    process.join()
    assert "stopped at step 2" in sentence and "File too large" in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert Checkpoint(tmp_path / "checkpoint").load("a run")[0] == 1
