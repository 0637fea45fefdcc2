"""How distances depend on the length of a sequence."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from hypothesis import given
from hypothesis import strategies as st
from test_artefact import replace_tensors

import apood
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.shared.log_distances import LengthLaw
from apood.evaluation.metrics import auroc
from apood.support.errors import ArtefactError

PRIOR = 40  # sequences that the absence of a law weighs as much as


@st.composite
def samples(draw, most_distances=3):
    """Return log distances and lengths of ID sequences, other sequences for each distance."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    found = []
    for _ in range(draw(st.integers(1, most_distances))):
        count, longest = draw(st.integers(5, 400)), draw(st.sampled_from([2, 30, 3000]))
        lengths = torch.randint(1, longest + 1, (count,), generator=generator)
        noise = torch.randn(count, generator=generator, dtype=torch.float64)
        slope, spread, level = draw(st.floats(-2, 2)), draw(st.floats(0, 3)), draw(st.floats(-50, 50))
        found.append((slope * lengths.double().log() + spread * noise + level, lengths))
    return found


def tails(lengths):
    """Return the log lengths, moved to the shortest and the longest 1% or two, by numpy."""
    logs = np.log(np.maximum(lengths.numpy(), 1).astype(float))
    tail = min(max(0.01, 2 / len(logs)), 0.05)
    return np.clip(logs, *np.quantile(logs, [tail, 1 - tail]))


# The definition.


def test_the_law_is_a_parabola_by_ridge_regression():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 300, (150,), generator=generator)
    logs = 3 - 0.5 * lengths.double().log() + 0.3 * torch.randn(150, generator=generator).double()
    law = LengthLaw.fit([(logs, lengths)])
    x = tails(lengths)
    u = (x - x.mean()) / x.std()
    features = np.stack([u, u**2], 1)
    features -= features.mean(0)
    y = logs.numpy() - logs.numpy().mean()
    b, c = np.linalg.solve(features.T @ features + PRIOR * np.eye(2), features.T @ y)
    np.testing.assert_allclose(law.compute_allowances(x_to_lengths(x))[:, 0], features @ [b, c], rtol=1e-9, atol=1e-12)
    assert len(law) == 1 and not law.one_sided and not law.is_flat


def x_to_lengths(logs):
    """Return lengths, which need not be whole, with these logarithms."""
    return torch.from_numpy(np.exp(logs))


@given(samples(), st.data())
def test_it_is_zero_on_average_over_its_sample(sample, data):
    law = LengthLaw.fit(sample)
    number = data.draw(st.integers(0, len(sample) - 1))
    lengths = sample[number][1].double().clamp(np.exp(law.shortest), np.exp(law.longest))
    assert float(law.compute_allowances(lengths)[:, number].mean()) == pytest.approx(0, abs=1e-9)


@given(samples())
def test_it_is_constant_below_the_shortest_and_goes_on_beyond_the_longest(sample):
    law = LengthLaw.fit(sample)
    first, last = np.exp([law.shortest, law.longest])
    short = law.compute_allowances(torch.tensor([first, first / 2, 1e-3]))
    torch.testing.assert_close(short, short[:1].expand_as(short))
    step = 1e-6
    at, before, *beyond = law.compute_allowances(last * torch.tensor([0, -step, 1, 5]).double().exp())
    inner = (at - before) / step  # the slope over log S just before the end
    for distance, found in zip((1, 5), beyond, strict=True):
        torch.testing.assert_close((found - at) / distance, inner.clamp_max(0), rtol=1e-3, atol=1e-4)


@given(samples())
def test_nothing_looks_nearer_because_more_was_appended(sample):
    law = LengthLaw.fit(sample)
    lengths = np.exp(law.longest) * torch.linspace(1, 100, 50).double()
    assert (law.compute_allowances(lengths).diff(dim=0) <= 1e-12).all()


def test_equal_lengths_have_no_law():
    logs = torch.randn(50, generator=torch.Generator().manual_seed(0)).double()
    for length in (1, 7):
        law = LengthLaw.fit([(logs, torch.full((50,), length)), (logs, torch.full((30,), length))])
        assert law.is_flat and len(law) == 2
        assert (law.compute_allowances(torch.tensor([1, 7, 700])) == 0).all()


