"""recipe="reference" against an eager implementation of what the authors' code does, and what AUX sequences teach."""

import warnings

import numpy as np
import pytest
import torch
from builders import correlated_sequences, random_queries, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import Start, prepare_start, resolve
from apood.detectors.ap_ood.training import Training
from apood.detectors.contract.artefact import load_detector
from apood.evaluation.metrics import auroc
from apood.pooling import Preprocessing
from apood.support.errors import FitWarning
from apood.tokens.batch import TokenBatch

CPU = torch.device("cpu")
any_fit = pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")


# The authors' method, one sequence at a time: heads pool β a, losses and scores are means over heads.


def pool_logits(sequences, queries, beta):
    """Return Σ p l and log Σ exp l of the logits l = β a, both `[N, M]`."""
    rows = [(beta * torch.einsum("mtd,sd->mts", queries, z)).flatten(1) for z in sequences]
    values = [(torch.softmax(logits, 1) * logits).sum(1) for logits in rows]
    return torch.stack(values), torch.stack([torch.logsumexp(logits, 1) for logits in rows])


def find_prototype(sequences, queries, beta):
    values, masses = pool_logits(sequences, queries, beta)
    return (torch.softmax(masses, 0) * values).sum(0)


def measure(sequences, corpus, queries, beta):
    """Return d² `[N, M]` to the prototype of the corpus."""
    return (pool_logits(sequences, queries, beta)[0] - find_prototype(corpus, queries, beta)).square()


def reference_loss(sequences, aux, queries, beta, weight):
    """Return the loss of a step on all sequences at once."""
    inside = measure(sequences, sequences, queries, beta).mean(1).mean()
    if aux is None:
        return inside - queries.square().sum((1, 2)).log().mean()
    outside = measure(aux, sequences, queries, beta).mean(1)
    return inside + weight * -torch.log(1 - torch.exp(-outside)).mean()


