"""The time and size of a report, apart from embedding and scoring.

    python -m benchmarks.report_page [--inputs 10000]

This fits a small detector to random tokens, makes up scores and lengths of the inputs in an ID and three other sets,
and explanations of ten texts of 2,000 characters. It times what `apood report` does after scoring: the findings, the
summary with its metrics and intervals, the page and the JSON file.
"""

import argparse
import json
import time

import numpy as np
import torch

from apood.detectors.mahalanobis import Mahalanobis
from apood.evaluation.health import examine
from apood.explain.spans import Span, find_sentences, find_words
from apood.explain.text_explanation import MemberPart, TextExplanation
from apood.pipeline.facts import Facts
from apood.report.page.render import render_report
from apood.report.page.summary import ScoredSet, summarise
from apood.tokens.batch import TokenBatch

__all__: list[str] = []

_DIM, _TEXTS = 64, 10


def make_tokens(lengths: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> TokenBatch:
    """Return random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return TokenBatch.from_lengths(
        torch.randn(int(lengths.sum()), _DIM, generator=generator), torch.from_numpy(lengths)
    )


def explain(number: int) -> TextExplanation:
    """Return an explanation of a made-up text."""
    text = f"This is sentence {number} of a text that is neither short nor long. " * 30
    words = [Span(word.start, word.end, float(place % 7), 1) for place, word in enumerate(find_words(text))]
    members = [MemberPart("ap-ood", 2.0, True), MemberPart("knn", 1.0, False, (1, 2, 3))]
    return TextExplanation(text, -3.0, -1.0, 0.01, False, (0, len(text)), 1, words, find_sentences(text), members, 0.7)


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    count = options.inputs // 4
    lengths = rng.integers(5, 60, count)
    detector = Mahalanobis().fit(make_tokens(lengths[:500], 1)).calibrate(make_tokens(lengths[:500], 2))
    source = make_tokens(lengths, 3)
    known = ScoredSet("ID", "ID", detector.score_samples(source), lengths)
    others = [ScoredSet(f"set {n}", "OOD", known.scores - n * rng.random(count), lengths) for n in (1, 2, 3)]
    foreign = [("set 1", number, explain(number)) for number in range(_TEXTS)]
    started = time.perf_counter()
    findings = [one.sentence for one in examine(detector, Facts(), source, known.scores)]
    content = summarise(detector, {}, [known, *others], foreign, "apood report", findings)
    page = render_report(content, [one for _, _, one in foreign])
    twin = json.dumps(content, indent=1)
    seconds = time.perf_counter() - started
    print(f"{4 * count:,} inputs: {seconds:.2f} s, page {len(page) / 1e6:.2f} MB, JSON {len(twin) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
