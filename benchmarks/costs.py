"""What it costs to encode and score 1e5 to 1e9 documents: a model of tokens, bytes, operations, time and failures.

    python -m benchmarks.costs
    python -m benchmarks.costs --measure MINILM SMOLLM2 --texts FILE

The first command prints the tables of benchmarks/COSTS.md, which follow from the constants below alone. The second one
measures on this machine whether the count of operations predicts the speed of an encoder.

The model is a sum: a worker spends so many seconds per token on tokenising, on the encoder, on the pool of AP-OOD and,
if tokens are stored, on writing. The parts were measured on their own (benchmarks/RESULTS.md); `CHECKS` compares their
sums with whole runs that were measured, too.
"""

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from apood.detectors.contract.base import Detector
    from apood.tokens.batch import TokenBatch

__all__ = ["CHECKS", "H200", "MODELS", "Failures", "Machine", "Transformer", "main", "predict_rate", "render"]

TOKENS = 512
"""The tokens of a document."""

TEXT_BYTES = 4.55  # per token of English news, with MiniLM's tokenizer (see `--measure`)
ROW_BYTES = 32  # of a document in the output: score, p-value, decision, counts
STORED_BYTES = 2  # of one number of a token, as float16 or bfloat16
QUERIES = 16  # per head, with as many heads as dimensions: the default of AP-OOD on a GPU

_READ, _MEASURED = 500, 4  # texts that are read, and the longest of them, which are measured
_HEADS, _QUERIES = 384, 8  # of the detector that is measured


@dataclass(frozen=True)
class Transformer:
    """The shape of a model.

    Attributes:
        layers: the number of layers.
        width: the dimension D of its tokens.
        inner: the width of the feed-forward part.
        gated: whether that part has three matrices, as in Llama, instead of two.
        shared: how many heads share a key and a value.
    """

    layers: int
    width: int
    inner: int
    gated: bool = False
    shared: int = 1

    @property
    def weights(self) -> int:
        """The number of weights that multiply every token; embeddings are looked up, and no next token is predicted."""
        attention = 2 * self.width**2 + 2 * self.width**2 // self.shared
        return self.layers * (attention + (3 if self.gated else 2) * self.width * self.inner)

    def count_operations(self, length: int) -> int:
        """Return the floating-point operations per token of sequences of this length."""
        return 2 * self.weights + 4 * length * self.width * self.layers


def count_pool_operations(width: int) -> int:
    """Return the floating-point operations per token of the pool of AP-OOD."""
    return 2 * width * width * QUERIES


MODELS = {
    "MiniLM (22M)": Transformer(6, 384, 1536),
    "SmolLM2-135M": Transformer(30, 576, 1536, gated=True, shared=3),
    "1B (Llama 3.2)": Transformer(16, 2048, 8192, gated=True, shared=4),
    "8B (Llama 3.1)": Transformer(32, 4096, 14336, gated=True, shared=4),
}


@dataclass(frozen=True)
class Machine:
    """What one worker does in a second.

    Attributes:
        name: its name.
        peak: operations of the device, by its data sheet.
        shares: the share of the peak that encoders reach, by their least width; measured.
        pool_share: the share of the peak that the pool reaches; measured.
        tokenised: tokens that its processors tokenise; measured.
        written: bytes of tokens that are written to a store; measured.
        network: bytes that come from or go to a cloud store; assumed.
    """

    name: str
    peak: float
    shares: dict[int, float]
    pool_share: float
    tokenised: float
    written: float
    network: float

    def find_share(self, width: int) -> float:
        """Return the share of the peak that an encoder of this width reaches."""
        return self.shares[max(least for least in self.shares if least <= width)]


# Shares are operations over seconds of runs in RESULTS.md: MiniLM 4,777,146 and SmolLM2 614,448 tokens/s ("Encoders"),
# a pass of an encoder of the size of PEGASUS large in 15 ms, and FrozenPool in 0.87 ms ("Speed"). Wider models are
# assumed to do as well as those of width 1024.
H200 = Machine(
    name="one H200 with 16 processors",
    peak=989e12,
    shares={384: 0.125, 576: 0.154, 1024: 0.48},
    pool_share=0.64,
    tokenised=3.06e6,
    written=1.2e9,
    network=1.25e9,
)


def list_parts(model: Transformer, machine: Machine, *, stored: bool = False) -> dict[str, float]:
    """Return the seconds per token that each part of the work takes."""
    parts = {
        "tokenising": 1 / machine.tokenised,
        "encoder": model.count_operations(TOKENS) / (machine.find_share(model.width) * machine.peak),
        "pool": count_pool_operations(model.width) / (machine.pool_share * machine.peak),
        "network": (TEXT_BYTES + ROW_BYTES / TOKENS) / machine.network,
    }
    if stored:
        parts["disk"] = model.width * STORED_BYTES / machine.written
    return parts


def predict_rate(*rates: float) -> float:
    """Return the tokens per second of work whose parts, done one after the other, have these rates."""
    return 1 / sum(1 / rate for rate in rates)


