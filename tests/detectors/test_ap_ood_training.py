"""Training of AP-OOD: the losses and the pass over the corpus are the same for streamed and resident tokens."""

import math

import numpy as np
import pytest
import torch
from builders import correlated_sequences, random_tokens

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import prepare_start, resolve
from apood.detectors.ap_ood.training import Training, measure_spread, pool_corpus, squared_distances
from apood.fitting.optimise import Checkpoint
from apood.pooling import Pooled, attention_pool, compute_prototype
from apood.tokens.loader import copy_to_device
from apood.tokens.source import Subset, Trimmed

DIM, CPU = 8, torch.device("cpu")
LENGTHS = {"uniform": [6] * 40, "ragged": [1 + i % 11 for i in range(40)]}


def sources(kind):
    """Return ID and AUX sequences that are read like a store."""
    return [Subset(random_tokens(LENGTHS[kind], DIM, seed=seed, dtype=torch.float32), slice(None)) for seed in (0, 1)]


def losses(source, aux, recipe, steps):
    """Return the losses of some steps with constant weights, and the gradient of the last one."""
    start = prepare_start(source, recipe, torch.Generator().manual_seed(0), CPU)
    weights = start.weights.clone().requires_grad_()
    training = Training(source, aux, recipe, start, weights, seed=3)
    try:
        found = [training(step) for step in steps]
    finally:
        training.close()
    found[-1][0].backward()
    return torch.tensor([[float(x.detach()) for x in pair] for pair in found]), weights.grad


@pytest.mark.parametrize("recipe", ["robust", "paper", "reference"])
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("skip", [False, True])
def test_a_resident_corpus_is_learnt_in_the_same_batches(recipe, kind, skip):
    resolved = resolve(recipe, batch_size=12, steps=10, aux_weight=0.5)
    streamed, resident = sources(kind), copy_to_device(sources(kind), CPU)
    if skip:
        streamed, resident = (
            [Trimmed(own, first=True, last=False) for own in streamed],
            [own.trim(first=True, last=False) for own in resident],
        )
    for first in (0, 7):  # from the start, and from a checkpoint
        steps = range(first, 10)
        expected, found = (losses(source, None, resolved, steps) for source, _ in (streamed, resident))
        assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
        expected, found = (losses(source, aux, resolved, steps) for source, aux in (streamed, resident))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # one pool sums in another order than two


@pytest.mark.parametrize("kind", LENGTHS)
def test_the_pass_over_a_resident_corpus_is_that_over_its_source(kind):
    recipe = resolve("robust")
    (source, _), (resident, _) = sources(kind), copy_to_device(sources(kind), CPU)
    start = prepare_start(source, recipe, torch.Generator().manual_seed(0), CPU)
    sample = torch.tensor([0, 3, 39])
    found, expected = (
        pool_corpus(own, start.queries(start.weights), 0.7, recipe, start, sample) for own in (resident, source)
    )
    assert all(map(torch.equal, found, expected))
    pooled = attention_pool(source.select(sample), start.queries(start.weights), 0.7, preprocessing=start.preprocessing)
    torch.testing.assert_close(found.sample, pooled.value)


def training_of(source, aux, recipe, device=CPU):
    start = prepare_start(source, recipe, torch.Generator().manual_seed(0), device)
    return Training(source, aux, recipe, start, start.weights.clone().requires_grad_(), seed=3), start


@pytest.mark.parametrize("recipe", ["robust", "paper", "reference"])
@pytest.mark.parametrize("now", [0.05, 20.0])
def test_the_distance_of_aux_sequences_is_the_lesser_of_start_and_end(recipe, now):
    source, aux = sources("ragged")
    resolved = resolve(recipe)  # its batch holds all 40 sequences
    training, start = training_of(source, aux, resolved)
    training._weights.data *= now
    found = []
    for weights, beta in ((start.weights, 0.0 if recipe == "robust" else start.beta), (training._weights, start.beta)):
        pools = [
            attention_pool(
                own.select(slice(None)), start.queries(weights.detach()), beta, preprocessing=start.preprocessing
            )
            for own in (source, aux)
        ]
        distances = squared_distances(pools[1], compute_prototype(pools[0])).double()
        distances = distances.sum(1) if recipe == "paper" else distances.mean(1)
        found.append(-(-distances).exp().mean().log())
    nearest = training.measure_aux_distance()
    torch.testing.assert_close(nearest, min(found).float(), rtol=1e-3, atol=1e-4)
    assert found.index(min(found)) == int(now < 1)


