"""How suspicious each sentence of a text is by itself.

The contributions of tokens say what a distance is made of. Which sentence is foreign is told better by the distance of
its own tokens, pooled without the rest of the text, and best by how little it fits the others, if the detector compares
sentences (benchmarks/EXPLAIN.md). No model runs again for it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from apood.detectors.coherence import Coherence
from apood.detectors.contract.base import Detector
from apood.tokens.batch import Ragged, TokenBatch

__all__ = ["compare_sentences", "find_judge", "rate_sentences"]

_PIECES = (2, 4, 8, 16)  # how many pieces of equal length a text is cut into, one after the other
_LEAST = 2  # tokens of a piece
_MOST = 1e6  # a log distance that overflows; more than any other

Numbers = npt.NDArray[np.int64]
Ratings = npt.NDArray[np.float64]


def find_judge(detector: Detector) -> Coherence | None:
    """Return the detector, or the member of it, that compares the sentences of a text; None if there is none."""
    return next((one for one in _list_members(detector) if isinstance(one, Coherence)), None)


def compare_sentences(judge: Coherence, batch: TokenBatch, first: int, owners: Sequence[Numbers]) -> Ratings:
    """Return how little each sentence of a text fits the others, one number per sentence, NaN where it is not known.

    Args:
        judge: what compares them.
        batch: the sequences.
        first: the number of the first window of the text, which has all of its sentences.
        owners: for each window of the text, the sentence of each of its tokens, -1 for a token of none.
    """
    found, own = judge.rate_sentences(batch.select([first])).values.numpy(), np.concatenate(owners)
    present = np.bincount(own[own >= 0], minlength=1) > 0
    # if a sentence has no token of its own, it is not known which of the following ratings belongs to which sentence
    known = len(present) if present.all() else int(present.argmin())
    ratings = np.full(len(present), np.nan)
    if 1 < known <= len(found):
        ratings[:known] = found[:known]
    return ratings


def rate_sentences(detector: Detector, batch: TokenBatch, owners: Mapping[int, Numbers]) -> dict[int, Ratings]:
    """Return how suspicious the sentences of some sequences are by their own tokens, one number per sentence.

    It is the log distance of the sentence's own tokens (for a fusion minus the score), less that of pieces of the same
    text that are as long. Few tokens are always far away, so the shortest sentence would look most suspicious without
    this. 0 is usual for the text, and a sentence without tokens has NaN.

    Args:
        detector: a detector that explains.
        batch: the sequences.
        owners: by the number of a sequence, the sentence of each of its tokens, -1 for a token of none.
    """
    first, last = _find_sinks(detector)
    parts: list[tuple[int, Numbers]] = []  # the number of a sequence, and the places of some of its tokens
    shapes = []  # how many parts of each sequence are sentences, and how many are pieces
    for number, given in owners.items():
        own = given.copy()
        own[: int(first)] = own[len(own) - int(last) :] = -1  # sinks, which are not pooled
        sentences = [np.flatnonzero(own == sentence) for sentence in range(int(given.max(initial=-1)) + 1)]
        pieces = _cut(np.flatnonzero(own >= 0))
        parts += [(number, places) for places in (*sentences, *pieces)]
        shapes.append((number, len(sentences), len(pieces)))
    lengths, distances = np.array([len(places) for _, places in parts]), np.full(len(parts), np.nan)
    known = np.flatnonzero(lengths)
    if len(known):
        distances[known] = _measure(detector, batch, [parts[place] for place in known], first=first, last=last)
    rated, start = {}, 0
    for number, sentences_count, pieces_count in shapes:
        middle, stop = start + sentences_count, start + sentences_count + pieces_count
        usual = _predict(lengths[middle:stop], distances[middle:stop], lengths[start:middle])
        rated[number], start = distances[start:middle] - usual, stop
    return rated


def _list_members(detector: Detector) -> list[Detector]:
    return [detector, *vars(detector).get("members_", [])]


def _find_sinks(detector: Detector) -> tuple[bool, bool]:
    """Return whether the detector or a member of it leaves out the first and the last token of a sequence."""
    members = _list_members(detector)
    return any(member.skips_first_ for member in members), any(member.skips_last_ for member in members)


def _cut(places: Numbers) -> list[Numbers]:
    """Return pieces of several lengths, which cover the tokens at these places once per length."""
    sizes = {round(len(places) / count) for count in _PIECES}
    return [
        places[start : start + size]
        for size in sorted(sizes)
        if size >= _LEAST
        for start in range(0, len(places) - size + 1, size)
    ]


def _measure(
    detector: Detector, batch: TokenBatch, parts: Sequence[tuple[int, Numbers]], *, first: bool, last: bool
) -> Ratings:
    """Return the log distances of parts of sequences, each with the sinks of its sequence, which are left out again."""
    sequences = []
    for number, places in parts:
        tokens = batch.sequence(number)
        ends = (tokens[: int(first)], tokens[len(tokens) - int(last) :])
        sequences.append(torch.cat([ends[0], tokens[torch.from_numpy(places)], ends[1]]))
    numbers = [number for number, _ in parts]
    # a channel is about the whole text, so that its members say the same about all parts
    read = (detector.requires | detector.welcomes) & batch.channels.keys()
    channels = {name: batch.channels[name].select(numbers) for name in read}
    if (rows := channels.get("sentences")) is not None:
        # a single sentence is not compared: how badly one fits the whole text would hide what the parts differ in
        single = rows.lengths.clamp_max(1)
        channels["sentences"] = Ragged.from_lengths(rows.values[rows.offsets[:-1][single > 0]], single)
    scores = torch.from_numpy(detector._score_sequences(TokenBatch.from_sequences(sequences).with_channels(**channels)))
    distances: Ratings = detector.log_distances(scores).double().clamp(-_MOST, _MOST).numpy()
    return distances


def _predict(known: Numbers, distances: Ratings, lengths: Numbers) -> Ratings:
    """Return the log distances that are usual at these lengths: a line in the log length through the known ones."""
    if not len(known):
        return np.zeros(len(lengths))
    degree = min(1, len(np.unique(known)) - 1)
    line = np.polynomial.Polynomial.fit(np.log(known), distances, degree)
    usual: Ratings = line(np.log(np.maximum(lengths, 1)))
    return usual
