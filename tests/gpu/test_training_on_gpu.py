"""Training on a GPU: the same fit wherever the tokens lie, and nothing in its loop that waits for the device."""

import math

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors.ap_ood import detector as ap_ood
from apood.detectors.ap_ood.detector import APOOD
from apood.fitting.optimise import Checkpoint, minimise
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import move_to_device
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

pytestmark = pytest.mark.gpu

DIM = 32
LENGTHS = {"uniform": (24, 24), "ragged": (3, 90)}
any_fit = pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")


def sequences(kind, count=150, seed=0, shift=0.0):
    return correlated_sequences(count, DIM, seed=seed, lengths=LENGTHS[kind], shift=shift, dtype=torch.bfloat16)


def stored(batch, folder):
    with TokenStoreWriter(folder, dim=DIM, dtype=batch.dtype, shard_bytes=batch.values.nbytes // 3) as writer:
        writer.append(batch)
    return TokenStore(folder)


def with_sink(batch):
    return TokenBatch.from_sequences([torch.cat([torch.full_like(z[:1], 20.0), z]) for z in batch])


@any_fit
@pytest.mark.parametrize("recipe", ["robust", "paper"])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("supervised", [False, True])
def test_a_resident_corpus_and_a_streamed_one_are_learnt_alike(recipe, kind, supervised, tmp_path, monkeypatch):
    """The batches are the same, and the kernels are deterministic.

    Two things may differ by rounding: with AUX, two pools add up in another order than one; and the robust start, which
    is computed where the tokens lie.
    """
    batch = with_sink(sequences(kind))
    source = stored(batch, tmp_path / "store")
    aux = with_sink(sequences(kind, 40, seed=3, shift=4.0)) if supervised else None
    arguments = {"recipe": recipe, "steps": 25, "batch_size": 16, "device": "cuda", "seed": 5}
    resident = APOOD(**arguments).fit(source, aux=aux)
    there = APOOD(**arguments).fit(batch.to("cuda"), aux=None if aux is None else aux.to("cuda"))
    monkeypatch.setattr("apood.tokens.loader.has_room_for", lambda *_: False)
    streamed = APOOD(**arguments).fit(source, aux=aux)
    assert resident.fitted_on_ == streamed.fitted_on_ == there.fitted_on_
    assert resident.skips_first_ == streamed.skips_first_ == (recipe == "robust")
    expected = resident.score_samples(batch)
    for other in (streamed, there):
        if not supervised and (recipe == "paper" or other is there):
            assert torch.equal(resident.queries_, other.queries_)
        np.testing.assert_allclose(other.score_samples(batch), expected, rtol=0, atol=5e-2 * np.abs(expected).max())


@any_fit
@pytest.mark.parametrize("recipe", ["robust", "paper"])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize("resident", [True, False])
def test_no_step_waits_for_the_device(recipe, kind, supervised, resident, monkeypatch):
    class Watched(ap_ood.Training):
        """Refuses every wait from the sixth step to the last but one, which the end of the fit follows."""

        def __call__(self, step):
            torch.cuda.set_sync_debug_mode("error" if 5 <= step < 24 else "default")
            return super().__call__(step)

    monkeypatch.setattr(ap_ood, "Training", Watched)
    if not resident:
        monkeypatch.setattr("apood.tokens.loader.has_room_for", lambda *_: False)
    aux = sequences(kind, 40, seed=3, shift=4.0) if supervised else None
    try:
        APOOD(recipe=recipe, steps=25, batch_size=16, device="cuda").fit(sequences(kind), aux=aux)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("count", [1, 7])
def test_batches_arrive_on_the_device_as_they_were(count):
    batches = [sequences("ragged", 20, seed=seed) for seed in range(count)]
    found = list(move_to_device(batches, torch.device("cuda")))
    for own, expected in zip(found, batches, strict=True):
        assert own.values.is_cuda and torch.equal(own.values.cpu(), expected.values)
        assert torch.equal(own.offsets, expected.offsets)


class Task:
    """The loss of tests/fitting/test_loop.py, on the GPU: its looks are judged later, with the same end."""

    def __init__(self, broken_from):
        self.parameter = torch.zeros(3, requires_grad=True, device="cuda")
        self.broken_from, self.parameters = broken_from, []

    def __call__(self, step):
        self.parameters.append(self.parameter.detach().clone())
        target = torch.tensor([1.0, -2.0, 0.5], device="cuda")
        loss = (self.parameter - target).square().sum()
        return loss * math.nan if self.broken_from is not None and step >= self.broken_from else loss, loss / 3

    def run(self, checkpoint=None):
        return minimise(
            [self.parameter], self, steps=24, learning_rate=0.2, run="a run", checkpoint=checkpoint, label="test"
        )


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("broken_from", "noticed_at"), [(0, 0), (3, 10), (10, 10), (15, 20), (23, 23), (None, None)])
def test_divergence_ends_the_fit_where_it_was_last_seen_finite(broken_from, noticed_at, kept, tmp_path):
    task = Task(broken_from)
    outcome = task.run(Checkpoint(tmp_path / "checkpoint", every_seconds=0) if kept else None)
    assert outcome.diverged_at == noticed_at
    assert math.isnan(outcome.loss) == (broken_from is not None)
    if broken_from is not None:
        last_look = max(range(0, broken_from, 10), default=0)
        assert torch.equal(task.parameter.detach(), task.parameters[last_look])


def test_a_detector_scores_one_sequence_like_many_and_moves_between_devices():
    detector = APOOD(steps=20, device="cuda").fit(sequences("ragged"))
    batch = sequences("ragged", 12, seed=2)
    together = detector.score_samples(batch)
    alone = np.concatenate([detector.score_samples([z]) for z in batch])
    there = np.concatenate([detector.score_samples([z.cuda()]) for z in batch])
    scale = np.abs(together).max()
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-4 * scale)
    np.testing.assert_allclose(there, alone, rtol=0, atol=1e-6 * scale)
    moved = detector.set_params(device="cpu").score_samples(batch)
    np.testing.assert_allclose(moved, together, rtol=0, atol=1e-4 * scale)
    np.testing.assert_array_equal(detector.set_params(device="cuda").score_samples(batch), together)
