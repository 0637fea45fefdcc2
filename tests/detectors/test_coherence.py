"""Coherence: its formula, the sentence that it finds, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from comparisons import assert_same_scores
from hypothesis import given
from hypothesis import strategies as st

import apood
from apood import Coherence, TokenBatch
from apood.support.errors import InputError
from apood.tokens.batch import Ragged

DIM = 8
COUNTS = [2, 3, 4, 5, 6, 7]


def make_rows(texts: int, seed: int, foreign: bool = False, dim: int = DIM) -> Ragged:
    """Return sentences of texts with a topic each; if `foreign`, the second sentence of a text has another topic."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(COUNTS)[torch.randint(len(COUNTS), (texts,), generator=generator)]
    topics = 3 * torch.randn(texts, dim, generator=generator).repeat_interleave(counts, 0)
    if foreign:
        topics[counts.cumsum(0) - counts + 1] = 3 * torch.randn(texts, dim, generator=generator)
    vectors = topics + torch.randn(len(topics), dim, generator=generator)
    words = torch.randint(2, 40, (len(topics), 1), generator=generator)
    return Ragged.from_lengths(torch.cat([words, vectors], 1), counts)


def make_batch(rows: Ragged) -> TokenBatch:
    return TokenBatch.without_tokens(sentences=rows)


def make_texts(texts: int, seed: int, foreign: bool = False) -> TokenBatch:
    return make_batch(make_rows(texts, seed, foreign))


@pytest.fixture(scope="module")
def fitted() -> Coherence:
    return Coherence().fit(make_texts(300, 0))


def allow(law, length: float) -> float:
    """Return the value of a law of lengths at one length, in plain Python."""
    (b, c, constant), log = law.curves[0], math.log(length)
    u, end = (max(log, law.shortest) - law.mean) / law.spread, (law.longest - law.mean) / law.spread
    inside, beyond = min(u, end), max(u - end, 0)
    return b * inside + c * inside**2 - constant + beyond * min(b + 2 * c * end, 0)


def rate_plainly(detector: Coherence, rows: torch.Tensor) -> list[float]:
    """Return z_i of the sentences of a text, from the definition."""
    units = []
    for row in rows.double():
        white = detector.whitening_ @ (row[1:] - detector.centre_)
        units.append(white / math.sqrt(float(white @ white)))
    rates = []
    for i, row in enumerate(rows):
        rest = sum((u for j, u in enumerate(units) if j != i), torch.zeros(DIM, dtype=torch.float64))
        cosine = float(units[i] @ rest) / math.sqrt(float(rest @ rest))
        usual = -detector.misfit_ - allow(detector.sentence_law_, float(row[0]))
        spread = math.exp(detector.log_spread_ + allow(detector.spread_law_, float(row[0])))
        rates.append((usual - cosine) / spread)
    return rates


@pytest.mark.parametrize("foreign", [False, True])
def test_the_score_is_its_definition(fitted, foreign):
    batch = make_texts(40, 1, foreign)
    rows, rates, scores = batch.channels["sentences"], fitted.rate_sentences(batch), fitted.score_samples(batch)
    for own, found, score in zip(rows, rates, scores, strict=True):
        expected = rate_plainly(fitted, own)
        assert found.tolist() == pytest.approx(expected, abs=1e-9)
        assert score == pytest.approx(fitted.worst_ + allow(fitted.count_law_, len(own)) - max(expected), abs=1e-9)


def test_what_is_usual_is_that_of_the_id_texts(fitted):
    """New ID texts have the score 0 on average, and their sentences a mean deviation of 1 from what is usual."""
    batch = make_texts(4000, 2)
    scores, rates = fitted.score_samples(batch), fitted.rate_sentences(batch)
    assert abs(scores.mean()) < 0.25
    assert abs(float(rates.values.mean())) < 0.15 and 0.8 < float(rates.values.abs().mean()) < 1.25
    counts = batch.channels["sentences"].lengths.numpy()
    for few in COUNTS:
        assert abs(scores[counts == few].mean()) < 0.4, "neither few sentences nor many are suspicious"


