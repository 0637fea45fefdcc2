"""Fusions that refuse a text for one sentence that does not fit the rest of it."""

import numpy as np
import pytest
import torch

import apood
from apood import KNN, Coherence, Fusion, Mahalanobis, TokenBatch, default_detector
from apood.support.errors import DataWarning, InputError
from apood.tokens.batch import Ragged

DIM, SENTENCES, TOKENS = 8, 5, 6


def make_texts(count, seed, *, planted=False, shift=0.0):
    """Return texts of five sentences about one topic; `planted` ones have a sentence about another topic."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    topics = (3 * draw(count, 1, DIM)).expand(count, SENTENCES, DIM).clone()
    if planted:
        topics[:, 2] = 3 * draw(count, DIM)
    sentences = topics + draw(count, SENTENCES, DIM)
    tokens = sentences.repeat_interleave(TOKENS, 1) + draw(count, SENTENCES * TOKENS, DIM) + shift
    rows = torch.cat([torch.full((count, SENTENCES, 1), float(TOKENS)), sentences], 2).flatten(0, 1)
    batch = TokenBatch.from_lengths(tokens.flatten(0, 1), [SENTENCES * TOKENS] * count)
    return batch.with_channels(sentences=Ragged.from_lengths(rows, [SENTENCES] * count))


@pytest.fixture(scope="module")
def train():
    return make_texts(1000, 0)


@pytest.fixture(scope="module")
def fitted(train):
    return Fusion([KNN(), Mahalanobis()], sentences=True).fit(train)


def test_the_score_is_the_smaller_of_both_sides(fitted):
    texts = TokenBatch.concatenate([make_texts(20, 1), make_texts(20, 2, planted=True), make_texts(20, 3, shift=3.0)])
    parts = fitted.member_scores(texts)
    assert list(parts) == ["knn", "mahalanobis", "coherence"]
    whole = parts["knn"] + parts["mahalanobis"]
    assert fitted.score_samples(texts) == pytest.approx(np.minimum(whole, parts["coherence"]))


def test_both_sides_have_one_scale(fitted):
    parts = fitted.member_scores(make_texts(1000, 4))
    whole = parts["knn"] + parts["mahalanobis"]
    for side in (whole, parts["coherence"]):  # learnt from a hundred texts, with a long tail
        assert 0.5 < side.std() < 1.6


def test_a_foreign_sentence_and_a_foreign_text_are_both_refused(train, fitted):
    fitted.calibrate(make_texts(200, 5))
    assert (fitted.predict(make_texts(200, 6)) == 1).mean() > 0.88
    assert (fitted.predict(make_texts(100, 7, planted=True)) == -1).mean() > 0.5
    assert (fitted.predict(make_texts(100, 8, shift=30.0)) == -1).all()
    plain = Fusion([KNN(), Mahalanobis()]).fit(train).calibrate(make_texts(200, 5))
    assert (plain.predict(make_texts(100, 7, planted=True)) == -1).mean() < 0.3


def test_a_saved_fusion_gives_the_same_scores(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    loaded = apood.load(tmp_path / "saved")
    assert loaded.sentences and type(loaded.members_[-1]) is Coherence
    texts = make_texts(10, 9, planted=True)
    assert np.array_equal(loaded.score_samples(texts), fitted.score_samples(texts))


def test_aux_sequences_weigh_the_other_members_alone(train):
    fitted = Fusion([KNN(), Mahalanobis()], sentences=True).fit(train, aux=make_texts(50, 10, shift=4.0))
    assert [member.name for member in fitted.members_] == ["knn", "mahalanobis", "coherence"]
    assert float(fitted.weights_[-1]) == 1.0


def test_aux_sequences_need_no_sentences(train):
    """Weights do not depend on them, and the sentences of AUX sequences are neither scored nor checked."""
    aux = make_texts(50, 10, shift=4.0)
    sentences = aux.channels["sentences"]
    broken = aux.with_channels(sentences=Ragged(sentences.values * torch.nan, sentences.offsets))
    fits = [
        Fusion([KNN(), Mahalanobis()], sentences=True).fit(train, aux=own)
        for own in (aux, TokenBatch(aux.values, aux.offsets), broken)
    ]
    assert all(torch.equal(own.weights_, fits[0].weights_) for own in fits)
    assert all(torch.equal(own.spreads_, fits[0].spreads_) for own in fits)
    with pytest.raises(InputError, match="needs sentences, which the AUX data lack"):
        Fusion([KNN(), Coherence()]).fit(train, aux=TokenBatch(aux.values, aux.offsets))
    with pytest.raises(InputError, match="needs sentences, which the ID data lack"):
        fits[0].fit(TokenBatch(train.values, train.offsets), aux=aux)


def test_what_it_reads_is_known_before_the_fit(train):
    assert default_detector(sentences=True).requires == {"tokens", "sentences"}
    plain = TokenBatch(train.values, train.offsets)
    with pytest.raises(InputError, match="sentences"):
        default_detector(sentences=True).fit(plain)


def test_a_beginning_has_no_sentences(train):
    with pytest.raises(InputError, match="beginnings and sentences cannot be combined"):
        Fusion(beginnings=True, sentences=True).fit(train)


def test_coherence_cannot_be_there_twice():
    sentence = "^sentences=True adds the member coherence: leave it out of members, or leave out sentences"
    with pytest.raises(InputError, match=sentence):
        Fusion([KNN(), Coherence()], sentences=True).check_parameters()
    Fusion([KNN(), Coherence()]).check_parameters()


def test_sentences_is_true_or_false():
    with pytest.raises(InputError, match="sentences"):
        Fusion(sentences="yes").check_parameters()


def test_explanations_show_the_side_that_decides(fitted):
    texts = TokenBatch.concatenate([make_texts(10, 11, planted=True), make_texts(10, 12, shift=30.0)])
    members = fitted.explain(texts).members
    shares = torch.stack([member.share for member in members])
    assert -shares.sum(0).numpy() == pytest.approx(fitted.score_samples(texts))
    assert [member.name for member in members][-1] == "coherence" and members[-1].contributions is None
    assert ((shares[-1] == 0) | (shares[:-1] == 0).all(0)).all()
    assert (shares[-1] != 0).any() and (shares[:-1] != 0).any()


def mix_lengths(count, seed):
    """Return texts of five sentences, and three times as many that have the first of them alone."""
    whole, others = make_texts(count, seed), make_texts(3 * count, seed + 1)
    rows = others.channels["sentences"].values[::SENTENCES]
    single = others.with_channels(sentences=Ragged.from_lengths(rows, [1] * (3 * count)))
    return TokenBatch.concatenate([whole, single])


def test_texts_of_one_sentence_do_not_set_the_scale():
    with pytest.warns(DataWarning, match="About \\d\\d% of the texts have several sentences"):
        fitted = Fusion([Mahalanobis()], sentences=True).fit(mix_lengths(300, 20))
    parts = fitted.member_scores(mix_lengths(300, 30))
    assert 0.5 < parts["coherence"][:300].std() < 1.6
    assert (parts["coherence"][300:] > parts["mahalanobis"][300:]).mean() > 0.95, "they are judged as a whole"


class Untrained(Mahalanobis):
    """A member that must not be fitted."""

    def _fit(self, *_):
        raise AssertionError("it trains before the data are refused")


@pytest.mark.parametrize(
    ("several", "counts"), [(0, "0 and 0 among 600"), (12, "12 and 0 among 612"), (25, "22 and 3 among 625")]
)
@pytest.mark.parametrize(
    "fusion",
    [Fusion([Untrained()], sentences=True), Fusion([Untrained(), Coherence()])],
    ids=["sentences", "member"],
)
def test_too_few_texts_of_several_sentences_are_refused_before_anything_is_trained(several, counts, fusion):
    """Too few to learn from, or enough to learn from but hardly one among those held out."""
    texts = TokenBatch.concatenate([make_texts(several, 40), mix_lengths(200, 41).select(slice(200, None))])
    sentence = f"at least 20 ID texts .*, and 5 among those that it holds out, got {counts}.* without sentences"
    with pytest.raises(InputError, match=sentence):
        fusion.fit(texts)


def cut_into_windows(texts, windows):
    """Return texts of so many windows each, of which the first has all sentences."""
    rows = texts.channels["sentences"]
    counts = torch.tensor([SENTENCES, *[1] * (windows - 1)] * len(texts))
    values = torch.cat([torch.cat([own, own[:1].expand(windows - 1, -1)]) for own in rows])
    tokens = torch.cat([own.repeat(windows, 1) for own in texts])
    batch = TokenBatch.from_lengths(tokens, [SENTENCES * TOKENS] * len(counts))
    numbers = torch.arange(windows, dtype=torch.int32).repeat(len(texts))
    return batch.with_channels(
        sentences=Ragged.from_lengths(values, counts), window=Ragged.from_lengths(numbers, [1] * len(counts))
    )


def test_as_many_whole_texts_are_held_out_as_a_scale_needs():
    """A tenth of the windows would be those of five texts."""
    windows = cut_into_windows(make_texts(50, 50), 10)
    texts = cut_into_windows(make_texts(50, 51), 10)
    assert np.isfinite(Fusion([Mahalanobis()], sentences=True).fit(windows).score_samples(texts)).all()
    few = cut_into_windows(make_texts(30, 52), 10)
    with pytest.raises(InputError, match="holds out at least 20 documents, which leaves 10 to learn from"):
        Fusion([Mahalanobis()], sentences=True).fit(few)
    Fusion([Mahalanobis()]).fit(few)


def test_contributions_to_a_side_that_does_not_decide_are_0(fitted):
    explained = fitted.explain(TokenBatch.concatenate([make_texts(10, 53, planted=True), make_texts(5, 54, shift=3e4)]))
    silent = (torch.stack([member.share for member in explained.members[:-1]]) == 0).all(0)
    assert silent.any() and not silent.all()
    for quiet, own in zip(silent, explained.contributions, strict=True):
        assert bool((own == 0).all()) == bool(quiet)


def test_fewer_texts_than_are_held_out_are_refused():
    with pytest.raises(InputError, match=r"windows of 15 documents.*leaves 0 to learn from"):
        Fusion([Mahalanobis()], sentences=True).fit(cut_into_windows(make_texts(15, 55), 10))
