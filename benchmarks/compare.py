"""The cost of every method in a comparison, relative to Mahalanobis.

    python -m benchmarks.compare [--without-aux]

This writes stores of random float16 tokens to a temporary folder (1500 ID sequences to fit on, 500 ID and 5 x 500 OOD
sequences to score, 500 AUX, each of 128 tokens with D = 384), and compares all methods on one split of the whole
stores.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from apood.evaluation.comparison import ComparisonPlan, compare
from apood.evaluation.result import Result
from apood.tokens.batch import TokenBatch
from apood.tokens.writer import TokenStoreWriter

_DIM, _LENGTH = 384, 128
_BASELINE = "mahalanobis"


def write(folder: Path, sequences: int, seed: int, shift: float = 0.0) -> Path:
    """Write correlated tokens around a topic per sequence; `shift` moves them along one direction."""
    space = torch.Generator().manual_seed(99)
    mixing = torch.randn(_DIM, _DIM, generator=space) / _DIM**0.5 + torch.eye(_DIM)
    direction = torch.nn.functional.normalize(torch.randn(_DIM, generator=space), dim=0)
    generator = torch.Generator().manual_seed(seed)
    with TokenStoreWriter(folder, dim=_DIM, dtype=torch.float16) as writer:
        for first in range(0, sequences, 100):
            count = min(100, sequences - first)
            topics = torch.randn(count, 1, _DIM, generator=generator)
            own = torch.randn(count, _LENGTH, _DIM, generator=generator)
            values = ((0.7 * topics + own) @ mixing.T + shift * direction).half()
            writer.append(TokenBatch.from_lengths(values.flatten(0, 1), [_LENGTH] * count))
    return folder


def report(results: list[Result], total: float) -> None:
    def seconds(result: Result) -> tuple[float, float]:
        return result.fit_seconds, 3 * result.seconds_per_thousand

    (baseline, *_) = (sum(seconds(own)) for own in results if own.entry.method == _BASELINE)
    print("| method | fit, s | score 3000, s | fit and score, ratio to Mahalanobis |\n| --- | ---: | ---: | ---: |")
    for own in results:
        if own.failures:
            print(f"| {own.entry.label}: {own.failure_notes[0]} | – | – | – |")
            continue
        fit, score = seconds(own)
        print(f"| {own.entry.label} | {fit:.2f} | {score:.2f} | {(fit + score) / baseline:.1f} |")
    print(f"\nall: {total:.0f} s, {torch.get_num_threads()} threads, torch {torch.__version__}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-aux", action="store_true", help="only methods that learn from ID sequences alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = ComparisonPlan(
            id_train=write(folder / "train", 1500, 0),
            id_test=write(folder / "test", 500, 1),
            aux=None if options.without_aux else write(folder / "aux", 500, 2, shift=3.0),
            ood={f"shift {n}": write(folder / f"ood-{n}", 500, 10 + n, shift=float(n)) for n in range(1, 6)},
            splits=1,
            share=1.0,
        )
        started = time.perf_counter()
        comparison = compare(plan, cache=folder / "cache")
        report(comparison.results, time.perf_counter() - started)


if __name__ == "__main__":
    main()
