"""Measure whether explanations are right: on news articles with one foreign sentence, against leaving sentences out.

    python -m benchmarks.explain DATA MODEL --train 500 --skip 200 --texts 200 [--device cuda]

DATA is a folder with the sets of real text that `_ID` and `_FOREIGN` name: one JSON object per line, compressed with
gzip, the text in the field `text` or `en`. MODEL is a folder or a hub id. The default detector learns from the first
ten sentences of articles. Each test text has nine sentences of another article and one of a foreign set, at a random
place. The command prints a section of benchmarks/EXPLAIN.md:

- how often the foreign sentence ranks first: by its suspicion, as explanations rank sentences; by how little it fits
  the others, as explanations of a detector with `sentences=True` rank them; by the mean mark of its tokens; by the mean
  contribution of all members; by leaving each sentence out and encoding the rest again, which is the usual way; by
  leaving out its tokens and pooling the rest again, without the encoder; by the attention weights of AP-OOD alone; by
  taking the shortest sentence, because few tokens are always far away; by chance;
- the time of ranking sentences by suspicion, of whole explanations, and of leaving sentences out, encoding included, in
  the same run: CPU time of one thread, or on a GPU the time by the clock;
- the AUROC of telling tokens of the foreign sentence from the others of the text, by marks, by all contributions, by
  the attention weights alone, by the suspicion of their sentence, and by random numbers;
- how much the score rises if the most suspicious words are deleted, or as many random ones.
"""

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.coherence import Coherence
from apood.detectors.fusion import Fusion, default_detector
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.metrics import auroc
from apood.experiments.text.splices import split_sentences
from apood.explain.explaining import choose_marks, explain_texts
from apood.explain.sentences import compare_sentences, rate_sentences
from apood.explain.spans import Span, find_owners, sum_tokens
from apood.pooling.algebra import similarities_and_logits
from apood.support.device import resolve_device
from apood.tokens.batch import TokenBatch

__all__: list[str] = []

Numbers = np.ndarray[Any, np.dtype[np.float64]]

_ID = "summarization/xsum_train", "summarization/xsum_test"
_FOREIGN = (
    "summarization/samsum", "summarization/reddit_tifu", "summarization/cnn_dailymail", "summarization/reuters",
    "translation/koran", "translation/it", "translation/subtitles",
    "language_model/tweets", "language_model/clinical_notes", "language_model/annual_reports",
)  # fmt: skip
_SENTENCES, _LONGEST, _DONORS = 9, 1600, 300  # sentences and characters of a host, texts of a foreign set
_DELETED = (0.05, 0.1, 0.2)  # shares of the words
_SHORTEST = 3  # sentences that may be taken for foreign because they are short
_WARM_UP = 8  # texts that are explained before any time is taken


@dataclass(frozen=True)
class Spliced:
    """A text with one foreign sentence.

    Attributes:
        sentences: all sentences in their order.
        foreign: the number of the foreign one.
    """

    sentences: tuple[str, ...]
    foreign: int

    @property
    def text(self) -> str:
        """The whole text."""
        return " ".join(self.sentences)

    @property
    def spans(self) -> list[Span]:
        """The places of the sentences in the text."""
        ends = np.cumsum([len(sentence) + 1 for sentence in self.sentences])
        return [Span(int(end) - len(own) - 1, int(end) - 1) for end, own in zip(ends, self.sentences, strict=True)]

    def leave_out(self) -> list[str]:
        """Return the text without each of its sentences in turn."""
        return [" ".join(self.sentences[:n] + self.sentences[n + 1 :]) for n in range(len(self.sentences))]


def read_texts(data: Path, name: str) -> Iterator[str]:
    """Yield the texts of a set."""
    with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield row.get("text") or row["en"]


def splice_texts(data: Path, count: int) -> list[Spliced]:
    """Return hosts with one sentence each of the foreign sets in turn, at random places.

    The first ones are the same for every count.
    """
    dice = random.Random(0)
    donors = []
    for name in _FOREIGN:
        sentences = [
            s for _, text in zip(range(_DONORS), read_texts(data, name), strict=False) for s in split_sentences(text)
        ]
        donors.append([s for s in sentences if 6 <= len(s.split()) <= 40 and len(s) < 300])
    spliced: list[Spliced] = []
    for text in read_texts(data, _ID[1]):
        host = split_sentences(text)[:_SENTENCES]
        if len(host) == _SENTENCES and len(" ".join(host)) <= _LONGEST:
            place, foreign = dice.randrange(_SENTENCES + 1), dice.choice(donors[len(spliced) % len(donors)])
            spliced.append(Spliced((*host[:place], foreign, *host[place:]), place))
        if len(spliced) == count:
            break
    return spliced


