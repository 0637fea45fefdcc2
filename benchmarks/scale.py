"""The Ray engine against its promises: kills, bytes, memory, processor time, speed. `python -m benchmarks.scale`.

A cluster of three nodes runs on this machine. Every figure is a ratio to a baseline of the same run. `--page` writes
benchmarks/SCALE.md. It takes about 15 minutes on two idle processors.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from apood.data.inputs import Request
from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker
from apood.tokens.batch import TokenBatch
from benchmarks.record import describe_run

__all__ = ["CountingWorker", "main"]

_KILL_UNIT = 32  # documents of a unit while workers are killed
_PART_BYTES = 1 << 16  # the corpora are small, and a part has one worker
_MEMORY = 100 * 2**20  # of each node's object store
_MEMORY_DOCUMENTS = 2048  # at least a unit for each of two workers
_LOG = "work.log"
_CREATED = re.compile(r"num bytes created total: (\d+)")
_TICKS = os.sysconf("SC_CLK_TCK")
_SYLLABLES = [f"{one}{two}" for one in "bdfgklmnprst" for two in "aeiou"]


class CountingWorker(ScoreWorker):
    """Writes to a log, before each portion is encoded, its process, the number of texts, and its peak memory so far."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        encode: Callable[[Any], TokenBatch] = self.encoder.run

        def count_and_encode(prepared: Any) -> TokenBatch:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            line = f"{os.getpid()} {len(prepared.texts)} {peak}\n".encode()
            log = os.open(f"{self.place}.{_LOG}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(log, line)
            os.close(log)
            return encode(prepared)

        self.encoder.run = count_and_encode  # type: ignore[method-assign]


@dataclass
class Log:
    """What workers wrote to their log."""

    processes: list[int]
    documents: int
    peak_kib: int

    @classmethod
    def of(cls, out: Path) -> "Log":
        """Read the log of a job."""
        path = out.parent / f"{out.name}.{_LOG}"
        rows = [[int(x) for x in line.split()] for line in path.read_text().splitlines()] if path.exists() else []
        return cls([row[0] for row in rows], sum(row[1] for row in rows), max((row[2] for row in rows), default=0))


@dataclass
class Bench:
    """A cluster, a folder, and the table."""

    root: Path
    detector: Path
    cluster: Any
    nodes: list[Any]
    table: list[tuple[str, str, str]] = field(default_factory=list)

    def note(self, what: str, found: float, allowed: float | None, *, least: bool = False) -> None:
        """Add a row to the table, and print it. If nothing is promised, `allowed` is None."""
        bound = "–"
        if allowed is not None:
            kept = found >= allowed if least else found <= allowed
            bound = f"{'≥' if least else '≤'} {allowed:g}{'' if kept else ' (missed)'}"
        self.table.append((what, f"{found:.3g}", bound))
        print(f"| {' | '.join(self.table[-1])} |", flush=True)

    def start(self, corpus: Path, out: Path, workers: int, unit: int) -> "subprocess.Popen[bytes]":
        """Start a process that runs a job on the cluster."""
        given = [str(corpus), str(self.detector), str(out), self.cluster.address, str(workers), str(unit)]
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale", "--drive", *given],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, corpus: Path, out: Path, workers: int, unit: int = 1024) -> tuple[float, float]:
        """Run a job; return the seconds that it took, and the processor seconds of driver and cluster together."""
        started = time.perf_counter()
        with ProcessorTime() as used:
            if self.start(corpus, out, workers, unit).wait():
                raise RuntimeError("the job failed")
        return time.perf_counter() - started, used.seconds


class ProcessorTime:
    """Counts the processor time of all processes that this one starts, and that they start, during a block.

    Ray's nodes do not wait for their workers, so the system does not add up the times of those that ended. Each process
    is looked at ten times per second.
    """

    seconds = 0.0

    def __enter__(self) -> Self:
        self._before = _read_times(os.getpid())
        self._found = dict(self._before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self._found |= _read_times(os.getpid())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._found |= _read_times(os.getpid())
        self.seconds = sum(self._found.values()) - sum(self._before.values())


def _read_times(process: int) -> dict[int, float]:
    """Return the processor time of each process below this one."""
    found: dict[int, float] = {}
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        for child in (int(child) for thread in threads for child in (thread / "children").read_text().split()):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            found[child] = sum(map(int, fields[11:13])) / _TICKS
            found |= _read_times(child)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def drive(corpus: str, detector: str, out: str, address: str, workers: str, unit: str) -> None:
    """Run a job on the cluster, in a process of its own, which may be killed."""
    from apood.scale.engine import connect, find_resources, run_workers

    settings = Settings(out, Request(allow_empty=True), detector=detector, unit_records=int(unit))
    job = Job.plan("score", [corpus], settings, {}, part_bytes=_PART_BYTES)
    with connect(address):
        left, cluster = job.begin(), find_resources()
        for _ in run_workers(CountingWorker, job.settings, job.parts, left, cluster=cluster, workers=int(workers)):
            pass
    job.finish()


def make_corpus(path: Path, documents: int, words: int, seed: int = 0) -> Path:
    """Write documents of invented words, about half to one and a half times as many as `words`."""
    chooser = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            count = chooser.randint(words // 2, words + words // 2)
            text = " ".join("".join(chooser.choices(_SYLLABLES, k=2)) for _ in range(count))
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return path


def make_detector(root: Path, model: str) -> Path:
    """Build the default detector, without its training, which is not what is measured."""
    corpus = make_corpus(root / "train.jsonl", 600, 30, seed=1)
    command = ["build", str(corpus), "--model", model, "--out", str(root / "detector"), "--fast"]
    subprocess.run([*_PROGRAM, *command], check=True, stdout=subprocess.DEVNULL)
    return root / "detector"


_PAGE = Path(__file__).with_name("SCALE.md")
_INTRODUCTION = """# The Ray engine, measured

A cluster of three nodes on one machine, of which two have one worker each, with one thread; MiniLM, and the default
detector without its training. Documents are a few invented words. *Documents encoded* counts a portion of documents as
soon as its encoding begins, also if a kill interrupts it. In the runs with kills, units have {unit} documents, and the
kills are spread over the run. Parts have 64 KiB, and not 4 MiB as in the commands: these small corpora would be one
part, and a part has one worker. So the figures of two workers hold for corpora of many parts. Scores of the plain
command have other last digits, because its batches adapt to its speed.

The machine has {processors} processors, and the mean load in the last 15 minutes was {load:.1f}. If it is more than
about two, other programs took their share: processor time is then more to be trusted than speed. Ray's own processes
take about 11 processor seconds to start, and 6% of a processor while a job runs, whatever the job: a short one does not
outweigh that.

`{command}`, {date} UTC, commit {commit}, {machine}, {software}.

"""
_MORE = """
Two more figures need a GPU, and no Ray. They are not of the run above, and its command does not make them:

- `python -m benchmarks.fused --model FOLDER --data FILE`: what a worker does with a part (read, encode, score,
  commit), to the encoder alone. With SmolLM2 on an H200, 20,000 texts of XSum of at most 512 tokens, three rounds,
  commit fdd4221, 2026-11-19: 953 to 1,018 documents per second, a ratio of 0.94 (at least 0.9 was promised).
- `python -m benchmarks.sample_fit --model FOLDER --train FILE --test FILE --ood NAME=FILE`: a fit on a sample, to the
  fit on everything. [Measured](SAMPLE_FIT.md).
"""
_PROGRAM = [sys.executable, "-c", "from apood.cli import main; main()"]


def read_shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def measure_cost(bench: Bench, documents: int) -> None:
    """Compare with the plain command: processor time, decisions, bytes through Ray; and two workers with one."""
    import pyarrow.parquet

    corpus = make_corpus(bench.root / "cost.jsonl", documents, 24)
    plain = bench.root / "plain.parquet"
    command = ["score", str(bench.detector), str(corpus), "--out", str(plain)]
    with ProcessorTime() as plain_time:
        subprocess.run([*_PROGRAM, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    created = count_created_bytes(bench.cluster)
    one, used = bench.run(corpus, bench.root / "one", 1)
    bench.note("processor time, one worker, to the plain command", used / plain_time.seconds, 1.15)
    two, _ = bench.run(corpus, bench.root / "two", 2)
    bench.note("speed of two workers to one, whole command, one thread each", one / two, 1.5, least=True)
    shards = [sorted((bench.root / name).glob("*.parquet")) for name in ("one", "two")]
    spans = [max(p.stat().st_mtime for p in own) - min(p.stat().st_mtime for p in own) for own in shards]
    bench.note("the same, from the first shard to the last", spans[0] / spans[1], 1.5, least=True)
    print(f"({plain_time.seconds:.0f} and {used:.0f} processor seconds; {one:.0f} and {two:.0f} s)")
    assert read_shards(bench.root / "one") == read_shards(bench.root / "two")
    time.sleep(3)  # Ray's own log of bytes is written every second
    output = sum(len(content) for content in read_shards(bench.root / "one").values())
    moved = count_created_bytes(bench.cluster) - created
    bench.note("bytes through the object store to input and output", moved / 2 / (corpus.stat().st_size + output), 1.2)
    rows = [row for path in shards[0] for row in pyarrow.parquet.read_table(path).to_pylist()]
    expected = pyarrow.parquet.read_table(plain).to_pylist()
    from apood.pipeline.facts import load_detector_and_facts

    scores = load_detector_and_facts(bench.detector)[0].calibration.scores
    spread = float(scores.std())
    wrong = sum(one["decision"] != two["decision"] for one, two in zip(rows, expected, strict=True))
    bench.note("decisions that differ from the plain command", wrong, 0)
    same = sum(one["score"] == two["score"] for one, two in zip(rows, expected, strict=True))
    bench.note("share of scores that are those of the plain command, bit for bit", same / len(rows), None)
    most = max(abs(one["score"] - two["score"]) for one, two in zip(rows, expected, strict=True))
    bench.note("largest difference of scores, in calibration standard deviations", most / spread, 1e-4)


def count_created_bytes(cluster: Any) -> int:
    """Return the bytes of all objects that Ray's stores have held, from the logs of the nodes."""
    total = 0
    for log in Path(cluster.head_node.get_session_dir_path(), "logs").glob("raylet*.out"):
        found = _CREATED.findall(log.read_text(errors="replace"))
        total += int(found[-1]) if found else 0
    return total


def measure_memory(bench: Bench, documents: int) -> None:
    """Compare the peak memory of a worker at ten times the corpus."""
    peaks = []
    for factor in (1, 10):
        corpus = make_corpus(bench.root / f"memory-{factor}.jsonl", factor * documents, 4)
        out = bench.root / f"memory-{factor}"
        bench.run(corpus, out, 2)
        peaks.append(Log.of(out).peak_kib)
    bench.note("peak memory of a worker at ten times the corpus", peaks[1] / peaks[0], 1.1)


def measure_kills(bench: Bench, documents: int, kills: int, seed: int) -> None:
    """Kill workers, nodes and drivers at random until there were enough kills; compare bytes and work."""
    chooser = random.Random(seed)
    corpus = make_corpus(bench.root / "kills.jsonl", documents, 8)
    bench.run(corpus, bench.root / "undisturbed", 2, _KILL_UNIT)
    expected = read_shards(bench.root / "undisturbed")
    units, done, encoded, rounds, other = len(expected), dict.fromkeys(("worker", "node", "driver"), 0), 0, 0, 0
    while sum(done.values()) < kills:
        out = bench.root / f"killed-{rounds}"
        _disturb(bench, corpus, out, chooser, done, documents, kills)
        other += read_shards(out) != expected
        encoded += Log.of(out).documents
        rounds += 1
    described = ", ".join(f"{count} of a {what}" for what, count in done.items())
    bench.note(f"kills ({described}; runs: {rounds}, units of each: {units})", sum(done.values()), kills, least=True)
    bench.note("runs whose shards are not those of the undisturbed run, byte by byte", other, 0)
    bench.note("documents encoded, to those of undisturbed runs", encoded / (rounds * documents), 1.25)


def _disturb(
    bench: Bench, corpus: Path, out: Path, chooser: random.Random, done: dict[str, int], documents: int, kills: int
) -> None:
    """Run a job to its end, and kill somebody each time that it has got on."""
    driver = bench.start(corpus, out, 2, _KILL_UNIT)
    try:
        while driver.poll() is None:
            until = Log.of(out).documents + chooser.uniform(0.2, 1.0) * documents / kills  # spread over the run
            _wait(lambda: Log.of(out).documents > until or driver.poll() is not None)  # noqa: B023
            time.sleep(chooser.uniform(0, 0.3))
            if driver.poll() is not None or sum(done.values()) >= kills:
                driver.wait()
                break
            what = min(done, key=lambda name: (done[name], chooser.random()))
            if what == "worker":
                alive = [pid for pid in set(Log.of(out).processes) if Path(f"/proc/{pid}").exists()]
                if not alive:
                    continue
                os.kill(chooser.choice(alive), signal.SIGKILL)
            elif what == "node":
                node = chooser.choice(bench.nodes)
                bench.nodes.remove(node)
                bench.cluster.remove_node(node, allow_graceful=False)
                bench.nodes.append(_add_node(bench.cluster))
            else:
                driver.kill()
                driver.wait()
                driver = bench.start(corpus, out, 2, _KILL_UNIT)
            done[what] += 1
        if driver.returncode:
            raise RuntimeError("the job failed")
    finally:
        driver.kill()


def _wait(happened: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError("the job does not get on")
        time.sleep(0.1)


def _add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=_MEMORY)


def _write_page(bench: Bench) -> None:
    run = describe_run("cpu")
    introduction = _INTRODUCTION.format(
        unit=_KILL_UNIT,
        processors=os.cpu_count(),
        load=os.getloadavg()[2],
        command=" ".join(["python -m benchmarks.scale", *sys.argv[1:]]),
        date=run.date,
        commit=run.commit or "unknown",
        machine=run.machine,
        software=run.software,
    )
    rows = [("what", "measured", "promised"), ("---", "---", "---"), *bench.table]
    _PAGE.write_text(introduction + "".join(f"| {' | '.join(row)} |\n" for row in rows) + _MORE, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drive", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--model", default="minilm", help="folder or name of the model")
    parser.add_argument(
        "--documents", type=int, default=12_000, help="documents whose times are compared; half as many for kills"
    )
    parser.add_argument("--kills", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="write benchmarks/SCALE.md")
    parser.add_argument("--only", choices=["cost", "memory", "kills"], help="measure one thing alone")
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    os.environ.update({"OMP_NUM_THREADS": "1", "RAY_event_stats_print_interval_ms": "1000"})
    from ray.cluster_utils import Cluster

    root = Path(tempfile.mkdtemp(prefix="apood-scale-"))
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        bench = Bench(root, make_detector(root, options.model), cluster, [_add_node(cluster) for _ in range(2)])
        steps: Mapping[str, Callable[[], None]] = {
            "cost": lambda: measure_cost(bench, options.documents),
            "memory": lambda: measure_memory(bench, _MEMORY_DOCUMENTS),
            "kills": lambda: measure_kills(bench, options.documents // 2, options.kills, options.seed),
        }
        print(
            f"load before: {os.getloadavg()[0]:.1f}\n\n| what | measured | promised |\n| --- | --- | --- |", flush=True
        )
        for name, step in steps.items():
            if options.only in (None, name):
                step()
        print(f"\nload after: {os.getloadavg()[0]:.1f}")
        if options.page:
            _write_page(bench)
    finally:
        cluster.shutdown()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
