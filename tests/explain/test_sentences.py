"""How suspicious sentences are: the foreign one is found, whatever its length, and sinks play no part."""

import numpy as np
import pytest
import torch
from builders import correlated_sequences

from apood import APOOD, KNN, Coherence, Fusion, Mahalanobis
from apood.explain.sentences import compare_sentences, find_judge, rate_sentences
from apood.tokens.batch import Ragged, TokenBatch

LENGTHS = (20, 5, 12, 3, 9, 15)
TOTAL = sum(LENGTHS)
OWNERS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)


@pytest.fixture(scope="module")
def train():
    return correlated_sequences(120, 8, lengths=(30, 80))


@pytest.fixture(scope="module", params=["mahalanobis", "ap-ood", "fusion"])
def detector(request, train):
    made = {
        "mahalanobis": Mahalanobis(),
        "ap-ood": APOOD(steps=20, device="cpu"),
        "fusion": Fusion([APOOD(steps=20, device="cpu"), KNN()]),
    }
    return made[request.param].fit(train)


def make_text(seed, foreign=None, shift=2.5):
    tokens = correlated_sequences(1, 8, lengths=(TOTAL, TOTAL), seed=seed).values.clone()
    if foreign is not None:
        tokens[torch.from_numpy(foreign == OWNERS)] += shift
    return tokens


@pytest.mark.parametrize("foreign", range(len(LENGTHS)))
def test_the_foreign_sentence_is_found_be_it_long_or_short(detector, foreign):
    batch = TokenBatch.from_sequences([make_text(seed, foreign) for seed in range(20, 26)])
    rated = rate_sentences(detector, batch, dict.fromkeys(range(6), OWNERS))
    assert sum(int(np.argmax(own)) == foreign for own in rated.values()) >= 5


def test_no_length_is_suspicious_by_itself(detector):
    batch = TokenBatch.from_sequences([make_text(seed) for seed in range(40)])
    rated = np.stack(list(rate_sentences(detector, batch, dict.fromkeys(range(40), OWNERS)).values()))
    means, spread = rated.mean(0), rated.std()
    assert np.abs(means[[0, 5, 2, 4]]).max() < spread, "of sentences that are as long as a piece, or longer"
    most = np.bincount(rated.argmax(1), minlength=len(LENGTHS))
    assert most.max() < 25, "the shortest sentence is not always the worst"


def test_a_rating_does_not_depend_on_other_texts(detector):
    batch = TokenBatch.from_sequences([make_text(seed) for seed in range(3)])
    together = rate_sentences(detector, batch, dict.fromkeys(range(3), OWNERS))
    for number in range(3):
        alone = rate_sentences(detector, batch, {number: OWNERS})[number]
        np.testing.assert_allclose(together[number], alone, rtol=1e-5, atol=1e-5)


def test_sinks_and_special_tokens_play_no_part(train):
    """A first token that is a sink is left out, as in the score of the whole text."""
    sink = torch.full((1, 8), 50.0)
    plain = KNN().fit(train)
    sunk = KNN().fit(TokenBatch.from_sequences([torch.cat([sink, own]) for own in train]))
    assert sunk.skips_first_ and not plain.skips_first_
    text = make_text(3, foreign=2)
    expected = rate_sentences(plain, TokenBatch.from_sequences([text]), {0: OWNERS})[0]
    for first in (-1, 0):  # a special token, or the first word of the text
        owners = np.concatenate([[first], OWNERS])
        found = rate_sentences(sunk, TokenBatch.from_sequences([torch.cat([sink, text])]), {0: owners})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_sentence_without_tokens_is_not_rated(detector):
    owners = np.where(OWNERS == 1, -1, OWNERS)
    rated = rate_sentences(detector, TokenBatch.from_sequences([make_text(0)]), {0: owners})[0]
    assert np.isnan(rated).tolist() == [False, True, False, False, False, False]
    assert rate_sentences(detector, TokenBatch.from_sequences([make_text(0)]), {}) == {}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_texts_of_very_few_tokens_are_rated(detector, count):
    rated = rate_sentences(detector, TokenBatch.from_sequences([make_text(0)[:count]]), {0: np.arange(count)})[0]
    assert np.isfinite(rated).all() and len(rated) == count