def test_a_foreign_sentence_is_found_and_named(fitted):
    inside, outside = make_texts(300, 3), make_texts(300, 3, foreign=True)
    several = outside.channels["sentences"].lengths > 2  # of two sentences, either may be the foreign one
    scores, others = fitted.score_samples(outside)[several.numpy()], fitted.score_samples(inside)
    assert (scores[:, None] < others[None]).mean() > 0.85
    named = [int(row.argmax()) for row, own in zip(fitted.rate_sentences(outside), several, strict=True) if own]
    assert np.mean([place == 1 for place in named]) > 0.8


def test_a_single_sentence_is_not_judged(fitted):
    rows = Ragged.from_lengths(make_rows(20, 4).values[:20], [1] * 20)
    batch = make_batch(rows)
    assert fitted.score_samples(batch).tolist() == [0.0] * 20
    assert fitted.rate_sentences(batch).values.tolist() == [0.0] * 20
    mixed = make_batch(Ragged.concatenate([rows, make_rows(10, 5)]))
    assert np.array_equal(fitted.score_samples(mixed)[20:], fitted.score_samples(make_texts(10, 5)))


def test_texts_of_one_sentence_do_not_change_what_is_usual_for_several():
    several, single = make_rows(100, 6), Ragged.from_lengths(make_rows(100, 7).values[:100], [1] * 100)
    scores = Coherence().fit(make_batch(Ragged.concatenate([several, single]))).score_samples(make_texts(300, 8))
    assert abs(scores.mean()) < 0.3


def test_a_score_depends_on_its_text_alone():
    """The same but for rounding, with vectors as long as those of real models."""
    train, batch = (make_batch(make_rows(*given, dim=384)) for given in ((300, 0), (60, 9)))
    fitted = Coherence().fit(train)
    scores = fitted.score_samples(batch)
    assert_same_scores(np.concatenate([fitted.score_samples(batch[i : i + 1]) for i in range(60)]), scores)
    assert_same_scores(fitted.score_samples(batch.select(torch.arange(59, -1, -1))), scores[::-1])


@given(st.permutations(range(6)), st.integers(0, 30))
def test_the_order_of_sentences_does_not_matter(order, seed):
    detector = _DETECTOR
    generator = torch.Generator().manual_seed(seed)
    rows = torch.cat([torch.full((6, 1), 7.0), torch.randn(6, DIM, generator=generator)], 1)
    plain, shuffled = (make_batch(Ragged.from_lengths(own, [6])) for own in (rows, rows[order]))
    assert detector.score_samples(shuffled) == pytest.approx(detector.score_samples(plain), abs=1e-9)
    rates = detector.rate_sentences(plain).values[order]
    assert detector.rate_sentences(shuffled).values.tolist() == pytest.approx(rates.tolist(), abs=1e-9)


_DETECTOR = Coherence().fit(make_texts(300, 0))


@given(st.integers(0, 1000), st.sampled_from([0.01, 1.0, 50.0]))
def test_rotations_moves_and_scales_of_the_space_change_nothing(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator, dtype=torch.float64))[0]
    move = torch.randn(DIM, generator=generator, dtype=torch.float64)

    def turn(batch):
        rows = batch.channels["sentences"]
        vectors = scale * (rows.values[:, 1:].double() @ rotation.T + move)
        return make_batch(Ragged(torch.cat([rows.values[:, :1].double(), vectors], 1), rows.offsets))

    test = make_texts(20, 10, foreign=True)
    turned = Coherence().fit(turn(make_texts(300, 0))).score_samples(turn(test))
    np.testing.assert_allclose(turned, _DETECTOR.score_samples(test), atol=1e-6)


