"""The recommended fusion: its members with and without a summary and AUX sequences, and corpora that are not clean."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import correlated_sequences
from comparisons import assert_same_scores
from test_fusion import auroc
from test_fusion_on_disk import interrupted_fit
from test_neighbours import near_copies, with_summary

import apood
from apood.detectors import fusion
from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.binary_logits import BinaryLogits
from apood.detectors.contract import unseen
from apood.detectors.contract.weighing import weigh_members
from apood.detectors.fusion import Fusion
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.entry import Entry
from apood.evaluation.split import Split
from apood.fitting.optimise import Checkpoint
from apood.support.errors import DataWarning, InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter

DIM = 8
NEIGHBOURS = [MahalanobisKNN(k=3, average=True), KNN(k=3, average=True)]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Let the recommended AP-OOD train for a few steps only."""
    original = fusion.recommend_members

    def recommend(*arguments, **options):
        members = original(*arguments, **options)
        members[0].set_params(steps=10)
        return members

    monkeypatch.setattr(fusion, "recommend_members", recommend)


@pytest.fixture(scope="module")
def train():
    return correlated_sequences(100, DIM)


# The members.

TOKENS_ONLY = [APOOD, MahalanobisKNN, KNN]


def make_bags(count, seed, odd=1.0):
    """Return bags of 10 to 29 tokens in all directions, the first of which is multiplied by `odd`."""
    rng = np.random.default_rng(seed)
    bags = [rng.normal(size=(rng.integers(10, 30), 16)) for _ in range(count)]
    for bag in bags:
        bag[0] *= odd
    return TokenBatch.from_sequences(bags)


def test_a_token_that_is_too_long_is_found():
    detector = Fusion(members=None).fit(make_bags(200, 0))
    assert detector.members_[0].normalize == "none"
    assert auroc(detector, make_bags(100, 1), make_bags(100, 2, odd=-3.0)) > 0.9
    unit = Fusion([APOOD(steps=10), *NEIGHBOURS]).fit(make_bags(200, 0))
    assert auroc(unit, make_bags(100, 1), make_bags(100, 2, odd=-3.0)) < 0.6, "directions alone do not show it"


def test_of_texts_directions_are_compared():
    bags = replace(make_bags(100, 0), encoder={"model": "small", "mode": "input"})
    assert Fusion().fit(bags).members_[0].normalize is None


def test_lengths_that_would_hide_directions_are_not_looked_at():
    bags = make_bags(100, 0)
    scales = torch.from_numpy(np.random.default_rng(1).lognormal(0, 0.6, len(bags.values)))[:, None]
    for factor, sees in ((1.0, True), (1e-6, True), (scales, False), (1e6 * scales, False)):
        detector = Fusion().fit(TokenBatch(bags.values * factor, bags.offsets))
        assert (detector.members_[0].normalize == "none") is sees


@pytest.mark.parametrize("summary", [False, True])
@pytest.mark.parametrize("supervised", [False, True])
def test_the_members_follow_from_the_data(train, summary, supervised, tmp_path):
    given = with_summary(train) if summary else train
    aux = correlated_sequences(60, DIM, seed=9, shift=0.7) if supervised else None
    detector = Fusion().fit(given, aux=aux)
    kinds = TOKENS_ONLY + [KNN] * summary + [BinaryLogits] * supervised
    assert [type(member) for member in detector.members_] == kinds
    assert [member.view for member in detector.members_ if type(member) is KNN] == ["tokens", "summary"][: 1 + summary]
    assert all((member.k, member.average) == (3, True) for member in detector.members_ if isinstance(member, KNN))
    assert detector.requires == {"tokens"} | ({"summary"} if summary else set()) and detector.welcomes == {"summary"}
    assert detector.members is None and detector.was_fitted_on(given)
    detector.save(tmp_path / "detector")
    loaded = apood.load(tmp_path / "detector")
    assert loaded.requires == detector.requires
    assert np.array_equal(loaded.score_samples(given), detector.score_samples(given))
    if summary:
        with pytest.raises(InputError, match="fusion needs summary, which the data to score lack; they have tokens"):
            loaded.score_samples(train)
    else:
        assert np.array_equal(loaded.score_samples(with_summary(train)), loaded.score_samples(train))


