"""Deep SVDD and Deep SAD: their formulas, their training, and the warnings if it fails."""

import math
import warnings

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood.detectors import deep_svdd
from apood.detectors.deep_svdd import DeepSAD, DeepSVDD, Training, start_encoder, total_variance
from apood.detectors.shared.mean_pooling import standardize
from apood.evaluation.metrics import auroc
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError, FitWarning, InputError
from apood.tokens.batch import TokenBatch

DIM = 8
STEPS = 40
BOTH = pytest.mark.parametrize("kind", [DeepSVDD, DeepSAD])


def learnt(detector):
    return {key: value for key, value in vars(detector).items() if key.endswith("_") and torch.is_tensor(value)}


def assert_same(found, expected):
    assert learnt(found).keys() == learnt(expected).keys()
    assert all(torch.equal(value, learnt(found)[key]) for key, value in learnt(expected).items())


def aux_of(kind, aux):
    return aux if kind is DeepSAD else None


# The encoder.


def test_the_encoder_maps_zero_to_zero_and_scales_with_its_input():
    """Without bias terms and with an unbounded activation no weights map all inputs to one point other than zero."""
    vectors = torch.randn(50, DIM, generator=torch.Generator().manual_seed(0))
    encoder, _ = start_encoder(vectors, 16, 5, torch.Generator().manual_seed(1))
    assert (encoder(torch.zeros(1, DIM)) == 0).all()
    torch.testing.assert_close(encoder(3 * vectors), 3 * encoder(vectors))
    assert not torch.allclose(encoder(-vectors), -encoder(vectors)), "it is not linear"


@pytest.mark.parametrize("dim", [1, 8, 300])
def test_the_start_has_unit_variance_and_a_centre_away_from_zero(dim):
    vectors = torch.randn(200, dim, generator=torch.Generator().manual_seed(0))
    encoder, centre = start_encoder(vectors, 2 * dim, dim, torch.Generator().manual_seed(1))
    outputs = encoder(vectors)
    assert total_variance(outputs) == pytest.approx(1, rel=1e-5)
    least = 0.1 / math.sqrt(dim)
    assert (centre.abs() >= least * 0.999).all()
    mean = outputs.mean(0)
    far = mean.abs() > least
    torch.testing.assert_close(centre[far], mean[far])
    assert (centre.sign() == torch.where(mean < 0, -1.0, 1.0)).all()


def test_a_corpus_is_encoded_in_parts(monkeypatch):
    vectors = torch.randn(50, DIM, generator=torch.Generator().manual_seed(0))
    encoder, _ = start_encoder(vectors, 16, 5, torch.Generator().manual_seed(1))
    expected = encoder(vectors)
    monkeypatch.setattr(deep_svdd, "_ROWS", 7)
    torch.testing.assert_close(encoder.encode_corpus(vectors), expected)


# The loss.


def losses(train, aux, aux_weight, batch_size=1000):
    vectors, outside = (torch.randn(len(b), DIM, generator=torch.Generator().manual_seed(len(b))) for b in (train, aux))
    encoder, centre = start_encoder(vectors, 16, 5, torch.Generator().manual_seed(1))
    training = Training(encoder, centre, [(train, vectors), (aux, outside)], aux_weight, batch_size, seed=0)
    near, far = (np.square(encoder(x).numpy() - centre.numpy()).sum(1) for x in (vectors, outside))
    return training, near, far


def test_the_loss_is_the_mean_of_distances_and_of_inverse_distances(train, aux):
    for aux_weight in (0.0, 1.0, 10.0):
        training, near, far = losses(train, aux, aux_weight)
        for step in range(2):
            loss, distance = training(step)
            assert float(distance) == pytest.approx(near.mean(), rel=1e-5)
            assert float(loss) == pytest.approx(near.mean() + aux_weight * (1 / far).mean(), rel=1e-4)


def test_batches_depend_on_the_step_alone(train, aux):
    values = [[float(x) for x in losses(train, aux, 1.0, batch_size=16)[0](step)] for step in range(3)]
    training, _, _ = losses(train, aux, 1.0, batch_size=16)
    assert [[float(x) for x in training(step)] for step in range(3)] == values
    assert values[0] != values[1] != values[2]


# The detector.


