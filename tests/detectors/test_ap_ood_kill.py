"""A fit that is killed again and again at random moments ends with the same detector as an uninterrupted one."""

import random

import pytest
import torch
from builders import correlated_sequences
from processes import context, wait_for_a_checkpoint

import apood
from apood.detectors.ap_ood.detector import APOOD
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError

STEPS = 60
ARGUMENTS = {"steps": STEPS, "heads": 3, "batch_size": 16, "seed": 3}


def data():
    return correlated_sequences(50, 8), correlated_sequences(5, 8, seed=1, shift=4.0)


def fit_and_save(folder, threads):
    """Fit like the program of a user, with a checkpoint after every step."""
    torch.set_num_threads(threads)
    checkpoint = Checkpoint(folder / "checkpoint", every_seconds=0)
    APOOD(**ARGUMENTS).fit(data()[0], aux=data()[1], checkpoint=checkpoint).save(folder / "detector")
    checkpoint.delete()


def test_killed_fits_end_like_an_uninterrupted_one(tmp_path):
    moments = random.Random(0)
    kills = []
    seen = None
    while True:
        process = context.Process(target=fit_and_save, args=(tmp_path, torch.get_num_threads()))
        process.start()
        if len(kills) < 6:  # then it may finish
            seen = wait_for_a_checkpoint(process, tmp_path / "checkpoint", seen)
            process.join(moments.uniform(0, 0.05))
            process.kill()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        kills.append(seen)
    assert len(set(kills)) >= 3, "it was killed after different steps"
    found, expected = apood.load(tmp_path / "detector"), APOOD(**ARGUMENTS).fit(data()[0], aux=data()[1])
    for name, value in vars(expected).items():
        same = torch.equal(vars(found)[name], value) if torch.is_tensor(value) else vars(found)[name] == value
        assert same, name
    assert all(path.name.startswith("detector") for path in tmp_path.iterdir()), "nothing is left of the checkpoint"


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Return the checkpoint of a fit that was interrupted half-way."""
    from apood.detectors.ap_ood import detector as ap_ood

    class Interrupted(ap_ood.Training):
        def __call__(self, step):
            if step == STEPS // 2:
                raise KeyboardInterrupt
            return super().__call__(step)

    checkpoint = Checkpoint(tmp_path / "checkpoint", every_seconds=0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ap_ood, "Training", Interrupted)
        APOOD(**ARGUMENTS).fit(data()[0], aux=data()[1], checkpoint=checkpoint)
    return checkpoint


def test_an_interrupted_fit_continues(interrupted):
    found, expected = (
        APOOD(**ARGUMENTS).fit(data()[0], aux=data()[1], checkpoint=interrupted),
        APOOD(**ARGUMENTS).fit(data()[0], aux=data()[1]),
    )
    assert torch.equal(found.queries_, expected.queries_)


def test_the_checkpoint_of_another_fit_is_refused(interrupted):
    tokens, aux = data()
    for arguments, other_data in (
        (ARGUMENTS | {"seed": 4}, (tokens, aux)),
        (ARGUMENTS | {"steps": STEPS + 1}, (tokens, aux)),
        (ARGUMENTS, (tokens, None)),
        (ARGUMENTS, (tokens[:-1], aux)),
    ):
        with pytest.raises(ArtefactError, match="belongs to a fit with other"):
            APOOD(**arguments).fit(other_data[0], aux=other_data[1], checkpoint=interrupted)