def test_aux_sequences_need_no_summary(train):
    given = with_summary(train)
    plain, weighed = Fusion().fit(given), Fusion().fit(given, aux=correlated_sequences(60, DIM, seed=9, shift=0.7))
    assert len(weighed.members_) == 5
    torch.testing.assert_close(weighed.spreads_[3], plain.spreads_[3], rtol=1e-3, atol=0)  # it weighs 1


def test_given_members_welcome_nothing(train):
    detector = Fusion([KNN()])
    assert detector.welcomes == frozenset() and detector.fit(with_summary(train)).requires == {"tokens"}


def test_the_summary_tells_what_the_tokens_do_not(train):
    def data(count, seed, shift=0.0):
        return with_summary(correlated_sequences(count, DIM, seed=seed), seed=seed, shift=shift)

    detector = Fusion().fit(data(200, 0))
    inside, outside = data(200, 1), data(200, 2, shift=6.0)
    assert auroc(detector, inside, outside) > 0.8
    without = Fusion().fit(TokenBatch(train.values, train.offsets))
    assert auroc(without, inside, outside) < 0.6


def test_a_study_reads_what_the_fusion_welcomes(train, tmp_path):
    given = with_summary(train)
    with TokenStoreWriter(tmp_path / "store", dim=DIM, dtype=train.dtype) as writer:
        writer.append(given)
    store = TokenStore(tmp_path / "store")
    for entry, channels in ((Entry("default"), {"summary"}), (Entry("knn"), set())):
        assert entry.reads == {"tokens"} | channels and entry.requires == {"tokens"}
        assert set(Split(store, store).read_for(entry).train.channels) == channels
    assert Entry("knn", {"view": "summary"}).reads == {"summary"}


def test_a_score_does_not_depend_on_its_neighbours(train):
    detector = Fusion().fit(with_summary(train), aux=correlated_sequences(20, DIM, seed=9, shift=4.0))
    test = with_summary(correlated_sequences(30, DIM, seed=4), seed=4)
    expected = detector.score_samples(test)
    assert_same_scores(np.array([detector.score_samples(test[i : i + 1])[0] for i in range(30)]), expected)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    assert_same_scores(detector.score_samples(test.select(order)), expected[order.numpy()])


def test_an_interrupted_fit_of_neighbours_and_a_classifier_goes_on(tmp_path, monkeypatch, train):
    data = train, correlated_sequences(20, DIM, seed=9, shift=4.0)
    members = [KNN(k=3, average=True), APOOD(steps=20), MahalanobisKNN(), BinaryLogits(normalize="pooled")]
    checkpoint = Checkpoint(tmp_path / "fit.checkpoint", every_seconds=0)
    interrupted_fit(monkeypatch, members, data, checkpoint, seed=0, step=10)
    found, expected = (
        Fusion(members).fit(data[0], aux=data[1], checkpoint=checkpoint),
        Fusion(members).fit(data[0], aux=data[1]),
    )
    assert np.array_equal(found.score_samples(train), expected.score_samples(train))


# AUX sequences.


def find_weights(members, train, aux):
    """Return the weight of each member by its name, and of members that were left out nothing."""
    plain = Fusion([member for member in members if member.aux != "required"]).fit(train)
    alone = dict(zip((member.name for member in plain.members_), plain.spreads_.tolist(), strict=True))
    weighed = Fusion(members).fit(train, aux=aux)
    own = dict(zip((member.name for member in weighed.members_), weighed.spreads_.tolist(), strict=True))
    return {name: alone.get(name, 1.0) / spread for name, spread in own.items()}