CHECKS = (
    ("H200, MiniLM: tokenise, then run", (3_059_821, 4_777_146), 1_961_862),
    ("H200, MiniLM: from texts to a store", (3_059_821, 4_777_146, 1_275_815), 750_921),
    ("H200, SmolLM2: tokenise, then run", (3_217_264, 614_448), 532_524),
    ("H200, SmolLM2: from texts to a store", (3_217_264, 614_448, 1_176_513), 345_375),
    ("one CPU thread, MiniLM: tokenise, then run", (243_070, 3_738), 3_627),
)
"""Whole runs of RESULTS.md ("Encoders"): the tokens per second of the parts, and of the whole."""


@dataclass(frozen=True)
class Failures:
    """Workers that fail at random times, and the work that is lost.

    Work is cut into units. A worker commits what it has done of a unit after every `commit` seconds. If it fails, what
    it did since then is lost, a new worker takes its place after `restart` seconds, and goes on with the unit.

    Attributes:
        mean_time: the mean seconds between two failures of a worker.
        unit: the seconds of a unit.
        commit: the seconds between two commits, at most `unit`.
        restart: the seconds until a new worker has loaded the model.
    """

    mean_time: float
    unit: float
    commit: float
    restart: float = 60.0

    def expect_extra(self) -> float:
        """Return the expected time that is lost, in shares of the work, for a worker that never waits for others.

        Failures are a Poisson process, so a piece of length c takes (m + r) (exp(c / m) - 1) on average, with a mean
        time m between failures and restarts of length r.
        """
        return (self.mean_time + self.restart) * math.expm1(self.commit / self.mean_time) / self.commit - 1

    def simulate(self, units: int, workers: int, seed: int = 0) -> tuple[float, float]:
        """Return the time lost to failures in shares of the work, and the time to the end in shares of the ideal one.

        Units are taken in order by whoever is free. The ideal time has no failures, and no worker waits at the end.
        """
        draw = random.Random(seed)
        free = [(0.0, worker) for worker in range(workers)]
        fails = [draw.expovariate(1 / self.mean_time) for _ in range(workers)]
        lost = end = 0.0
        for _ in range(units):
            now, worker = heapq.heappop(free)
            left = self.unit
            while now + left > fails[worker]:
                if (
                    failed := fails[worker]
                ) > now:  # else it failed while it waited, and nothing was lost but the restart
                    kept = (failed - now) // self.commit * self.commit
                    lost += failed - now - kept
                    left -= kept
                    now = failed
                lost += self.restart
                now += self.restart
                fails[worker] = now + draw.expovariate(1 / self.mean_time)
            now += left
            end = max(end, now)
            heapq.heappush(free, (now, worker))
        work = units * self.unit
        return lost / work, end * workers / work


