"""Scores of texts from those of their windows: what cannot be judged is refused."""

import numpy as np
import pytest
import torch

from apood import Coherence, Length
from apood.serving.shared.verdicts import Judged, decide
from apood.tokens.batch import Ragged, TokenBatch


def make_windows(*scores: float) -> Judged:
    return Judged(np.array(scores), [None] * len(scores), [1] * len(scores))


def make_detector() -> Length:
    fitted, held_out = (
        TokenBatch.from_sequences([np.full((length, 2), value, dtype=np.float32) for length in range(1, 101)])
        for value in (1, 2)
    )
    return Length().fit(fitted).calibrate(held_out, accept=0.5)


def test_a_text_has_the_score_of_its_worst_window():
    judged = Judged.gather(2, [0, 1, 0], [make_windows(3.0, 2.0), make_windows(1.0)], {})
    assert judged.scores.tolist() == [1.0, 2.0]
    assert judged.windows == [2, 1] and judged.problems == [None, None]


def test_a_text_without_windows_is_refused():
    judged = Judged.gather(3, [0], [make_windows(1e9)], {1: "is too long"})
    assert judged.scores.tolist() == [1e9, -np.inf, -np.inf]
    assert judged.problems == [None, "is too long", "could not be scored"]
    accepted, *refused = decide(make_detector(), judged, "input")
    assert accepted.accepted and not any(verdict.accepted for verdict in refused)
    assert refused[1].reason == "The input could not be scored."


@pytest.mark.parametrize("scores", [(np.nan,), (np.nan, 1e9), (1e9, np.nan)])
def test_a_text_with_a_score_that_is_nan_is_refused(scores: tuple[float, ...]):
    judged = Judged.gather(1, [0] * len(scores), [make_windows(*scores)], {})
    assert judged.scores.tolist() == [-np.inf]
    (verdict,) = decide(make_detector(), judged, "input")
    assert not verdict.accepted
    assert verdict.reason == "The input has a score that is not a number."


def test_texts_without_any_window_at_all():
    assert Judged.gather(2, [], [], {}).scores.tolist() == [-np.inf, -np.inf]


def test_the_score_of_sentences_is_not_said_to_be_that_of_a_window():
    rows = torch.randn(480, 5, generator=torch.Generator().manual_seed(0)).abs() + 1
    texts = TokenBatch.without_tokens(sentences=Ragged.from_lengths(rows, [4] * 120))
    detectors = make_detector(), Coherence().fit(texts[:60]).calibrate(texts[60:])
    reasons = [decide(own, Judged(np.array([-1e9]), [None], [3]), "input")[0].reason for own in detectors]
    assert "its score -1e+09 in the worst of its 3 windows is below" in reasons[0]
    assert "its score -1e+09 in the worst of its sentences and 3 windows is below" in reasons[1]