def test_members_that_agree_weigh_less():
    rng = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 5_000, dtype=torch.float64, generator=rng)
    members = [KNN(), KNN(), Mahalanobis()]
    weights = weigh_members(members, torch.stack([one, one, other], 1), None)
    assert float(weights[0]) == pytest.approx(float(weights[1])) and weights[0] < weights[2] / 6
    assert float(weights.mean()) == pytest.approx(1)
    few = weigh_members(members, torch.stack([one, one, other], 1)[:5], None)
    torch.testing.assert_close(few, torch.ones(3, dtype=torch.float64), rtol=0, atol=0.2)
    same = weigh_members(members, torch.stack([one, -one, one * 0], 1), None)
    assert same.isfinite().all() and (same > 0).all(), "members that contradict each other, and one that says nothing"
    for alone in (members[:1], members[:2]):
        equal = weigh_members(alone, torch.stack([one, other], 1)[:, : len(alone)], None)
        torch.testing.assert_close(equal, torch.ones(len(alone), dtype=torch.float64))


def test_members_weigh_by_how_well_they_tell_aux_sequences(train):
    rng = torch.Generator().manual_seed(0)
    stretched = correlated_sequences(100, DIM, seed=9)
    far = TokenBatch(stretched.values * 4, stretched.offsets)  # in no direction of their own: lengths alone are foreign
    weights = find_weights([Mahalanobis(), KNN(normalize="pooled")], train, far)
    assert weights["mahalanobis"] > 3 * weights["knn"] and sum(weights.values()) == pytest.approx(2)
    ordinary = correlated_sequences(100, DIM, seed=10)
    weights = find_weights(
        [Mahalanobis(), KNN(normalize="pooled")], train, ordinary.select(torch.randperm(100, generator=rng))
    )
    assert weights["mahalanobis"] == pytest.approx(1, abs=0.2), "nobody tells these better than the other"


def test_a_classifier_weighs_if_it_tells_aux_sequences_better_than_the_others(train):
    members = [Mahalanobis(), BinaryLogits(normalize="pooled")]
    aux = correlated_sequences(200, DIM, seed=9, shift=0.7)
    found = [find_weights(members, train, aux[:count]).get("binary-logits", 0.0) for count in (1, 2, 200)]
    assert found[0] == 0 and found[0] <= found[1] < found[2], "of one sequence nothing can be left out"
    far = correlated_sequences(200, DIM, seed=9, shift=9.0)
    assert "binary-logits" not in find_weights(members, train, far), "the others know what is far"


def test_a_member_that_was_left_out_is_not_saved(train, tmp_path):
    far = correlated_sequences(20, DIM, seed=9, shift=9.0)
    detector = Fusion([Mahalanobis(), KNN(), BinaryLogits()]).fit(train, aux=far)
    assert len(detector.members_) == len(detector.length_law_) == len(detector.floors_) == 2
    detector.save(tmp_path / "detector")
    assert np.array_equal(apood.load(tmp_path / "detector").score_samples(train), detector.score_samples(train))


def test_outliers_help_and_a_few_do_not_hurt():
    inside = correlated_sequences(200, DIM, seed=5)
    quality = {0: [], 8: [], 64: []}
    for seed in range(5):
        train = correlated_sequences(100, DIM, seed=10 + seed)
        aux, outside = (
            correlated_sequences(n, DIM, seed=20 + 2 * seed + i, shift=1.5) for i, n in enumerate((64, 200))
        )
        for count, found in quality.items():
            found.append(auroc(Fusion(seed=seed).fit(train, aux=aux[:count] if count else None), inside, outside))
    none, few, many = (np.mean(found) for found in quality.values())
    assert few > none - 0.01 and many > none + 0.02, quality