def render() -> str:
    """Return the tables that follow from the constants, as Markdown."""
    lines = [
        f"Documents of {TOKENS} tokens. A worker is {H200.name}; H200-hours are those of encoding and scoring in one",
        "step. *Tokens stored* is what a token store of all documents would take: for 1e8 documents and D = 1024 it",
        f"would be {format_bytes(1e8 * TOKENS * 1024 * STORED_BYTES)}.",
        "",
        "| model | documents | tokens | operations | texts in | scores out | tokens stored | H200-hours | bounded by |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, model in MODELS.items():
        for power in range(5, 10):
            documents = 10**power
            tokens = documents * TOKENS
            parts = list_parts(model, H200)
            operations = tokens * (model.count_operations(TOKENS) + count_pool_operations(model.width))
            row = (
                name, f"1e{power}", _shorten(tokens), _shorten(operations), format_bytes(tokens * TEXT_BYTES),
                format_bytes(documents * ROW_BYTES), format_bytes(tokens * model.width * STORED_BYTES),
                _format_hours(tokens * sum(parts.values()) / 3600), max(parts, key=lambda part: parts[part]),
            )  # fmt: skip
            lines.append(f"| {' | '.join(row)} |")
    lines += [
        "",
        "Where a worker spends its time, in percent, and how many times longer it takes if tokens are stored:",
        "",
        "| model | tokens/s | tokenising | encoder | pool | network | with a store |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, model in MODELS.items():
        parts = list_parts(model, H200)
        whole = sum(parts.values())
        shares = [f"{100 * parts[part] / whole:.1f}" for part in ("tokenising", "encoder", "pool", "network")]
        slower = sum(list_parts(model, H200, stored=True).values()) / whole
        lines.append(f"| {name} | {1 / whole:,.0f} | {' | '.join(shares)} | {slower:.2f} |")
    lines += [
        "",
        "The model against whole runs that were measured ([RESULTS.md](RESULTS.md), *Encoders*), in tokens per second:",
        "",
        "| run | predicted | measured | predicted / measured |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, rates, measured in CHECKS:
        predicted = predict_rate(*rates)
        lines.append(f"| {name} | {predicted:,.0f} | {measured:,} | {predicted / measured:.2f} |")
    lines += [
        "",
        "Failures, simulated: 64 workers, 20,000 units of 10 minutes (139 days of work of one worker), and 60 seconds",
        "until a new worker is ready. *Lost* is the time lost to failures, in percent of the work; *expected* is what",
        "the formula says. *To the end* is the time until the last unit is done, over the time without failures.",
        "",
        "| mean time between failures of a worker | commit every | lost, % | expected, % | to the end |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for hours in (1, 4, 24, 168):
        for commit in (30, 120, 600):
            failures = Failures(mean_time=hours * 3600, unit=600, commit=commit)
            lost, end = failures.simulate(units=20_000, workers=64)
            cells = (
                f"{hours} h",
                f"{commit} s",
                f"{100 * lost:.2f}",
                f"{100 * failures.expect_extra():.2f}",
                f"{end:.3f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_bytes(count: float) -> str:
    """Return a number of bytes with its unit, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


class _Job(NamedTuple):
    """A run to measure: its name, its operations per token, its tokens, and the work itself."""

    name: str
    operations: int
    tokens: int
    work: Callable[[], object]


def _shorten(number: float) -> str:
    return f"{number:.1e}".replace("e+", "e")


def _format_hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"


def measure(folders: Sequence[Path], texts: Path, rounds: int) -> str:
    """Return how well the count of operations predicts encoders on this machine, as a table in Markdown.

    The speed of the first row gives the operations per second, from which all other rows are predicted. Rows are timed
    in turns, in seconds of processor time.
    """
    import torch

    from apood.data.inputs import read_records
    from apood.data.record import Record
    from apood.detectors.ap_ood.detector import APOOD
    from apood.encoders.text.encoder import TextEncoder
    from apood.support.errors import FitWarning

    torch.set_num_threads(1)
    known = [r.item for r in itertools.islice(read_records([str(texts)]), _READ) if isinstance(r, Record)]
    longest = sorted(known, key=len)[-_MEASURED:]
    jobs: list[_Job] = []
    for folder in folders:
        model = _read_shape(folder)
        for length in (128, 512):
            encoder = TextEncoder(folder, layers=-1, max_tokens=length, on_long="beginning", logprobs=False)
            prepared = encoder.prepare(longest)
            tokens = len(prepared.sources.values)
            name, encode = f"{folder.name}, {tokens // len(longest)} tokens", partial(encoder.run, prepared)
            operations = model.count_operations(tokens // len(longest))
            jobs.append(_Job(f"{name}: encoder", operations, tokens, encode))
            if folder == folders[0]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FitWarning)  # it is timed, and not used
                    detector = APOOD(heads=_HEADS, queries=_QUERIES, steps=2, recipe="paper").fit(encode())
                operations += 2 * model.width * _HEADS * _QUERIES
                jobs.append(_Job(f"{name}: encoder and AP-OOD", operations, tokens, _then(detector, encode)))
    seconds = [[_time(job.work) for job in jobs] for _ in range(rounds + 1)][1:]  # in turns, after a first one
    speed = statistics.median(jobs[0].tokens * jobs[0].operations / row[0] for row in seconds)
    rows = []
    for place, job in enumerate(jobs):
        # Both speeds are of one round: the machine may be slower in the next one.
        ratios = [
            jobs[0].tokens * jobs[0].operations / row[0] / (job.tokens * job.operations / row[place]) for row in seconds
        ]
        rows.append((job.name, job.tokens / statistics.median(row[place] for row in seconds), ratios))
    whole = TextEncoder(folders[0], max_tokens=512, on_long="refuse", logprobs=False).prepare(known)
    short = [text for number, text in enumerate(known) if number not in whole.refused]
    size = sum(len(text.encode()) for text in short) / len(whole.sources.values)
    lines = [
        f"One thread: {speed / 1e9:.0f}e9 operations per second, from the first row. {size:.2f} bytes per token.",
        "",
        "| run | measured, tokens/s | predicted / measured | from | to |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {rate:,.0f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |"
            for name, rate, ratios in rows
        ),
    ]
    return "\n".join(lines) + "\n"


def _read_shape(folder: Path) -> Transformer:
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    return Transformer(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        inner=config["intermediate_size"],
        gated=config["model_type"] == "llama",
        shared=heads // (config.get("num_key_value_heads") or heads),
    )


def _then(detector: "Detector", encode: "Callable[[], TokenBatch]") -> Callable[[], object]:
    return lambda: detector.score_samples(encode())


def _time(work: Callable[[], object]) -> float:
    """Return the seconds of processor time, which other programs on the machine hardly change."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    """Print the tables, or what was measured on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", type=Path, metavar="MODEL", help="folders of models to measure")
    parser.add_argument("--texts", type=Path, help="a file of long texts, for --measure")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.measure is None:
        print(render(), end="")
    elif given.texts is None:
        parser.error("--measure needs --texts")
    else:
        print(measure(given.measure, given.texts, given.rounds), end="")


if __name__ == "__main__":
    main()