def test_a_vector_of_any_size_has_a_direction(fitted):
    """Only the direction of a sentence matters, and it is not lost where squares overflow."""
    rows = make_rows(3, 11).values[:4].double()
    large, huge = rows.clone(), rows.clone()
    large[0, 1:] *= 1e20
    huge[0, 1:] *= 1e300
    scores = [fitted.score_samples(make_batch(Ragged.from_lengths(own, [4]))) for own in (large, huge)]
    assert np.isfinite(scores).all() and scores[0] == pytest.approx(scores[1])


def test_it_is_saved_and_loaded(fitted, tmp_path):
    test = make_texts(30, 12, foreign=True)
    fitted.save(tmp_path / "detector")
    loaded = apood.load(tmp_path / "detector")
    assert isinstance(loaded, Coherence)
    assert np.array_equal(loaded.score_samples(test), fitted.score_samples(test))
    assert torch.equal(loaded.rate_sentences(test).values, fitted.rate_sentences(test).values)


def test_a_second_fit_may_have_vectors_of_another_length():
    detector = Coherence().fit(make_texts(60, 13))
    rows = make_rows(60, 14)
    detector.fit(make_batch(Ragged(rows.values[:, :-2], rows.offsets)))
    assert detector.centre_.shape == (DIM - 2,)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_rows_of_another_shape_are_refused(shape):
    rows = Ragged.from_lengths(torch.ones(40, *shape), [2] * 20)
    sentence = r"^A row of sentences must be the number of tokens of a sentence and a vector, got shape \["
    with pytest.raises(InputError, match=sentence):
        Coherence().fit(make_batch(rows))
    with pytest.raises(InputError, match=sentence):
        _DETECTOR.score_samples(make_batch(rows))


def test_vectors_of_another_length_are_refused(fitted):
    rows = make_rows(3, 15)
    other = make_batch(Ragged(rows.values[:, :-1], rows.offsets))
    for action in (fitted.score_samples, fitted.rate_sentences):
        with pytest.raises(InputError, match=r"^The sentences have vectors of 7 numbers, .* was fitted on 8\.$"):
            action(other)


def test_sentences_without_tokens_are_refused(fitted):
    rows = make_rows(30, 16)
    rows.values[int(rows.offsets[11]) + 1, 0] = 0
    sentence = "^Sequence 11 of the {} has a sentence with less than one token"
    with pytest.raises(InputError, match=sentence.format("ID data")):
        Coherence().fit(make_batch(rows))
    with pytest.raises(InputError, match=sentence.format("data to score")):
        fitted.score_samples(make_batch(rows))


@pytest.mark.parametrize("several", [0, 19, 20])
def test_too_few_texts_of_several_sentences_are_refused(several):
    generator = torch.Generator().manual_seed(0)
    counts = [2] * several + [1] * 50
    values = torch.randn(sum(counts), 1 + DIM, generator=generator)
    values[:, 0] = 5
    batch = make_batch(Ragged.from_lengths(values, counts))
    if several == 20:
        assert np.isfinite(Coherence().fit(batch).score_samples(batch)).all()
        return
    with pytest.raises(InputError, match=rf"needs at least 20 ID texts of two or more sentences, got {several} among"):
        Coherence().fit(batch)


def test_the_law_is_learnt_from_texts_of_several_sentences_however_rare_they_are(monkeypatch):
    monkeypatch.setattr("apood.detectors.coherence._LAW_TEXTS", 30)
    generator = torch.Generator().manual_seed(0)
    counts = ([2] + [1] * 9) * 30
    values = torch.randn(sum(counts), 1 + DIM, generator=generator)
    values[:, 0] = 5
    batch = make_batch(Ragged.from_lengths(values, counts))
    assert np.isfinite(Coherence().fit(batch).score_samples(batch)).all()