# Corpora that are not clean.


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("share", "copied"), [(0.3, 60), (1.0, 200)])
def test_near_copies_change_the_scale_little_and_are_told(share, copied, times):
    corpus = correlated_sequences(200, DIM, lengths=(4, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clean = Fusion([Mahalanobis(), *NEIGHBOURS]).fit(corpus)
    many = near_copies(corpus, share, times)
    with pytest.warns(DataWarning) as caught:
        found = Fusion([Mahalanobis(), *NEIGHBOURS]).fit(many)
    assert [str(one.message).split(".")[0] for one in caught] == [
        f"{copied * (1 + times)} of {len(many)} ID sequences are near copies of others"
    ]
    assert caught[0].filename == __file__
    ratios = found.spreads_ / clean.spreads_
    assert (ratios > 1 / 1.5).all() and (ratios < 1.5).all(), ratios
    assert ((found.means_ - clean.means_).abs() < clean.spreads_).all()


def test_a_few_near_copies_are_not_worth_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fusion(NEIGHBOURS).fit(near_copies(correlated_sequences(400, DIM), 0.02))


def test_the_count_is_of_those_that_were_compared(monkeypatch):
    monkeypatch.setattr(unseen, "_LEFT_OUT", 50)
    many = near_copies(correlated_sequences(100, DIM, lengths=(4, 8)), 1.0)
    with pytest.warns(DataWarning, match=r"^(\d+) of \1 ID sequences that were compared are near copies") as caught:
        Fusion(NEIGHBOURS).fit(many)
    assert 50 <= int(str(caught[0].message).split()[0]) <= 70


def test_a_corpus_of_copies_of_copies_still_tells_foreign_sequences():
    corpus = correlated_sequences(100, DIM, lengths=(4, 8))
    inside, outside = (correlated_sequences(200, DIM, seed=5, lengths=(4, 8), shift=shift) for shift in (0.0, 2.0))
    clean = Fusion([Mahalanobis(), *NEIGHBOURS]).fit(corpus)
    with pytest.warns(DataWarning, match="near copies"):
        found = Fusion([Mahalanobis(), *NEIGHBOURS]).fit(near_copies(corpus, 1.0))
    assert auroc(found, inside, outside) > auroc(clean, inside, outside) - 0.03


def test_a_few_foreign_training_sequences_do_little_harm(train):
    inside, outside = (correlated_sequences(200, DIM, seed=5, shift=shift) for shift in (0.0, 2.0))
    foreign = correlated_sequences(3, DIM, seed=8, shift=2.0)
    clean, found = (Fusion().fit(own) for own in (train, TokenBatch.concatenate([train, foreign])))
    assert auroc(found, inside, outside) > auroc(clean, inside, outside) - 0.05


@pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")
def test_few_sequences_do_not_give_one_member_all_the_weight():
    """With fewer sequences than dimensions the metric of Mahalanobis neighbours fits its own sequences too well."""
    train, new = (correlated_sequences(n, 64, seed=n, lengths=(4, 8)) for n in (50, 300))
    scores = Fusion(NEIGHBOURS).fit(train).member_scores(new)
    spreads = {name: own.std() for name, own in scores.items()}
    assert max(spreads.values()) < 1.5 * min(spreads.values()) and max(spreads.values()) < 1.5


@pytest.mark.parametrize("supervised", [False, True])
def test_fewer_than_forty_are_refused(train, supervised):
    aux = train[:5] if supervised else None
    with pytest.raises(InputError, match=r"needs 40, got 39"):
        Fusion().fit(train[:39], aux=aux)
    Fusion().fit(train[:40], aux=aux)


def test_scores_without_room_on_the_device_are_computed_on_the_cpu(train, monkeypatch):
    detector = Fusion().fit(train)
    expected, tries, score = detector.score_samples(train), [], Fusion._score_here

    def run_out_of_memory_once(self, tokens):
        tries.append(tokens.values.device.type)
        if len(tries) == 1:
            raise torch.OutOfMemoryError("no room")
        return score(self, tokens)

    monkeypatch.setattr(Fusion, "_score_here", run_out_of_memory_once)
    assert np.array_equal(detector.score_samples(train), expected)
    assert tries == ["cpu", "cpu"]
