"""What the default detector costs beside its encoder: `python -m benchmarks.shares --texts FILE MODEL_FOLDER ...`.

Every text fills the encoder, so that batches are full: each is made of a few texts of the file. A pass is what
`TextEncoder.run` does with texts that are tokenised. Passes are compared with one that makes tokens of the last layer,
without summary and sentences, because a summary reads the layers that tokens are not made of: each of the others does
more. Scores are those of the tokens that a default pass returns, and each is timed in turns with such a pass. Fits are
timed once, on a GPU the second one of a process, because it compiles during the first.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from apood.data.inputs import read_records
from apood.data.record import keep_good
from apood.detectors.contract.base import Detector
from apood.detectors.fusion import default_detector
from apood.detectors.knn import KNN
from apood.encoders.embed import embed_to_store
from apood.encoders.text.encoder import TextEncoder
from apood.tokens.store import TokenStore
from benchmarks.record import describe_run
from benchmarks.timing import Timing, measure

__all__ = ["LAST", "PASSES", "compare_passes", "main", "measure_model", "open_encoder"]

LAST = "last"
_BARE = {"summary": False, "sentences": False}
PASSES: dict[str, dict[str, Any]] = {
    LAST: {"layers": -1, **_BARE},
    "the mix of layers": {"layers": "mix", **_BARE},
    "the defaults: auto layers, summary, sentences": {},
}
"""The options of encoders whose passes are compared with the first."""

_JOINED = 6  # texts of the file in one text
_METHODS: dict[str, Callable[[str], Detector]] = {
    "default": lambda device: default_detector(device=device),
    "KNN": lambda _: KNN(),
}


def join_texts(texts: Sequence[str], count: int) -> list[str]:
    """Return long texts, each made of some of the given ones."""
    dice = random.Random(0)
    return [" ".join(dice.choices(texts, k=_JOINED)) for _ in range(count)]


def open_encoder(folder: str, device: str, max_tokens: int, **options: Any) -> TextEncoder:
    """Return an encoder that cuts long texts, so that all have the same number of tokens."""
    return TextEncoder(folder, device=device, max_tokens=max_tokens, on_long="beginning", logprobs=False, **options)


def compare_passes(open_one: Callable[..., TextEncoder], texts: Sequence[str], **options: Any) -> dict[str, str]:
    """Return the cost of each kind of pass but the first, in units of the first."""
    runs: dict[str, Callable[[], object]] = {}
    for name, chosen in PASSES.items():
        encoder = open_one(**chosen)
        runs[name] = partial(encoder.run, encoder.prepare(texts))
    found = measure(contenders=runs, **options)
    return {name: divide(found[name], found[LAST]) for name in PASSES if name != LAST}


def divide(timing: Timing, baseline: Timing) -> str:
    """Return the median ratio of rounds, as text."""
    return f"{statistics.median(one / other for one, other in zip(timing.rounds, baseline.rounds, strict=True)):.3f}"


def measure_model(
    folder: str, texts: Sequence[str], *, device: str, count: int, train: int, max_tokens: int, seconds: float
) -> Iterator[tuple[str, str]]:
    """Yield what was measured, and the figure, for one model."""
    open_one = partial(open_encoder, folder, device=device, max_tokens=max_tokens)
    options: dict[str, Any] = {"device": device, "seconds": seconds, "alone": True}
    long = join_texts(texts, count)
    for name, figure in compare_passes(open_one, long, **options).items():
        yield f"a pass with {name}, to one with the last layer alone", figure
    encoder = open_one()
    detectors: dict[str, Detector] = {}
    with tempfile.TemporaryDirectory() as place:
        embed_to_store(join_texts(texts, train), encoder, Path(place, "store"))
        store = TokenStore(Path(place, "store"))
        for name, make in _METHODS.items():
            if device != "cpu":
                make(device).fit(store)
            started = time.perf_counter()
            detectors[name] = make(device).fit(store)
            yield f"fit of {name}, {train:,} texts", f"{time.perf_counter() - started:.1f} s"
    prepared = encoder.prepare(long)
    batch = encoder.run(prepared)
    scores = {name: partial(detector.score_samples, batch) for name, detector in detectors.items()}
    timings = measure(contenders={"pass": lambda: encoder.run(prepared), **scores}, **options)
    for name in scores:
        yield f"scores of {name}, to a pass with the defaults", divide(timings[name], timings["pass"])


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shares", description=__doc__)
    parser.add_argument("models", nargs="+", help="folders of models")
    parser.add_argument("--texts", required=True, help="a file of texts, as `apood embed` takes it")
    parser.add_argument("--field", default="text")
    parser.add_argument("--count", type=int, default=1000 if gpu else 32, help="texts that are encoded and scored")
    parser.add_argument("--train", type=int, default=5000 if gpu else 500, help="texts that detectors are fitted on")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=10.0 if gpu else 60.0, help="of each comparison")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = [record.item for record in keep_good(read_records([given.texts], field=given.field), None)]
    device = "cuda" if gpu else "cpu"
    run = describe_run(device)
    print(f"{run.machine}, {run.software}, commit {run.commit}, load {os.getloadavg()[0]:.1f}\n")
    print("| model | what | figure |\n| --- | --- | ---: |")
    for folder in given.models:
        options = {"device": device, "count": given.count, "train": given.train, "max_tokens": given.max_tokens}
        for what, figure in measure_model(folder, texts, seconds=given.seconds, **options):
            print(f"| {Path(folder).name} | {what} | {figure} |", flush=True)


if __name__ == "__main__":
    main()
