"""Fusion: the common scale of its members, the data it learns from, and its contributions."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from builders import correlated_sequences, observed_sequences
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import detector_class
from apood.detectors.fusion import Fusion, default_detector
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.length import Length
from apood.detectors.logits import Energy
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.perplexity import Perplexity
from apood.detectors.shared.log_distances import LengthLaw, compute_floored_log
from apood.detectors.trusted import Trusted
from apood.support.errors import DataWarning, FitWarning, InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import Subset, split

DIM = 8


class Norm(Detector):
    """A detector with the score -scale |mean token|, which can be set to learn from outliers."""

    name = "norm"

    seen_: list

    def __init__(self, scale=1.0, aux_use="unused"):
        self.scale = scale
        self.aux_use = aux_use

    @property
    def aux(self):
        return self.aux_use

    def log_distances(self, scores):
        return compute_floored_log(-scores)

    def _fit(self, source, aux, checkpoint):
        self.seen_ = [len(source), None if aux is None else len(aux), checkpoint and checkpoint.path.name]

    def _score(self, tokens):
        return -self.scale * torch.stack([z.double().mean(0).norm() for z in tokens])


@pytest.fixture(scope="module")
def train():
    return correlated_sequences(240, DIM, lengths=(1, 12))


@pytest.fixture(scope="module")
def fitted(train):
    """Return a fusion of the recommended members with fewer steps."""
    return Fusion([APOOD(steps=20), KNN(), Mahalanobis(normalize="pooled")]).fit(train)


def auroc(detector, inside, outside):
    labels = [1] * len(inside) + [0] * len(outside)
    return roc_auc_score(labels, detector.score_samples(TokenBatch.concatenate([inside, outside])))


# The recommended fusion.


def test_the_recommended_members():
    detector = default_detector(seed=3, device="cpu")
    assert type(detector) is Fusion and detector.get_params() == {
        "members": None,
        "seed": 3,
        "device": "cpu",
        "beginnings": False,
        "sentences": False,
    }
    assert [type(member) for member in detector._get_members()] == [APOOD, MahalanobisKNN, KNN]
    assert (
        detector._get_members()[0].get_params()["seed"] == 3
        and detector._get_members()[0].get_params()["device"] == "cpu"
    )
    assert detector.aux == "optional" and detector.requires == {"tokens"}
    assert detector_class("default") is detector_class("fusion") is Fusion


def test_the_recommended_members_are_fitted(train):
    detector = Fusion(seed=1).fit(train[:60])
    assert [member.get_params() for member in detector.members_] == [m.get_params() for m in detector._get_members()]
    assert detector.members is None


# The score.


def test_the_score_is_the_sum_of_standardised_log_distances(fitted, train, test_set):
    """Neighbours are fitted on all sequences, and each is scored among the others; other members hold out 10%."""
    rest, held_out = split(train, 24 / 240, 0)
    samples, new = [], []
    for member in (APOOD(steps=20), KNN(), Mahalanobis(normalize="pooled")):
        if isinstance(member, KNN):
            alone = [
                KNN().fit(Subset(train, others)).score_samples(train[i : i + 1]) for i, others in leave_one_out(240)
            ]
            known, lengths = np.log(-np.concatenate(alone)), train.lengths
            new.append(np.log(-member.fit(train).score_samples(test_set)))
        else:
            member.fit(rest)
            constant = float(member.log_norms_.double().sum()) if isinstance(member, APOOD) else 0.0
            known, added = (np.log(constant - member.score_samples(part)) for part in (held_out, test_set))
            lengths = held_out.lengths
            new.append(added)
        lower, median = np.quantile(known, [0.25, 0.5])
        samples.append((torch.from_numpy(known).clamp_min(median - 6 * (median - lower)), lengths))
    law = LengthLaw.fit(samples)
    allowances = law.compute_allowances(test_set.lengths).numpy()
    z, held = [], []
    for number, (known, lengths) in enumerate(samples):
        known = (known - law.compute_allowances(lengths)[:, number]).numpy()
        z.append((new[number] - allowances[:, number] - known.mean()) / known.std())
        held.append(known[held_out.indices] if len(known) == len(train) else known)
    weights = ((24 * np.corrcoef(held).mean(0) + 100) / 124) ** -3
    np.testing.assert_allclose(fitted.score_samples(test_set), -(weights / weights.mean()) @ z, rtol=1e-5)


def leave_one_out(count):
    return ((i, [j for j in range(count) if j != i]) for i in range(count))


def test_sequences_that_were_not_seen_are_ordinary(fitted, train):
    """Those held out by definition; others for neighbours, which have seen all of the training sequences."""
    _, held_out = split(train, 24 / 240, 0)
    new = correlated_sequences(400, DIM, seed=5, lengths=(1, 12))
    own, others = (fitted.member_scores(part) for part in (held_out, new))
    for name in ("ap-ood", "mahalanobis"):
        assert own[name].mean() == pytest.approx(0, abs=1e-5)
        weight = float(fitted.weights_[list(own).index(name)])
        assert own[name].std() == pytest.approx(weight, abs=1e-5)
    np.testing.assert_allclose([others["knn"].mean(), others["knn"].std()], [0, 1], atol=0.3)


def test_a_distance_of_a_method_is_what_its_score_is_made_of(train, test_set):
    total = APOOD(steps=5).fit(train)
    sums = torch.stack([c.double().sum() for c in total.token_contributions(test_set)])
    logs = total.log_distances(torch.from_numpy(total.score_samples(test_set)))
    torch.testing.assert_close(logs.exp(), sums, rtol=1e-3, atol=0)
    least = APOOD(steps=5, score="min").fit(train)
    logs = least.log_distances(torch.from_numpy(least.score_samples(test_set)))
    assert logs.isfinite().all() and logs.exp().min() > 0
    best = float(least.log_norms_.min())
    np.testing.assert_allclose(best - logs.exp(), least.score_samples(test_set), rtol=1e-4)
    for other in (KNN().fit(train), Mahalanobis().fit(train)):
        scores = other.score_samples(test_set)
        np.testing.assert_allclose(-other.log_distances(torch.from_numpy(scores)).exp(), scores)
        assert other.log_distances(torch.zeros(1)).isfinite()
    assert Length().log_distances(torch.tensor([-2.0])) == 2.0


def test_the_scale_of_a_distance_does_not_matter(train, test_set):
    small, large = (Fusion([Norm(scale), KNN()]).fit(train).score_samples(test_set) for scale in (1e-6, 1e6))
    np.testing.assert_allclose(small, large, rtol=1e-9)


def test_one_member_keeps_its_order(test_set):
    """This holds for sequences of one length."""
    train = correlated_sequences(80, DIM, lengths=(6, 6))
    for member in (KNN(), Mahalanobis(), APOOD(steps=5, score="min")):
        detector = Fusion([member]).fit(train)
        alone = detector.members_[0].score_samples(test_set)
        assert np.array_equal(np.argsort(detector.score_samples(test_set)), np.argsort(alone))


def test_it_finds_what_only_one_member_sees(train):
    inside = correlated_sequences(200, DIM, seed=2, lengths=(1, 12))
    moved = correlated_sequences(200, DIM, seed=3, lengths=(1, 12), shift=4.0)
    long = correlated_sequences(200, DIM, seed=4, lengths=(60, 80))
    members = [Mahalanobis(), Length()]
    found = {
        name: [auroc(detector.fit(train), inside, outside) for outside in (moved, long)]
        for name, detector in {"both": Fusion(members), "mahalanobis": members[0], "length": members[1]}.items()
    }
    assert min(found["mahalanobis"]) < 0.65 and min(found["length"]) < 0.65
    assert min(found["both"]) > 0.85, found


@pytest.mark.parametrize("copies", [0.2, 0.4])
def test_a_corpus_with_many_copies_keeps_its_scale(copies):
    """A held-out copy of a training sequence has distance 0, which says nothing about other sequences."""
    corpus = correlated_sequences(300, DIM, seed=4, lengths=(4, 8))
    many = TokenBatch.concatenate([corpus, corpus.select(slice(round(300 * copies)))])
    inside, outside = (correlated_sequences(200, DIM, seed=5, lengths=(4, 8), shift=shift) for shift in (0.0, 1.5))
    labels = np.repeat([1, 0], 200)
    quality = []
    for train in (corpus, many):
        with pytest.warns(DataWarning, match="near copies") if train is many else nullcontext():
            detector = Fusion([KNN(k=1), MahalanobisKNN(), Length()]).fit(train)
        quality.append(roc_auc_score(labels, detector.score_samples(TokenBatch.concatenate([inside, outside]))))
    assert quality[1] > quality[0] - 0.05, quality


def test_a_duplicate_does_not_silence_the_other_members(train, test_set):
    """The logarithm of its distance, 0, would outweigh all other members."""
    strange = test_set.select(slice(12, 24))
    copies = TokenBatch.concatenate([train, *[strange] * 3])
    with pytest.warns(DataWarning, match="36 of 276 ID sequences are near copies"):
        detector = Fusion([KNN(k=1), Norm()]).fit(copies)
    knn, norm = detector.member_scores(strange).values()
    assert detector.members_[0].score_samples(strange).max() > -1e-6, "they are in the training set"
    assert knn.max() < 10 and np.array_equal(detector.score_samples(strange), knn + norm)
    assert (detector.spreads_ < 5).all(), "duplicates among the held-out do not blow up the scale"


# The data it learns from.


@pytest.mark.parametrize(("given", "held_out"), [(40, 20), (100, 20), (200, 20), (230, 23)])
def test_how_many_sequences_are_held_out(given, held_out):
    detector = Fusion([Norm()]).fit(correlated_sequences(given, DIM))
    assert detector.members_[0].seen_[0] == given - held_out


def test_too_few_sequences_are_refused(train):
    with pytest.raises(InputError, match=r"needs 40, got 39; fit one of its members"):
        Fusion([Norm()]).fit(train[:39])


def test_a_warning_of_several_members_is_issued_once():
    few = [torch.randn(4, 64, generator=torch.Generator().manual_seed(i)) for i in range(60)]
    with pytest.warns(FitWarning) as caught:
        Fusion([APOOD(steps=2, heads=4), Mahalanobis(), Mahalanobis(normalize="pooled")]).fit(few)
    told = [str(one.message) for one in caught if "fewer ID sequences" in str(one.message)]
    assert len(told) == 1 and caught[0].filename == __file__
    assert "fewer ID sequences (40) than token dimensions (64)" in told[0]
    assert "holds out 20 of the 60 given" in told[0] and "so 84 would be enough)." in told[0]


@pytest.mark.parametrize("given", [299, 300])
def test_as_many_sequences_as_a_warning_asks_for_are_enough(given):
    dim = 270
    tokens = [torch.randn(2, dim, generator=torch.Generator().manual_seed(i)) for i in range(given)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Fusion([Mahalanobis()]).fit(tokens)
    assert [("so 300 would be enough" in str(one.message)) for one in caught] == [True] * (300 - given)


def test_the_seed_decides_which(train, test_set):
    def scores(member):
        return [Fusion([member], seed=seed).fit(train).score_samples(test_set) for seed in (0, 0, 1)]

    first, again, other = scores(Mahalanobis())
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    first, _, other = scores(KNN())
    assert np.array_equal(first, other), "neighbours hold nothing out"


def test_outliers_go_to_those_that_need_them(train):
    aux = correlated_sequences(7, DIM, seed=9, shift=4.0)
    members = [Norm(aux_use=use) for use in ("required", "required")]
    assert [member.seen_[1] for member in Fusion(members).fit(train, aux=aux).members_] == [7, 7]
    members = [Norm(aux_use=use) for use in ("unused", "optional", "required")]
    detector = Fusion(members).fit(train, aux=aux)
    assert [member.seen_[1] for member in detector.members_] == [None, None], (
        "the third tells no better than the others"
    )
    for kinds, aux_use in (((0, 0), "optional"), ((0, 1), "optional"), ((1, 2), "required")):
        assert Fusion([members[kind] for kind in kinds]).aux == aux_use
    with pytest.raises(InputError, match=r"fusion .*no AUX sequences were given"):
        Fusion(members).fit(train)


def test_it_needs_what_its_members_need():
    data = observed_sequences(60, DIM)
    detector = Fusion([KNN(), Energy()])
    assert detector.requires == {"tokens", "logits"}
    with pytest.raises(InputError, match=r"fusion needs logits.*ID data"):
        detector.fit(correlated_sequences(60, DIM))
    assert np.isfinite(detector.fit(data).score_samples(data)).all()
    beside = TokenBatch.without_tokens(**data.channels)
    assert np.isfinite(Fusion([Perplexity(), Energy()]).fit(beside).score_samples(beside)).all()


# The members.


def test_the_members_given_are_left_alone(train):
    given = [KNN(k=3), Mahalanobis()]
    before = [dict(vars(member)) for member in given]
    detector = Fusion(given)
    assert detector.members is given and detector.get_params()["members"] is given
    detector.fit(train)
    assert [vars(member) for member in given] == before and detector.members is given
    twin = clone(detector)
    assert str(twin) == str(detector) and twin.members is not given and not hasattr(twin, "members_")
    used = Fusion([given[0].fit(train[:50])]).fit(train)
    assert len(used.members_[0].bank_) == 240 and len(given[0].bank_) == 50


@pytest.mark.parametrize("wrong", [[], (KNN(),), KNN(), [KNN], ["knn"], "knn", [None]])
def test_what_is_no_list_of_detectors_is_refused(train, wrong):
    with pytest.raises(InputError, match="members must be None or a list"):
        Fusion(wrong).fit(train)


def test_a_member_that_makes_no_sense_is_refused_before_any_work(monkeypatch, train):
    monkeypatch.setattr(Fusion, "_fit", lambda *_: pytest.fail("worked for nothing"))
    for detector, sentence in (
        (Fusion([Mahalanobis(), KNN(k=0)]), r"^k must be at least 1"),
        (Fusion(device="magic"), r"^device must be auto"),
        (Fusion(seed=-1), r"^seed must be at least 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            detector.fit(train)


def test_a_member_without_a_scale_is_refused():
    same_length = correlated_sequences(60, DIM, lengths=(5, 5))
    with pytest.raises(InputError, match=r"member length .*same score"):
        Fusion([KNN(), Length()]).fit(same_length)
    with pytest.raises(InputError, match=r"member norm-2 .*infinitely far"):
        Fusion([Norm(), Norm(np.inf)]).fit(same_length)
    two = TokenBatch.concatenate([same_length[:2]] * 30)
    with pytest.raises(InputError, match=r"^The member knn .*copy"):
        Fusion([Norm(), KNN(k=50)]).fit(two)


def test_what_overflows_is_far_outside(train, test_set):
    values = test_set.values.double()
    values[0] = 1e200  # whose square is infinite
    detector = Fusion([KNN(k=1), Mahalanobis(), Norm()]).fit(train)
    scores = detector.score_samples(TokenBatch(values, test_set.offsets))
    assert scores[0] == -np.inf and np.isfinite(scores[1:]).all()


def test_a_fusion_may_be_a_member(train, test_set):
    inner = Fusion([KNN(), Mahalanobis()])
    scores = Fusion([inner]).fit(train).score_samples(test_set)
    assert np.isfinite(scores).all() and scores[:12].mean() > scores[12:].mean()


# Scores of members and contributions of tokens.


def test_the_scores_of_the_members_sum_to_the_score(fitted, train, test_set):
    scores = fitted.member_scores(test_set)
    assert list(scores) == ["ap-ood", "knn", "mahalanobis"]
    np.testing.assert_allclose(sum(scores.values()), fitted.score_samples(test_set), rtol=1e-9)
    assert all(own[:12].mean() > own[12:].mean() for own in scores.values())
    empty = TokenBatch.from_lengths(torch.zeros(0, train.dim), [0])
    assert {float(own[0]) for own in fitted.member_scores(empty).values()} == {-np.inf}
    repeated = Fusion([KNN(1), Mahalanobis(), KNN(2)]).fit(train).member_scores(test_set)
    assert list(repeated) == ["knn-1", "mahalanobis", "knn-2"]


def test_a_fusion_without_contributions_is_refused(train, test_set):
    detector = Fusion([Trusted(), Fusion([Trusted()])]).fit(train)
    with pytest.raises(InputError, match=r"\(trusted, fusion\).*ap-ood"):
        detector.token_contributions(test_set)
    nested = Fusion([Trusted(), Fusion([APOOD(steps=2)])]).fit(train)
    assert nested.token_contributions(test_set).values.isfinite().all()