def trained_loss(sequences, aux, weights, beta, weight):
    """Return the loss of a step of the training on a batch that holds all sequences."""
    recipe = resolve("reference", supervised=aux is not None, batch_size=64, steps=1, aux_weight=weight)
    training = Training(sequences, aux, recipe, Start(Preprocessing(), None, weights, 1.0, beta), weights, seed=0)
    try:
        return training(0)[0]
    finally:
        training.close()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    heads=st.integers(1, 4),
    queries=st.integers(1, 3),
    beta=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    aux=st.sampled_from([None, [3], [1, 5, 2]]),
    weight=st.sampled_from([0.0, 0.1, 10.0]),
    seed=st.integers(0, 99),
)
def test_a_step_has_the_loss_and_the_gradient_of_the_eager_one(lengths, heads, queries, beta, aux, weight, seed):
    sequences = random_tokens(lengths, 4, seed=seed)
    outliers = None if aux is None else random_tokens(aux, 4, seed=seed + 100)
    weights = random_queries(heads, queries, 4, seed=seed, scale=0.5).requires_grad_()
    pairs = []
    for loss in (trained_loss, reference_loss):
        value = loss(sequences, outliers, weights, beta, weight)
        pairs.append((value.detach(), torch.autograd.grad(value, weights)[0]))
    torch.testing.assert_close(*pairs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("supervised", [False, True])
def test_the_gradient_is_that_of_finite_differences(supervised):
    sequences, aux = random_tokens([4, 2, 5], 3), random_tokens([3, 4], 3, seed=5) if supervised else None
    weights = random_queries(2, 2, 3, scale=0.5).requires_grad_()
    loss = lambda own: trained_loss(sequences, aux, own, 0.7, 2.0)  # noqa: E731
    assert torch.autograd.gradcheck(loss, weights, check_undefined_grad=False)


@any_fit
@pytest.mark.parametrize("beta", [None, 0.5])
@pytest.mark.parametrize("supervised", [False, True])
def test_a_fit_is_that_of_the_eager_loss_from_the_same_start(train, aux, test_set, beta, supervised):
    """The batch holds all sequences, so the order does not matter; without a beta it is 1, and λ is 10."""
    steps, others = 12, aux if supervised else None
    detector = APOOD(recipe="reference", queries=2, beta=beta, steps=steps, device="cpu").fit(train, aux=others)
    recipe = resolve("reference", supervised=supervised, queries=2, beta=beta)
    start = prepare_start(train, recipe, torch.Generator().manual_seed(0), CPU)
    assert float(start.weights.std()) == pytest.approx(8**-0.5 if supervised else 1.0, rel=0.2)
    weights, beta = start.weights.double().requires_grad_(), 1.0 if beta is None else beta
    optimizer = torch.optim.AdamW([weights], lr=0.01, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    own, outliers = ([z.double() for z in batch] if batch is not None else None for batch in (train, others))
    for _ in range(steps):
        optimizer.zero_grad()
        reference_loss(own, outliers, weights, beta, 10.0).backward()
        optimizer.step()
        schedule.step()
    weights = weights.detach()
    torch.testing.assert_close(detector.queries_.double(), beta * weights, rtol=1e-3, atol=1e-4)
    norms = weights.square().sum((1, 2)).log()
    distances = measure([z.double() for z in test_set], own, weights, beta)
    np.testing.assert_allclose(detector.score_samples(test_set), (norms - distances).sum(1), rtol=1e-2, atol=1e-2)
    least = APOOD(**detector.get_params() | {"score": "min"}).fit(train, aux=others).score_samples(test_set)
    np.testing.assert_allclose(least, (norms - distances).amin(1), rtol=1e-2, atol=1e-2)


@any_fit
@pytest.mark.parametrize("score", ["sum", "student"])
def test_contributions_sum_to_the_distance_of_the_pooled_logits(train, test_set, score):
    detector = APOOD(recipe="reference", beta=0.3, queries=2, steps=15, score=score).fit(train)
    assert detector.beta_ == 1.0
    squares = measure(list(test_set), list(train), detector.queries_ / 0.3, 0.3)
    expected = (squares if score == "sum" else 3 * torch.log1p(squares / 3)).sum(1)
    found = torch.stack([row.sum() for row in detector.token_contributions(test_set)])
    torch.testing.assert_close(found, expected.double(), rtol=1e-3, atol=1e-3)
    best = float(detector.log_norms_.sum())
    np.testing.assert_allclose(best - detector.score_samples(test_set), expected, rtol=1e-3, atol=1e-3)


@any_fit
def test_it_is_saved_and_loaded(train, test_set, tmp_path):
    detector = APOOD(recipe="reference", start="scaled", beta=0.5, steps=5).fit(train)
    detector.save(tmp_path / "detector")
    loaded = load_detector(tmp_path / "detector")
    assert loaded.get_params() == detector.get_params()
    assert (loaded.recipe, loaded.start, loaded.beta, loaded.beta_) == ("reference", "scaled", 0.5, 1.0)
    np.testing.assert_array_equal(loaded.score_samples(test_set), detector.score_samples(test_set))
    for left, right in zip(loaded.token_contributions(test_set), detector.token_contributions(test_set), strict=True):
        assert torch.equal(left, right)


def test_beta_is_only_the_scale_of_the_weights():
    """The pooled logits depend on the product β W alone, unlike the values that the paper pools."""
    start = prepare_start(random_tokens([4] * 9, 4), resolve("reference", beta=0.5), torch.Generator(), CPU)
    assert (start.beta, start.scale) == (1.0, 0.5)
    sequences, aux, weights = random_tokens([4, 2, 5], 3), random_tokens([3], 3, seed=5), random_queries(2, 2, 3)
    halved, whole = (trained_loss(sequences, aux, own, beta, 1.0) for own, beta in ((weights, 0.5), (weights / 2, 1.0)))
    torch.testing.assert_close(halved, whole)


# What AUX sequences teach, by the start.

DIM = 64


def bags(count, seed, foreign=0, scale=1.0):
    """Return sequences of 8 tokens, the first `foreign` of which are of another kind."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, 1, DIM, generator=generator) + torch.randn(count, 8, DIM, generator=generator)
    values[:, :foreign, :8] -= 3
    return TokenBatch.from_lengths(scale * values.flatten(0, 1), [8] * count)


def learn(weight, scale=1.0, **arguments):
    """Return the detector, its AUROC against outliers like AUX, and what the fit says about AUX sequences."""
    inside, test, odd = bags(300, 0, 0, scale), bags(150, 1, 0, scale), bags(150, 2, 2, scale)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        aux = None if weight is None else bags(60, 3, 2, scale)
        detector = APOOD(aux_weight=weight, steps=200, batch_size=64, **arguments).fit(inside, aux=aux)
    said = [str(one.message) for one in caught if issubclass(one.category, FitWarning) and "AUX" in str(one.message)]
    return detector, auroc(detector.score_samples(test), detector.score_samples(odd)).value, said


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_from_the_papers_start_aux_sequences_teach_nothing(reduction):
    weak, strong = (learn(weight, recipe="paper", head_reduction=reduction) for weight in (0.1, 10.0))
    assert torch.equal(weak[0].queries_, strong[0].queries_), "whatever they weigh"
    for _, found, (message,) in (weak, strong):
        assert found < 0.6
        assert "taught nothing" in message and "start='scaled'" in message and "head_reduction" not in message


@pytest.mark.parametrize(
    "arguments",
    [
        {"recipe": "paper", "start": "scaled"},
        {"recipe": "paper", "start": "scaled", "head_reduction": "mean"},
        {"recipe": "reference"},
        {"recipe": "robust"},
    ],
    ids=str,
)
def test_from_a_nearer_start_they_teach(arguments):
    (_, without, _), (weak, _, said), (strong, found, more) = (
        learn(weight, **arguments) for weight in (None, 0.1, 10.0)
    )
    assert said == more == [] and not torch.equal(weak.queries_, strong.queries_)
    assert found > without + 0.1


def test_tokens_that_are_too_long_for_a_scaled_start_need_their_length_taken():
    *_, (message,) = learn(1.0, scale=30.0, recipe="paper", start="scaled")
    assert "taught nothing" in message and message.endswith("use normalize='tokens'.")
    *_, said = learn(1.0, scale=30.0, recipe="paper", start="scaled", normalize="tokens")
    assert said == []


def test_the_reference_start_follows_from_aux_sequences_unless_it_is_given():
    data, aux = correlated_sequences(40), correlated_sequences(20, seed=3, shift=4.0)
    arguments = {"recipe": "reference", "steps": 1, "learning_rate": 1e-9, "heads": 200}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        spreads = [
            float(APOOD(start=start, **arguments).fit(data, aux=outliers).queries_.std())
            for start, outliers in ((None, None), (None, aux), ("normal", aux), ("scaled", None))
        ]
    assert spreads == pytest.approx([1.0, 8**-0.5, 1.0, 8**-0.5], rel=0.05)