@BOTH
@pytest.mark.parametrize("how", ["none", "tokens", "pooled"])
def test_the_score_is_the_distance_from_the_centre(train, aux, test_set, kind, how):
    detector = kind(steps=STEPS, normalize=how).fit(train, aux=aux_of(kind, aux))
    sequences = [z.double().numpy() for z in test_set]
    if how == "tokens":
        sequences = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in sequences]
    pooled = np.stack([z.mean(0) for z in sequences])
    if how == "pooled":
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    values = {key: value.double().numpy() for key, value in learnt(detector).items()}
    x = (pooled - values["mean_"]) / values["scale_"]
    units = x @ values["hidden_"].T
    outputs = np.where(units > 0, units, 0.5 * units) @ values["output_"].T
    np.testing.assert_allclose(
        detector.score_samples(test_set), -np.square(outputs - values["centre_"]).sum(1), rtol=1e-4
    )


def test_training_draws_id_sequences_together_and_leaves_outliers_out(train, held_out, test_set):
    short, long = (DeepSVDD(steps=steps).fit(train) for steps in (1, 300))
    assert long.score_samples(held_out).mean() > 0.1 * short.score_samples(held_out).mean()
    scores = long.score_samples(test_set)
    assert auroc(scores[:12], scores[12:]).value > 0.9


def test_weight_decay_makes_the_weights_smaller(train):
    free, held = (DeepSVDD(weight_decay=decay).fit(train) for decay in (0.0, 0.1))
    assert held.hidden_.norm() < 0.9 * free.hidden_.norm()


def test_shapes_follow_the_dimension_unless_given(train):
    detector = DeepSVDD(steps=1).fit(train)
    assert detector.hidden_.shape == (16, 8) and detector.output_.shape == (8, 16)
    detector = DeepSVDD(steps=1, hidden=5, outputs=3).fit(train)
    assert detector.hidden_.shape == (5, 8) and detector.output_.shape == (3, 5) and detector.centre_.shape == (3,)
    wide = DeepSVDD(steps=1).fit(correlated_sequences(40, 600))
    assert wide.hidden_.shape == (1024, 600) and wide.output_.shape == (128, 1024)


@BOTH
def test_scale_and_origin_of_the_tokens_do_not_matter(train, aux, test_set, kind):
    def moved(batch):
        return TokenBatch(1000 * batch.values.double() - 300, batch.offsets)

    here = kind(steps=STEPS).fit(train, aux=aux_of(kind, aux)).score_samples(test_set)
    there = kind(steps=STEPS).fit(moved(train), aux=aux_of(kind, moved(aux))).score_samples(moved(test_set))
    np.testing.assert_allclose(there, here, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("dim", "sequences"), [(2, 300), (8, 30), (64, 100), (384, 400)])
def test_the_defaults_work_without_warnings(dim, sequences):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector = DeepSVDD().fit(correlated_sequences(sequences, dim))
    inside, outside = (detector.score_samples(correlated_sequences(60, dim, seed=1, shift=s)) for s in (0.0, 30.0))
    assert auroc(inside, outside).value > 0.95


@BOTH
def test_the_settings_worth_trying_are_allowed(kind):
    for supervised in (False, True):
        space = kind().hyperparameter_space(DIM, supervised=supervised)
        assert len(space) > 1
        for settings in space:
            kind(**settings).check_parameters()