def test_members_that_read_the_summary_of_the_text_say_the_same_about_all_sentences(train):
    def summarise(tokens):
        return tokens.with_channels(summary=Ragged.from_lengths(torch.ones(len(tokens), 8), [1] * len(tokens)))

    summaries = torch.randn(len(train), 8, generator=torch.Generator().manual_seed(0))
    given = train.with_channels(summary=Ragged.from_lengths(summaries, [1] * len(train)))
    detector = Fusion([KNN(), KNN(view="summary")]).fit(given)
    text = summarise(TokenBatch.from_sequences([make_text(5, foreign=4)]))
    rated = rate_sentences(detector, text, {0: OWNERS})[0]
    assert int(np.argmax(rated)) == 4


def make_compared(seed, foreign=None):
    """Return sentences of one topic with their channel; the foreign one has another topic."""
    generator = torch.Generator().manual_seed(seed)
    topics = (3 * torch.randn(1, 8, generator=generator)).expand(len(LENGTHS), 8).clone()
    if foreign is not None:
        topics[foreign] = 3 * torch.randn(8, generator=generator)
    rows = topics + torch.randn(len(LENGTHS), 8, generator=generator) / 3
    counts = torch.tensor(LENGTHS)
    sentences = Ragged.from_lengths(torch.cat([counts[:, None].float(), rows], 1), [len(LENGTHS)])
    tokens = rows.repeat_interleave(counts, 0) + torch.randn(TOTAL, 8, generator=generator)
    return TokenBatch.from_sequences([tokens]).with_channels(sentences=sentences)


@pytest.fixture(scope="module")
def compares():
    return Fusion([KNN()], sentences=True).fit(TokenBatch.concatenate([make_compared(n) for n in range(200)]))


def compare(detector, text, *owners):
    judge = find_judge(detector)
    assert isinstance(judge, Coherence)
    return compare_sentences(judge, text, 0, owners)


class TestADetectorThatComparesSentences:
    def test_it_is_found_among_the_members(self, compares):
        assert find_judge(compares) is compares.members_[-1] is find_judge(compares.members_[-1])
        assert find_judge(compares.members_[0]) is None

    def test_the_sentence_that_fits_least_is_the_most_suspicious(self, compares):
        rated = [compare(compares, make_compared(1000 + n, foreign=n % 6), OWNERS) for n in range(24)]
        assert sum(int(np.argmax(own)) == number % 6 for number, own in enumerate(rated)) >= 20

    def test_the_sentences_of_all_windows_are_rated_at_once(self, compares):
        """The first window has all of them; where they are does not matter."""
        text = make_compared(3, foreign=4)
        expected = compare(compares, text, OWNERS)
        assert expected.argmax() == 4 and not np.isnan(expected).any()
        parts = OWNERS[:30], np.concatenate([[-1], OWNERS[22:55]]), OWNERS[50:]
        assert np.array_equal(compare(compares, text, *parts), expected)

    def test_after_a_sentence_without_tokens_of_its_own_nothing_is_known(self, compares):
        """A token that spans two sentences belongs to the first: then no rating is known to be that of the second."""
        shifted = np.where(OWNERS >= 2, OWNERS + 1, OWNERS)
        rated = compare(compares, make_compared(3), shifted)
        assert np.isnan(rated).tolist() == [False, False, True, True, True, True, True]
        assert np.isnan(compare(compares, make_compared(3), OWNERS + 1)).all()

    def test_a_single_sentence_is_not_rated(self, compares):
        whole = make_compared(5)
        single = Ragged.from_lengths(whole.channels["sentences"].values[:1], [1])
        text = whole.with_channels(sentences=single)
        assert np.isnan(compare(compares, text, np.zeros(TOTAL, dtype=np.int64))).all()
        assert np.isnan(compare(compares, text, OWNERS)).all(), "or if there are fewer ratings than sentences"

    def test_ratings_by_tokens_do_not_depend_on_how_the_whole_text_fits(self, compares):
        """They are like those of the same fusion without `sentences`."""
        texts = TokenBatch.concatenate([make_compared(n) for n in range(200)])
        plain = Fusion([KNN()]).fit(TokenBatch(texts.values, texts.offsets))
        text = make_compared(3, foreign=4)
        rated, expected = (rate_sentences(one, text, {0: OWNERS})[0] for one in (compares, plain))
        assert np.corrcoef(rated, expected)[0, 1] > 0.99