def test_there_is_no_distance_without_aux_sequences_in_the_loss():
    source, aux = sources("ragged")
    for others, weight in ((None, 1.0), (aux, 0.0)):
        assert training_of(source, others, resolve("paper", aux_weight=weight))[0].measure_aux_distance() is None


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [True, False])
def test_the_distance_of_aux_sequences_makes_no_gpu_wait(resident):
    device = torch.device("cuda", torch.cuda.current_device())
    both = copy_to_device(sources("ragged"), device) if resident else sources("ragged")
    training, _ = training_of(*both, resolve("paper", batch_size=12), device)
    expected = training_of(*sources("ragged"), resolve("paper", batch_size=12))[0].measure_aux_distance()
    training.measure_aux_distance()  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = training.measure_aux_distance()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("of", ["distances", "prototype", "both"])
def test_the_gradients_by_hand_are_those_of_the_definition(of):
    value, log_mass = (x.requires_grad_() for x in torch.randn(2, 7, 4, dtype=torch.float64))
    pooled = Pooled(value, log_mass)
    weights = torch.randn(2, 4, dtype=torch.float64) * torch.tensor([[of != "prototype"], [of != "distances"]])
    found, expected = measure_spread(pooled), (squared_distances(pooled).mean(0), compute_prototype(pooled))
    gradients = []
    for distances, mu in (found, expected):
        used = [x * w for x, w in zip((distances, mu), weights, strict=True) if bool(w.any())]
        gradients.append(torch.autograd.grad(torch.stack(used).sum(), (value, log_mass)))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients[0], gradients[1])


# Attention that is too sharp.


@pytest.fixture
def long_sequences():
    """Return sequences whose length gives a sharpness above 2."""
    return correlated_sequences(60, DIM, lengths=(64, 64))


@pytest.mark.parametrize(("directions", "factor"), [(0.01, 1.0), (1e9, 0.5)])
def test_a_fit_that_is_too_sharp_is_made_again_with_half_the_sharpness(
    long_sequences, monkeypatch, tmp_path, directions, factor
):
    """It is too sharp if the log distances of ID sequences spread like those of a few squares."""
    monkeypatch.setattr("apood.detectors.ap_ood.detector._FEW_DIRECTIONS", directions)
    expected = APOOD(steps=5, sharpness=factor * math.log(64) / 2).fit(long_sequences)
    checkpoint = Checkpoint(tmp_path / "checkpoint", every_seconds=0)
    for place in (None, checkpoint, checkpoint):  # the second time, it continues
        found = APOOD(steps=5).fit(long_sequences, checkpoint=place)
        assert found.beta_ == expected.beta_
        assert np.array_equal(found.score_samples(long_sequences), expected.score_samples(long_sequences))
    checkpoint.delete()
    assert not list(tmp_path.iterdir())


def test_short_sequences_and_a_given_sharpness_are_fitted_once(long_sequences, monkeypatch):
    monkeypatch.setattr("apood.detectors.ap_ood.detector._FEW_DIRECTIONS", 1e9)
    fits = []
    original = APOOD._train
    monkeypatch.setattr(APOOD, "_train", lambda *arguments: fits.append(arguments[0]) or original(*arguments))
    APOOD(steps=2).fit(correlated_sequences(60, DIM, lengths=(50, 50)))
    APOOD(steps=2, sharpness=3.0).fit(long_sequences)
    APOOD(steps=2, beta=1.0).fit(long_sequences)
    assert len(fits) == 3


def test_few_long_sequences_are_fitted_once_with_half_the_sharpness(monkeypatch):
    """Fewer than T D / 8, here 64: heads learn them by heart, so that they do not show whether attention fails."""
    fits = []
    original = APOOD._train
    monkeypatch.setattr(APOOD, "_train", lambda *arguments: fits.append(arguments[0]) or original(*arguments))
    monkeypatch.setattr("apood.detectors.ap_ood.detector._FEW_DIRECTIONS", 0.01)  # never too sharp
    long = correlated_sequences(64, 16, lengths=(64, 64))
    few, many = long.select(slice(0, 63)), long
    for tokens, factor in ((few, 0.5), (many, 1.0)):
        found = APOOD(steps=2, queries=32, device="cpu").fit(tokens)
        expected = APOOD(steps=2, queries=32, device="cpu", sharpness=factor * math.log(64) / 2).fit(tokens)
        assert found.beta_ == expected.beta_
    assert len(fits) == 4