def test_rows_may_be_integers():
    rows = Ragged.from_lengths(
        torch.randint(1, 50, (120, 1 + DIM), generator=torch.Generator().manual_seed(0)), [4] * 30
    )
    plain = make_batch(Ragged(rows.values.float(), rows.offsets))
    assert np.array_equal(
        Coherence().fit(make_batch(rows)).score_samples(plain), Coherence().fit(plain).score_samples(plain)
    )


def test_sentences_that_are_all_the_same_are_refused():
    rows = Ragged.from_lengths(torch.full((60, 1 + DIM), 3.0), [2] * 30)
    with pytest.raises(InputError, match="same"):
        Coherence().fit(make_batch(rows))


def test_data_without_sentences_are_named():
    batch = TokenBatch.from_lengths(torch.randn(40, 3), [2] * 20)
    with pytest.raises(InputError, match=r"^The method coherence needs sentences, which the ID data lack; they have"):
        Coherence().fit(batch)


def number_windows(batch: TokenBatch, numbers: list[int]) -> TokenBatch:
    return batch.with_channels(window=Ragged.from_lengths(torch.tensor(numbers, dtype=torch.int32), [1] * len(batch)))


def test_windows_whose_first_one_was_left_out_are_texts():
    """They are documents in every other respect, too."""
    texts = make_texts(60, 17)
    plain, left = Coherence().fit(texts), Coherence().fit(number_windows(texts, [1] * 60))
    assert np.array_equal(left.score_samples(texts), plain.score_samples(texts))


def test_the_sentences_of_many_long_texts_are_not_in_memory_at_once(monkeypatch):
    """The first window of a text has all its sentences, so few first windows at a time are compared."""
    texts, windows, sentences, tokens = 30, 8, 40, 10
    generator = torch.Generator().manual_seed(0)
    counts = [sentences, *[1] * (windows - 1)] * texts
    rows = torch.cat([torch.full((sum(counts), 1), 5.0), torch.randn(sum(counts), DIM, generator=generator)], 1)
    batch = TokenBatch.from_lengths(torch.zeros(texts * windows * tokens, 2), [tokens] * (windows * texts))
    batch = number_windows(batch.with_channels(sentences=Ragged.from_lengths(rows, counts)), [*range(windows)] * texts)
    compared = []
    original = Coherence._compare
    monkeypatch.setattr(
        Coherence, "_compare", lambda self, own: compared.append(len(own.values)) or original(self, own)
    )
    monkeypatch.setattr("apood.detectors.coherence.token_budget", lambda _: windows * tokens)
    Coherence().fit(batch)
    assert sum(compared) == texts * sentences and max(compared) == sentences


def test_ratings_refuse_what_scores_refuse_and_say_where(fitted):
    rows = make_rows(1100, 18)  # more than one batch
    for row, value, sentence in (
        (1, math.nan, r"^Row 0 of sentences of sequence 1050 in the data to rate is NaN or infinite"),
        (0, 0.0, "^Sequence 1050 of the data to rate has a sentence with less than one token"),
    ):
        values = rows.values.clone()
        values[int(rows.offsets[1050]), row] = value
        with pytest.raises(InputError, match=sentence):
            fitted.rate_sentences(make_batch(Ragged(values, rows.offsets)))


def test_no_texts_have_no_ratings(fitted):
    assert len(fitted.rate_sentences(make_texts(3, 19)[:0])) == 0


def test_a_text_of_several_windows_scores_0_at_most(fitted):
    """Its first window is compared as ever; the others have one sentence each."""
    texts, single = make_rows(50, 20), Ragged.from_lengths(make_rows(50, 21).values[:50], [1] * 50)
    both = Ragged.concatenate([texts, single]).select([number + 50 * part for number in range(50) for part in (0, 1)])
    whole = fitted.score_samples(make_batch(texts))
    assert fitted.score_samples(number_windows(make_batch(both), [0, 1] * 50)).tolist() == np.minimum(whole, 0).tolist()