def attend(detector: Fusion, batch: TokenBatch) -> list[Numbers]:
    """Return the attention of each token of each sequence: the mean over heads of its softmax weights."""
    member = next(member for member in detector.members_ if isinstance(member, APOOD))
    device = resolve_device(member.device)
    queries, preprocessing = member.queries_.to(device), member._make_preprocessing(device)
    weights = []
    for sequence in batch:
        kept = member.find_kept(len(sequence))
        z = preprocessing.apply(sequence[kept].to(device).float())
        _, logits = similarities_and_logits(z, queries, member.beta_, member.similarity)
        own = np.zeros(len(sequence))
        own[kept] = torch.softmax(logits.flatten(1), 1).view_as(logits).sum(1).mean(0).cpu().numpy()
        weights.append(own)
    return weights


def rank_first(ranked: Sequence[Any], texts: Sequence[Spliced]) -> float:
    """Return how often the foreign sentence has the largest number."""
    return float(np.mean([int(np.nanargmax(own)) == text.foreign for own, text in zip(ranked, texts, strict=True)]))


class Stopwatch:
    """The time of a block: CPU time, or on a GPU the time by the clock until all its work is done."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device.startswith("cuda")
        self.seconds = 0.0

    def _read(self) -> float:
        if not self._on_gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def __enter__(self) -> Self:
        self._started = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._read() - self._started


def measure_ranks(
    detector: Fusion, judge: Coherence, encoder: TextEncoder, texts: Sequence[Spliced], device: str
) -> list[tuple[str, str]]:
    """Return rows about ranks, costs and tokens."""
    given = [text.text for text in texts]
    explain_texts(detector, encoder, given[:_WARM_UP])
    with Stopwatch(device) as ranking:
        batch, places = encoder.encode(given), encoder.locate(given)
        assert len(batch) == len(texts), "a text has several windows"
        owners = [find_owners(t.text, t.spans, own.numpy()) for t, own in zip(texts, places, strict=True)]
        suspicions = list(rate_sentences(detector, batch, dict(enumerate(owners))).values())
    with Stopwatch(device) as explaining:
        explain_texts(detector, encoder, given)
    with Stopwatch(device) as leaving:
        scores = detector.score_samples(encoder.encode([own for text in texts for own in text.leave_out()]))
    # a foreign sentence without a full stop is one with the next sentence for the encoder: then the first one is named
    fits = [np.nan_to_num(compare_sentences(judge, batch, number, [own])) for number, own in enumerate(owners)]
    left_out = np.split(scores, np.cumsum([len(text.sentences) for text in texts])[:-1])

    explanation = detector.explain(batch)
    columns = {
        "marks": [own.numpy() for own in choose_marks(explanation).contributions],
        "contributions of all members": [own.numpy() for own in explanation.contributions],
        "attention weights alone": attend(detector, batch),
        "suspicion of their sentence": [
            np.nan_to_num(rated)[own] for rated, own in zip(suspicions, owners, strict=True)
        ],
        "random numbers": [np.random.default_rng(n).random(len(own)) for n, own in enumerate(places)],
    }
    means = {name: average(column, owners, texts) for name, column in columns.items()}
    tokens = {
        name: np.mean(
            [
                auroc(values[own == text.foreign], values[(own >= 0) & (own != text.foreign)]).value
                for text, own, values in zip(texts, owners, column, strict=True)
            ]
        )
        for name, column in columns.items()
    }
    counts = [
        np.bincount(own[own >= 0], minlength=len(text.sentences)) for own, text in zip(owners, texts, strict=True)
    ]
    fair = [
        place
        for place, (own, text) in enumerate(zip(counts, texts, strict=True))
        if (own < own[text.foreign]).sum() >= _SHORTEST
    ]

    def rank(ranked: Sequence[Any]) -> str:
        few = rank_first([ranked[place] for place in fair], [texts[place] for place in fair])
        return f"{rank_first(ranked, texts):.3f}, {few:.3f}"

    by_suspicion, by_leaving = rank_first(suspicions, texts), rank_first(left_out, texts)
    error = 2 * np.sqrt(0.25 / len(texts))
    kind = "time" if device.startswith("cuda") else "CPU time"
    return [
        ("foreign sentence first, by suspicion", f"{rank(suspicions)} (the first ± {error:.2f} at most)"),
        ("by how little it fits the others", rank(fits)),
        ("by the mean mark of its tokens", rank(means["marks"])),
        ("by the mean contribution of all members", rank(means["contributions of all members"])),
        ("by leaving each sentence out, encoding again", rank(left_out)),
        ("by leaving its tokens out, pooling again", rank(repool(detector, batch, owners, texts))),
        ("by the attention weights alone", rank(means["attention weights alone"])),
        ("by taking the shortest sentence", rank([-own for own in counts])),
        ("by chance", f"{np.mean([1 / len(text.sentences) for text in texts]):.3f}"),
        (
            "suspicion / leaving out, how often",
            f"{by_suspicion / by_leaving:.2f}" if by_leaving else "leaving out: never",
        ),
        (f"suspicion / leaving out, {kind}", compare_times(ranking, leaving)),
        (f"whole explanations / leaving out, {kind}", compare_times(explaining, leaving)),
        *((f"AUROC of tokens, {name}", f"{value:.3f}") for name, value in tokens.items()),
    ]


def compare_times(own: Stopwatch, other: Stopwatch) -> str:
    """Return two times and their ratio."""
    return f"{own.seconds:.1f} s / {other.seconds:.1f} s = {own.seconds / other.seconds:.3f}"


def average(column: Sequence[Numbers], owners: Sequence[Any], texts: Sequence[Spliced]) -> list[list[float]]:
    """Return the mean over the tokens of each sentence."""
    return [
        [span.contribution / max(span.tokens, 1) for span in sum_tokens(text.spans, own, values)]
        for text, own, values in zip(texts, owners, column, strict=True)
    ]


def repool(detector: Fusion, batch: TokenBatch, owners: Sequence[Any], texts: Sequence[Spliced]) -> list[Numbers]:
    """Return the scores of each text without the tokens of each sentence; the summary stays that of the whole text."""
    found = []
    for number, (text, own) in enumerate(zip(texts, owners, strict=True)):
        parts = [batch.sequence(number)[torch.from_numpy(own != place)] for place in range(len(text.sentences))]
        rest = TokenBatch.from_sequences(parts)
        if "summary" in batch.channels:
            rest = rest.with_channels(summary=batch.channels["summary"].select([number] * len(parts)))
        found.append(detector.score_samples(rest))
    return found


def measure_deletion(detector: Fusion, encoder: TextEncoder, texts: Sequence[Spliced]) -> list[tuple[str, str]]:
    """Return rows about how much the mean score rises if words are deleted."""
    given = [text.text for text in texts]
    explanations = explain_texts(detector, encoder, given)
    before = np.array([explanation.score for explanation in explanations])
    rows = []
    for share in _DELETED:
        rises = []
        for order in ("marks", "random"):
            dice = random.Random(1)
            rest = []
            for explanation in explanations:
                words = list(explanation.words)
                ranked = sorted(words, key=lambda word: -word.contribution)
                if order == "random":
                    dice.shuffle(ranked)
                gone = set(ranked[: round(share * len(words))])
                rest.append(" ".join(explanation.cut(word) for word in words if word not in gone))
            rises.append(float((detector.score_samples(encoder.encode(rest)) - before).mean()))
        rows.append(
            (f"rise of the score without {share:.0%} of the words", f"{rises[0]:+.2f}, at random {rises[1]:+.2f}")
        )
    return rows


def main() -> None:
    """Measure, and print a section of the results page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--train", type=int, default=500, help="articles to learn from")
    parser.add_argument("--skip", type=int, default=0, help="texts with a foreign sentence to leave out first")
    parser.add_argument("--texts", type=int, default=200, help="texts with a foreign sentence")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = TextEncoder(options.model, device=options.device)
    articles = [
        " ".join(split_sentences(text)[:10])
        for _, text in zip(range(options.train), read_texts(options.data, _ID[0]), strict=False)
    ]
    tokens = encoder.encode(articles)
    detector, judge = default_detector(device=options.device).fit(tokens), Coherence().fit(tokens)
    assert isinstance(detector, Fusion)
    spliced = splice_texts(options.data, options.skip + options.texts)[options.skip :]
    texts = [text for text in spliced if len(encoder.locate([text.text])) == 1]  # those of one window
    rows = measure_ranks(detector, judge, encoder, texts, options.device) + measure_deletion(detector, encoder, texts)
    print(f"## {Path(options.model).name}: {len(articles)} articles to learn from, {len(texts)} spliced texts\n")
    print("| measurement | value |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