@BOTH
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"normalize": "both"}, r"^normalize must be one of tokens, pooled, none, got 'both'\.$"),
        ({"hidden": 0}, r"^hidden must be at least 1, got 0\.$"),
        ({"outputs": 2.5}, r"^outputs must be a whole number, got 2\.5\.$"),
        ({"steps": 0}, r"^steps must be at least 1, got 0\.$"),
        ({"batch_size": 0}, r"^batch_size must be at least 1, got 0\.$"),
        ({"learning_rate": 0}, r"^learning_rate must be a finite number > 0, got 0\.$"),
        ({"weight_decay": -1}, r"^weight_decay must be a finite number >= 0, got -1\.$"),
        ({"seed": -1}, r"^seed must be at least 0, got -1\.$"),
    ],
)
def test_bad_arguments_are_refused(train, kind, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        kind(**arguments).fit(train)


# Auxiliary outliers.


def test_deep_sad_without_aux_is_deep_svdd(train, aux):
    expected = DeepSVDD(steps=STEPS).fit(train)
    assert_same(DeepSAD(steps=STEPS).fit(train), expected)
    weightless = DeepSAD(steps=STEPS, aux_weight=0.0).fit(train, aux=aux)
    assert_same(weightless, expected)


@pytest.mark.parametrize("count", [1, 8, 500])
def test_deep_sad_pushes_outliers_away_however_many_there_are(train, held_out, count):
    def relative_distance(detector):
        """Return the distance of new outliers relative to ID sequences."""
        outliers = correlated_sequences(60, DIM, seed=9, shift=2.0)
        return detector.score_samples(outliers).mean() / detector.score_samples(held_out).mean()

    aux = correlated_sequences(count, DIM, seed=5, shift=2.0)
    with_aux, without = DeepSAD().fit(train, aux=aux), DeepSVDD().fit(train)
    assert with_aux.score_samples(aux).mean() < with_aux.score_samples(train).mean() - 0.1
    if count > 1:  # one outlier says little about other outliers
        assert relative_distance(with_aux) > 1.2 * relative_distance(without)


def test_a_heavier_weight_pushes_farther(train, aux):
    light, heavy = (DeepSAD(aux_weight=weight).fit(train, aux=aux).score_samples(aux).mean() for weight in (0.01, 1.0))
    assert heavy < light


def test_a_bad_weight_is_refused(train, aux):
    with pytest.raises(InputError, match=r"aux_weight must .*>= 0, got -1"):
        DeepSAD(aux_weight=-1).fit(train, aux=aux)


# Failures.


@BOTH
def test_a_collapse_is_reported(train, kind):
    """Enough hidden units and steps map any few sequences to one point."""
    with pytest.warns(FitWarning, match=r"encoder has collapsed.*fewer steps") as caught:
        kind(hidden=512, steps=800, learning_rate=0.003).fit(train[:20])
    assert [warning.filename for warning in caught] == [__file__], "it points at the call of fit"


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_a_loss_that_is_not_finite_keeps_usable_weights(train):
    with pytest.warns(FitWarning, match=r"step \d+ .*smaller learning_rate"):
        detector = DeepSVDD(learning_rate=1e25, steps=30).fit(train)
    assert all(torch.isfinite(value).all() for value in learnt(detector).values())
    assert np.isfinite(detector.score_samples(train)).all()


@BOTH
def test_no_spread_is_refused(aux, kind):
    with pytest.raises(InputError, match="same vector"):
        kind().fit(TokenBatch.from_padded(torch.ones(5, 2, DIM)), aux=aux_of(kind, aux))


# Interruptions.


@pytest.fixture(params=[DeepSVDD, DeepSAD])
def interrupted(request, tmp_path, monkeypatch, train, aux):
    """Return a method, its data, and the checkpoint of a fit that was interrupted half-way."""
    kind = request.param

    class Interrupted(Training):
        def __call__(self, step):
            if step == STEPS // 2:
                raise KeyboardInterrupt
            return super().__call__(step)

    checkpoint = Checkpoint(tmp_path / "checkpoint", every_seconds=0)
    data = (train, aux_of(kind, aux))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(deep_svdd, "Training", Interrupted)
        kind(steps=STEPS, batch_size=16).fit(data[0], aux=data[1], checkpoint=checkpoint)
    return kind, data, checkpoint


def test_an_interrupted_fit_continues(interrupted, monkeypatch):
    kind, data, checkpoint = interrupted
    expected = kind(steps=STEPS, batch_size=16).fit(data[0], aux=data[1])
    seen = []

    class Watched(Training):
        def __call__(self, step):
            seen.append(step)
            return super().__call__(step)

    monkeypatch.setattr(deep_svdd, "Training", Watched)
    assert_same(kind(steps=STEPS, batch_size=16).fit(data[0], aux=data[1], checkpoint=checkpoint), expected)
    assert seen == list(range(STEPS // 2, STEPS))


def test_the_checkpoint_of_another_fit_is_refused(interrupted, train):
    kind, data, checkpoint = interrupted
    for arguments, other in (({"seed": 1}, data), ({}, (train[:-1], data[1]))):
        with pytest.raises(ArtefactError, match="belongs to a fit with other"):
            kind(steps=STEPS, batch_size=16, **arguments).fit(other[0], aux=other[1], checkpoint=checkpoint)


def test_the_standard_is_that_of_the_id_sequences(train, aux):
    detector = DeepSAD(steps=1).fit(train, aux=aux)
    _, standard = standardize(train, "none")
    assert torch.equal(detector.mean_, standard.mean) and torch.equal(detector.scale_, standard.scale)