@given(st.integers(0, 10**6))
def test_few_sequences_give_nearly_no_law(seed):
    """Ridge regression with a prior of 40 sequences shrinks a slope of 5 by a factor of at least 45 / 5."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 300, (5,), generator=generator)
    noise = torch.randn(5, generator=generator).double()
    law = LengthLaw.fit([(noise, lengths)])
    assert float(law.compute_allowances(lengths).abs().max()) <= float((noise - noise.mean()).norm()) * 0.45


def test_chance_explains_hardly_anything():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 300, (60,), generator=generator)
    found = []
    for _ in range(200):
        law = LengthLaw.fit([(torch.randn(60, generator=generator).double(), lengths)])
        found.append(float(law.compute_allowances(lengths).std()))
    assert np.mean(found) < 0.13, "least squares gives some sqrt(2 / 60) = 0.18 standard deviations"


def test_one_very_long_sequence_does_not_bend_the_law_of_a_few():
    """With limits at 1%, the parabola would go on to the longest of 41 sequences, far beyond the others."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 60, (40,), generator=generator)
    logs = -0.5 * lengths.double().log() + 0.2 * torch.randn(40, generator=generator).double()
    outlier = torch.cat([lengths, torch.tensor([5000])]), torch.cat([logs, logs.new_tensor([10.0])])
    plain, bent = LengthLaw.fit([(logs, lengths)]), LengthLaw.fit([(outlier[1], outlier[0])])
    longer = torch.linspace(60, 300, 50)
    difference = plain.compute_allowances(longer) - bent.compute_allowances(longer)
    assert float(difference.abs().mean()) < 1.2, "0.5; with limits at 1% it would be 2.6"


@pytest.mark.parametrize("curve", [lambda x: -0.5 * x, lambda x: 0.3 * x, lambda x: 0.2 * (x - 3) ** 2])
def test_what_remains_does_not_depend_on_the_length(curve):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 300, (2000,), generator=generator)
    logs = curve(lengths.double().log()) + 0.5 * torch.randn(2000, generator=generator).double()
    rest = logs - LengthLaw.fit([(logs, lengths)]).compute_allowances(lengths)[:, 0]
    x = lengths.double().log()
    before, after = ([abs(np.corrcoef(f, y)[0, 1]) for f in (x, (x - x.mean()) ** 2)] for y in (logs, rest))
    assert max(before) > 0.4 and max(after) < 0.03


def test_each_distance_has_its_own_sample():
    lengths = torch.arange(1, 200)
    falling, rising = -0.5 * lengths.double().log(), 0.5 * lengths[50:].double().log()
    law = LengthLaw.fit([(falling, lengths), (rising, lengths[50:])])
    found = law.compute_allowances(torch.tensor([60, 150]))
    assert found[0, 0] > found[1, 0] and found[0, 1] < found[1, 1]


# The stored form.


@given(samples())
def test_the_stored_form_is_read_back(sample):
    law = LengthLaw.fit(sample)
    assert LengthLaw.from_tensor(law.to_tensor()) == law
    assert law.to_tensor().dtype == torch.float64 and law.to_tensor()[0] == -1


def test_the_former_stored_form_gives_the_former_allowances():
    """It was [shortest, mean, longest, *slopes]: lines, at most 0, constant at either end."""
    law = LengthLaw.from_tensor(torch.tensor([1.0, 3.0, 5.0, -0.5, 0.2], dtype=torch.float64))
    found = law.compute_allowances(torch.tensor([1, 20, 100, 1000]))
    logs = np.log([np.e, 20, 100, np.exp(5.0)])
    np.testing.assert_allclose(found[:, 0], np.minimum(-0.5 * (logs - 3), 0))
    np.testing.assert_allclose(found[:, 1], np.minimum(0.2 * (logs - 3), 0))
    assert law.one_sided and LengthLaw.from_tensor(law.to_tensor()) == law


