"""Measure whether marks are right: on news articles with one foreign sentence, against leaving sentences out.

    python -m benchmarks.explain DATA MODEL --train 800 --texts 200

DATA is a folder with the sets of real text that `_ID` and `_FOREIGN` name: one JSON object per line, compressed with
gzip, the text in the field `text` or `en`. MODEL is a folder or a hub id. The default detector learns from the first
ten sentences of articles. Each test text has nine sentences of another article and one of a foreign set, at a random
place. The command prints a section of benchmarks/EXPLAIN.md:

- how often the foreign sentence ranks first: by the mean mark of its tokens; by the contributions of all members; by
  leaving each sentence out and encoding the rest again, which is the usual way; by leaving out its tokens and pooling
  the rest again, without the encoder; by chance;
- the CPU time of marks and of leaving sentences out, encoding included, in the same run on one thread;
- the AUROC of telling tokens of the foreign sentence from the others of the text, by marks, by all contributions, by
  the attention weights of AP-OOD alone, and by random numbers;
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
from typing import Any

import numpy as np
import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.fusion import Fusion, default_detector
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.metrics import auroc
from apood.experiments.text.splices import split_sentences
from apood.explain.explaining import choose_marks, explain_texts
from apood.explain.spans import Span, sum_tokens
from apood.pooling.algebra import similarities_and_logits
from apood.tokens.batch import TokenBatch

__all__: list[str] = []

_ID = "summarization/xsum_train", "summarization/xsum_test"
_FOREIGN = (
    "summarization/samsum", "summarization/reddit_tifu", "summarization/cnn_dailymail", "summarization/reuters",
    "translation/koran", "translation/it", "translation/subtitles",
    "language_model/tweets", "language_model/clinical_notes", "language_model/annual_reports",
)  # fmt: skip
_SENTENCES, _LONGEST, _DONORS = 9, 1600, 300  # sentences and characters of a host, texts of a foreign set
_DELETED = (0.05, 0.1, 0.2)  # shares of the words


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
    """Return hosts with one sentence each of the foreign sets in turn, at random places."""
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


def attend(detector: Fusion, batch: TokenBatch) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the attention of each token of each sequence: the mean over heads of its softmax weights."""
    member = next(member for member in detector.members_ if isinstance(member, APOOD))
    weights = []
    for sequence in batch:
        kept = member.find_kept(len(sequence))
        z = member._make_preprocessing(torch.device("cpu")).apply(sequence[kept].float())
        _, logits = similarities_and_logits(z, member.queries_, member.beta_, member.similarity)
        own = np.zeros(len(sequence))
        own[kept] = torch.softmax(logits.flatten(1), 1).view_as(logits).sum(1).mean(0).numpy()
        weights.append(own)
    return weights


def rank_first(ranked: Sequence[Any], texts: Sequence[Spliced]) -> float:
    """Return how often the foreign sentence has the largest number."""
    return float(np.mean([int(np.argmax(own)) == text.foreign for own, text in zip(ranked, texts, strict=True)]))


def measure_ranks(detector: Fusion, encoder: TextEncoder, texts: Sequence[Spliced]) -> list[tuple[str, str]]:
    """Return rows about ranks, costs and tokens."""
    started = time.process_time()
    given = [text.text for text in texts]
    batch, places = encoder.encode(given), encoder.locate(given)
    assert len(batch) == len(texts), "a text has several windows"
    explanation = detector.explain(batch)
    marks = choose_marks(explanation)
    marking = time.process_time() - started

    started = time.process_time()
    scores = detector.score_samples(encoder.encode([own for text in texts for own in text.leave_out()]))
    leaving = time.process_time() - started
    left_out = np.split(scores, np.cumsum([len(text.sentences) for text in texts])[:-1])

    columns = {
        "marks": [own.numpy() for own in marks.contributions],
        "contributions of all members": [own.numpy() for own in explanation.contributions],
        "attention weights alone": attend(detector, batch),
        "random numbers": [np.random.default_rng(n).random(len(own)) for n, own in enumerate(places)],
    }
    ranks, tokens = {}, {}
    owners = [find_owners(text, own.numpy()) for text, own in zip(texts, places, strict=True)]
    for name, column in columns.items():
        sums = [
            [span.mean for span in sum_tokens(text.text, text.spans, own.numpy(), values)]
            for text, own, values in zip(texts, places, column, strict=True)
        ]
        ranks[name] = rank_first(sums, texts)
        tokens[name] = float(
            np.mean(
                [
                    auroc(values[own == text.foreign], values[(own >= 0) & (own != text.foreign)]).value
                    for text, own, values in zip(texts, owners, column, strict=True)
                ]
            )
        )
    repooled = rank_first(repool(detector, batch, owners, texts), texts)
    error = 2 * np.sqrt(0.25 / len(texts))
    by_leaving = rank_first(left_out, texts)
    return [
        ("foreign sentence first, by marks", f"{ranks['marks']:.3f} (± {error:.2f} at most)"),
        ("by the contributions of all members", f"{ranks['contributions of all members']:.3f}"),
        ("by leaving each sentence out, encoding again", f"{by_leaving:.3f}"),
        ("by leaving its tokens out, pooling again", f"{repooled:.3f}"),
        ("by the attention weights alone", f"{ranks['attention weights alone']:.3f}"),
        ("by chance", f"{np.mean([1 / len(text.sentences) for text in texts]):.3f}"),
        ("marks / leaving sentences out, how often", f"{ranks['marks'] / by_leaving:.2f}" if by_leaving else "–"),
        ("marks / leaving sentences out, CPU time", f"{marking:.1f} s / {leaving:.1f} s = {marking / leaving:.3f}"),
        *((f"AUROC of tokens, {name}", f"{value:.3f}") for name, value in tokens.items()),
    ]


def find_owners(text: Spliced, places: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the number of the sentence of each token, -1 for special tokens."""
    starts = [span.start for span in text.spans]
    return np.where(places[:, 0] >= 0, np.searchsorted(starts, places[:, 0], side="right") - 1, -1)


def repool(
    detector: Fusion, batch: TokenBatch, owners: Sequence[Any], texts: Sequence[Spliced]
) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
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
    parser.add_argument("--train", type=int, default=800, help="articles to learn from")
    parser.add_argument("--texts", type=int, default=200, help="texts with a foreign sentence")
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoder = TextEncoder(options.model, device="cpu")
    articles = [
        " ".join(split_sentences(text)[:10])
        for _, text in zip(range(options.train), read_texts(options.data, _ID[0]), strict=False)
    ]
    detector = default_detector(device="cpu").fit(encoder.encode(articles))
    assert isinstance(detector, Fusion)
    spliced = splice_texts(options.data, options.texts)
    texts = [text for text in spliced if len(encoder.locate([text.text])) == 1]  # those of one window
    rows = measure_ranks(detector, encoder, texts) + measure_deletion(detector, encoder, texts)
    print(f"## {Path(options.model).name}: {len(articles)} articles to learn from, {len(texts)} spliced texts\n")
    print("| measurement | value |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
