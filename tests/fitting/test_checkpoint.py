"""The file that a killed fit goes on from, and what it refuses."""

import time

import pytest
import torch
from builders import random_tokens

from apood.fitting.checkpoint import Checkpoint, fingerprint
from apood.support.errors import ArtefactError
from apood.tokens.batch import TokenBatch

STATE = {"parameter": torch.arange(12.0).view(3, 4).T, "mean": torch.zeros(2, 0)}


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "not there yet" / "checkpoint", every_seconds=0)


def test_a_state_comes_back_as_it_was(checkpoint):
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
    with pytest.raises(
        ArtefactError, match=r"checkpoint belongs to a fit with other settings or other data; delete it"
    ):
        checkpoint.load("another run")


@pytest.mark.parametrize("keep", [0, 20, -5])
@pytest.mark.parametrize("filler", [b"", b"\xff" * 1000])
def test_a_spoilt_file_is_refused(checkpoint, keep, filler):
    checkpoint.save_if_due("a run", 1, STATE)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:keep] + filler)
    with pytest.raises(ArtefactError, match=r"^The checkpoint .+ cannot be read \(.+\); delete it to start anew\.$"):
        checkpoint.load("a run")


def test_a_folder_in_its_place_is_refused(checkpoint):
    checkpoint.path.mkdir(parents=True)
    with pytest.raises(ArtefactError, match="cannot be read"):
        checkpoint.load("a run")


def test_what_a_kill_left_behind_is_cleared_but_nothing_of_others(checkpoint):
    folder = checkpoint.path.parent
    folder.mkdir()
    (folder / "checkpoint.partial-0123abcd").write_bytes(b"half a state")
    others = ["checkpoint-2", "checkpoint-2.partial-0123abcd", "checkpoint.txt", "notes"]
    for name in others:
        (folder / name).write_bytes(b"")
    assert checkpoint.load("a run") is None
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)


def test_a_fingerprint_knows_settings_and_data():
    tokens, aux = random_tokens([3, 4, 5], 2), random_tokens([2], 2, seed=1)
    settings = {"steps": 3, "beta": None}
    expected = fingerprint(settings, tokens, aux)
    assert fingerprint({"beta": None, "steps": 3}, random_tokens([3, 4, 5], 2), aux) == expected
    changed = TokenBatch(tokens.values.clone(), tokens.offsets)
    changed.values[-1, -1] += 1e-6
    others = [
        fingerprint({**settings, "steps": 4}, tokens, aux),
        fingerprint(settings, tokens, None),
        fingerprint(settings, aux, tokens),
        fingerprint(settings, tokens.select([0, 1]), aux),
        fingerprint(settings, tokens.select([2, 1, 0]), aux),
        fingerprint(settings, TokenBatch.from_lengths(tokens.values, [4, 3, 5]), aux),
        fingerprint(settings, changed, aux),
    ]
    assert len({expected, *others}) == 1 + len(others)