BAD = {
    "nothing": [],
    "no slope in the former form": [1.0, 3.0, 5.0],
    "no curve": [-1.0, 1.0, 3.0, 5.0, 1.0, 0.0],
    "half a curve": [-1.0, 1.0, 3.0, 5.0, 1.0, 0.0, 0.1],
    "NaN": [-1.0, 1.0, np.nan, 5.0, 1.0, 0.0, 0.1, 0.0, 0.0],
    "an infinite slope in the former form": [1.0, 3.0, 5.0, np.inf],
    "no spread": [-1.0, 1.0, 3.0, 5.0, 0.0, 0.0, 0.1, 0.0, 0.0],
    "the shortest is the longest": [-1.0, 5.0, 3.0, 1.0, 1.0, 0.0, 0.1, 0.0, 0.0],
    "neither one-sided nor two-sided": [-1.0, 1.0, 3.0, 5.0, 1.0, 0.5, 0.1, 0.0, 0.0],
    "a matrix": [[-1.0, 1.0, 3.0, 5.0, 1.0, 0.0, 0.1, 0.0, 0.0]],
}


@pytest.fixture(scope="module")
def detectors():
    train = correlated_sequences(60)
    return APOOD(steps=2).fit(train), Fusion([KNN(), Mahalanobis()]).fit(train)


@pytest.mark.parametrize("stored", BAD.values(), ids=BAD.keys())
def test_a_stored_form_that_is_none_is_refused(detectors, stored, tmp_path):
    wrong = torch.tensor(stored, dtype=torch.float64)
    for detector in detectors:
        detector.save(tmp_path / detector.name)
        replace_tensors(tmp_path / detector.name, lambda tensors: tensors.update(length_law_=wrong))
        with pytest.raises(ArtefactError, match=rf"length_law_ that {detector.name} cannot have learnt"):
            apood.load(tmp_path / detector.name)


def test_a_law_for_other_members_is_refused(detectors, tmp_path):
    _, fusion = detectors
    fusion.save(tmp_path / "fusion")
    replace_tensors(tmp_path / "fusion", lambda tensors: tensors.update(length_law_=LengthLaw().to_tensor()))
    with pytest.raises(ArtefactError, match="it is for 1 members, and there are 2"):
        apood.load(tmp_path / "fusion")


# What it is good for.


def test_long_foreign_sequences_are_no_longer_the_most_ordinary_ones():
    """Means of more tokens spread less, so that the mean of a long foreign sequence is nearer than an ordinary one."""
    generator = torch.Generator().manual_seed(0)

    def bag(length, shift=0.0):
        return torch.randn(length, 16, generator=generator) + shift

    train = [bag(int(n)) for n in torch.randint(8, 200, (600,), generator=generator)]
    test = [bag(int(n)) for n in torch.randint(8, 200, (200,), generator=generator)]
    foreign = [bag(200, 0.07) for _ in range(200)]
    alone = Mahalanobis().fit(train)
    fused = Fusion([Mahalanobis(), KNN(normalize="none")]).fit(train)
    before, after = (auroc(d.score_samples(test), d.score_samples(foreign)).value for d in (alone, fused))
    assert before < 0.5 < 0.7 < after


def test_ordinary_short_sequences_are_no_longer_the_strangest_ones():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.cat([torch.full((300,), 4), torch.full((300,), 64)])
    train, test = ([torch.randn(int(n), 16, generator=generator) for n in lengths] for _ in range(2))
    short, long = slice(0, 300), slice(300, 600)
    member = KNN(normalize="none")
    alone, fused = (detector.fit(train).score_samples(test) for detector in (member, Fusion([member])))
    assert auroc(alone[long], alone[short]).value > 0.99
    assert abs(auroc(fused[long], fused[short]).value - 0.5) < 0.2


@pytest.mark.parametrize(("count", "dim"), [(300, 8), (70, 64)])
def test_ap_ood_learns_no_law_from_sequences_that_it_knows_by_heart(count, dim):
    """Few sequences of many dimensions end at a distance of almost 0, and how near they are shows nothing."""
    detector = APOOD(device="cpu", steps=100, learning_rate=0.005)
    detector.fit(correlated_sequences(count, dim, lengths=(4, 40)))
    by_heart = count < 2 * dim
    assert (detector.mean_distance_ < 0.1) == detector.length_law_.is_flat == by_heart
