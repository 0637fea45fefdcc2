"""Judge a stream of texts or sounds: encode them portion by portion, score them, and decide."""

import warnings
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from apood.data.record import BadRecord, Record, Skipped
from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import find_nonempty, refuse_lacking
from apood.encoders.base.encoder import Encoder
from apood.encoders.embed import Portion, encode_portions, follow_encoder
from apood.pipeline.seen import Seen, count_tokens
from apood.support.errors import DataWarning
from apood.support.progress import progress_bar
from apood.tokens.documents import find_documents, make_document_mask

__all__ = ["Judgement", "judge_portion", "judge_records", "warn_of_unscored"]


class Judgement(NamedTuple):
    """What a detector says about one text.

    Attributes:
        score: its score, that of its worst window; -inf if it is empty or too long.
        p_value: its p-value; None if the detector is not calibrated.
        accepted: whether it is in-distribution; None if the detector is not calibrated.
        tokens: the number of tokens that were scored, in all windows.
        windows: the number of windows that were scored.
        truncated: whether only its beginning was scored.
        note: a sentence about a text that could not be scored, or has an unusual length; else None.
    """

    score: float
    p_value: float | None
    accepted: bool | None
    tokens: int
    windows: int
    truncated: bool
    note: str | None


def judge_records(
    records: Iterable[Record | BadRecord],
    encoder: Encoder,
    detector: Detector,
    *,
    seen: Seen | None = None,
    skipped: Skipped | None = None,
    total: int | None = None,
    ready: Callable[[], bool] = lambda: True,
) -> Generator[tuple[Record, Judgement]]:
    """Yield each good record with its judgement, in order.

    While the encoder runs on a GPU, the portion before is judged in another thread (see `follow_encoder`).

    An empty text, and one that the encoder refuses because of its length, has the score -inf and is
    out-of-distribution. Warnings at the end count such texts.

    Args:
        records: the records. Bad ones are added to `skipped`; if it is None, the first one raises an error.
        encoder: the encoder of the detector.
        detector: the detector.
        seen: the texts that it was fitted on, to notice texts of other lengths.
        skipped: where bad records are counted.
        total: the number of records, if known, to show the progress.
        ready: whether the next record can be read without waiting; if not, those before it are judged first.
    """
    judged = empty = refused = 0
    first_refused = ""
    with (
        closing(encode_portions(records, encoder, skipped, ready=ready)) as portions,
        progress_bar(total, "score", unit="rec", forecast=True) as progress,
        follow_encoder(encoder) as background,
    ):
        for rows in background.map(partial(judge_portion, detector=detector, seen=seen), portions, ready):
            for record, judgement, nothing in rows:
                judged += 1
                empty += nothing
                if judgement.windows == 0 and not nothing:
                    refused += 1
                    first_refused = first_refused or str(judgement.note)
                yield record, judgement
            progress.update(len(rows))
    warn_of_unscored(judged, empty, refused, detector.requires, first_refused)


def warn_of_unscored(judged: int, empty: int, too_long: int, requires: Collection[str], first: str = "") -> None:
    """Warn if some of the inputs that were judged could not be scored; `first` is the note of one that is too long."""
    if empty:
        warnings.warn(
            f"{empty} of {judged} inputs are empty or have no {' or '.join(sorted(requires))}; their score is -inf and "
            "their decision OOD.",
            DataWarning,
            stacklevel=3,
        )
    if too_long:
        warnings.warn(
            f"{too_long} of {judged} texts are too long to be scored; their score is -inf and their decision OOD."
            f"{first and f' The first: {first}'}",
            DataWarning,
            stacklevel=3,
        )


def judge_portion(portion: Portion, detector: Detector, seen: Seen | None) -> list[tuple[Record, Judgement, bool]]:
    """Return each record with its judgement, and whether there is nothing in it to score."""
    batch = portion.batch
    starts = find_documents(batch)
    whole = np.zeros(len(starts), dtype=np.bool_)
    if len(starts):
        refuse_lacking(batch, detector.name, detector.requires, "data to score")
        whole = np.logical_and.reduceat(find_nonempty(batch, detector.requires).numpy(), starts)
    scores = np.full(len(starts), -np.inf)
    if whole.any():  # the detector would warn of empty texts in every portion; one warning follows at the end
        given = batch if whole.all() else batch.select(make_document_mask(batch, whole))
        scores[whole] = detector.score_samples(given)
    tokens, windows = count_tokens(batch), np.diff(starts, append=len(batch))
    documents = iter(range(len(starts)))
    rows: list[tuple[float, int, int, bool, str | None, bool]] = []
    for place, record in enumerate(portion.records):
        if (bad := portion.refused.get(place)) is not None:
            rows.append((-np.inf, 0, 0, False, bad.reason, False))
            continue
        at = next(documents)
        # An empty text is OOD, even if the tokenizer adds special tokens to it.
        if _is_empty(record.item) or not whole[at]:
            rows.append((-np.inf, int(tokens[at]), int(windows[at]), at in portion.cut, "It is empty.", True))
            continue
        note = None if seen is None else seen.describe_length(int(tokens[at]))
        rows.append((float(scores[at]), int(tokens[at]), int(windows[at]), at in portion.cut, note, False))
    found = np.array([row[0] for row in rows])
    p_values, accepted = [None] * len(rows), [None] * len(rows)
    if hasattr(detector, "threshold_"):
        calibration = detector.calibration  # read once, because another thread may calibrate the detector meanwhile
        p_values, accepted = calibration.p_values(found).tolist(), calibration.accepts(found).tolist()
    return [
        (record, Judgement(score, p_value, decision, count, parts, cut, note), nothing)
        for record, (score, count, parts, cut, note, nothing), p_value, decision in zip(
            portion.records, rows, p_values, accepted, strict=True
        )
    ]


def _is_empty(item: Any) -> bool:
    """Return whether a text, or one text of a pair, has nothing but white space."""
    texts = (item,) if isinstance(item, str) else item if isinstance(item, tuple) else ()
    return any(not text.strip() for text in texts)
