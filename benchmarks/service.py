"""Measure the HTTP service: `python -m benchmarks.service`, which writes benchmarks/SERVICE.md.

Two processes on this machine, connected by loopback, with one thread for the model in each: the server, which is
`apood serve` with MiniLM and nearest neighbours, and this one, which asks it and scores the same texts offline.
Ratios compare what was measured in turns in one run. Arrivals are open-loop where the service is overloaded: requests
are sent at a fixed rate, whether or not earlier ones are answered.
"""

import argparse
import asyncio
import contextlib
import os
import pydoc_data.topics
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import describe_run

__all__: list[str] = []

PAGE = Path(__file__).with_name("SERVICE.md")
CONCURRENT = 32
DEADLINE = 5.0  # of the server that is overloaded, in seconds


class Row(NamedTuple):
    """One line of the table: what was measured, the aim, the figure, and whether it is met."""

    what: str
    aim: str
    measured: str
    met: bool | None


class Server(NamedTuple):
    """A server process, its address, and the number of the process."""

    url: str
    process: int

    def read_seconds(self) -> float:
        """Return the processor time so far, in seconds."""
        user, system = Path(f"/proc/{self.process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def read_memory(self) -> float:
        """Return the resident memory in MiB."""
        status = Path(f"/proc/{self.process}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


@contextlib.contextmanager
def run_server(detector: Path, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "apood", "serve", str(detector), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as running:
        try:
            assert running.stdout is not None
            server = Server(running.stdout.readline().split(" at ")[1].strip(), running.pid)
            asyncio.run(wait_until_ready(server))
            yield server
        finally:
            running.terminate()


async def wait_until_ready(server: Server) -> None:
    async with open_client(server) as client:
        while (await client.get("/readyz")).status_code != 204:
            await asyncio.sleep(0.1)


def open_client(server: Server) -> Any:
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits, trust_env=False)


def make_texts(count: int, seed: int) -> list[str]:
    """Return texts of 10 to 200 words of Python's documentation."""
    words = " ".join(pydoc_data.topics.topics.values()).split()
    dice = random.Random(seed)
    spans = [(dice.randrange(len(words) - 200), dice.randint(10, 200)) for _ in range(count)]
    return [" ".join(words[start : start + length]) for start, length in spans]


async def saturate(server: Server, texts: Sequence[str], concurrent: int) -> float:
    """Return the seconds that single-text requests for all texts take, with so many at a time."""
    todo = iter(texts)

    async def work(client: Any) -> None:
        for text in todo:
            while (answer := await client.post("/v1/score", json={"text": text})).status_code == 429:
                await asyncio.sleep(0.05)
            assert answer.status_code == 200, answer.text

    async with open_client(server) as client:
        await client.post("/v1/score", json={"text": texts[0]})
        started = time.perf_counter()
        await asyncio.gather(*(work(client) for _ in range(concurrent)))
        return time.perf_counter() - started


async def send_openly(server: Server, texts: Sequence[str], rate: float, seconds: float) -> list[tuple[int, float]]:
    """Return status and latency of requests that are sent at a fixed rate, with random gaps."""
    found: list[tuple[int, float]] = []

    async def ask(client: Any, text: str) -> None:
        started = time.perf_counter()
        answer = await client.post("/v1/score", json={"text": text})
        found.append((answer.status_code, time.perf_counter() - started))

    dice = random.Random(0)
    async with open_client(server) as client, asyncio.TaskGroup() as group:
        end, due = time.perf_counter() + seconds, time.perf_counter()
        while due < end:
            group.create_task(ask(client, dice.choice(texts)))
            due += dice.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return found


async def abandon(server: Server, texts: Sequence[str], count: int) -> None:
    """Send requests and go away before they are answered."""
    async with open_client(server) as client:
        sent = [asyncio.ensure_future(client.post("/v1/score", json={"texts": [*texts]})) for _ in range(count)]
        await asyncio.sleep(0.5)
        for one in sent:
            one.cancel()
        await asyncio.gather(*sent, return_exceptions=True)


def time_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Spent(NamedTuple):
    """Seconds on the clock, and seconds of processor time, for some texts."""

    clock: float
    processor: float


def spend_offline(work: Callable[[], Any]) -> Spent:
    before = time.process_time()
    return Spent(time_of(work), time.process_time() - before)


def spend_served(server: Server, texts: Sequence[str], concurrent: int) -> Spent:
    before = server.read_seconds()
    return Spent(asyncio.run(saturate(server, texts, concurrent)), server.read_seconds() - before)


def measure_throughput(server: Server, offline: Any, texts: Sequence[str], rounds: int) -> list[Row]:
    few = texts[: len(texts) // 4]
    spent: dict[str, list[Spent]] = {"offline": [], "served": [], "alone offline": [], "alone": []}
    for _ in range(rounds):
        spent["offline"].append(spend_offline(lambda: offline.judge(texts)))
        spent["served"].append(spend_served(server, texts, CONCURRENT))
        spent["alone offline"].append(spend_offline(lambda: [offline.judge([text]) for text in few]))
        spent["alone"].append(spend_served(server, few, 1))
    rows = []
    for number, kind in enumerate(("by the clock", "by processor time")):
        per_text = [len(texts), len(texts), len(few), len(few)]
        rates = [
            count / statistics.median(one[number] for one in own)
            for own, count in zip(spent.values(), per_text, strict=True)
        ]
        offline_rate, rate, alone_offline, alone = rates
        share, gain, gain_offline = rate / offline_rate, rate / alone, offline_rate / alone_offline
        rows += [
            Row(
                f"throughput, {CONCURRENT} requests at a time, over offline scoring of the same texts, {kind}",
                "≥ 0.8",
                f"{share:.2f} ({rate:.0f} of {offline_rate:.0f} texts/s)",
                share >= 0.8,
            ),
            Row(
                f"gain by batching, over the gain offline, {kind}",
                "≥ 0.8",
                f"{gain / gain_offline:.2f} ({gain:.2f} x of {gain_offline:.2f} x)",
                gain / gain_offline >= 0.8,
            ),
        ]
    return rows


def measure_latency(server: Server, offline: Any, count: int) -> Row:
    words = make_texts(1, 9)[0].split() * 8
    text = next(
        " ".join(words[:n]) for n in range(len(words)) if offline.judge([" ".join(words[:n]) or "a"])[0].tokens >= 256
    )
    own: list[float] = []

    async def ask() -> list[float]:
        found = []
        async with open_client(server) as client:
            for _ in range(count):
                started = time.perf_counter()
                await client.post("/v1/score", json={"text": text})
                found.append(time.perf_counter() - started)
                own.append(time_of(lambda: offline.encoder.encode([text])))
        return found

    asked = statistics.median(asyncio.run(ask()))
    bare = statistics.median(own)
    return Row(
        "p50 of a single request of 256 tokens, over the bare encoder pass",
        "≤ 1.2",
        f"{asked / bare:.2f} ({1e3 * asked:.1f} of {1e3 * bare:.1f} ms)",
        asked / bare <= 1.2,
    )


def measure_overload(server: Server, texts: Sequence[str], peak: float, seconds: float) -> list[Row]:
    started = time.perf_counter()
    found = asyncio.run(send_openly(server, texts, 2 * peak, seconds))
    elapsed = time.perf_counter() - started  # until the last answer, so that the queue at the end does not count twice
    statuses = Counter(status for status, _ in found)
    good = sorted(latency for status, latency in found if status == 200)
    goodput, late = len(good) / elapsed, statuses[504] / len(found)
    slowest = good[int(0.99 * len(good))]
    others = sorted(statuses.keys() - {200, 429, 504})
    shown = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    return [
        Row(
            f"goodput at twice the capacity ({2 * peak:.0f} requests/s for {seconds:.0f} s), over the peak",
            "≥ 0.9",
            f"{goodput / peak:.2f}",
            goodput / peak >= 0.9,
        ),
        Row(
            "answers there: only 200, 429 and at most 1% 504",
            "≤ 1%",
            f"{late:.1%} ({shown})",
            late <= 0.01 and not others,
        ),
        Row(
            f"p99 of accepted requests there, deadline {DEADLINE:.0f} s",
            f"≤ {DEADLINE:.0f} s",
            f"{slowest:.2f} s",
            slowest <= DEADLINE,
        ),
    ]


def measure_abandoned(server: Server, texts: Sequence[str], rounds: int) -> Row:
    before, after = [], []
    for _ in range(rounds):
        before.append(asyncio.run(saturate(server, texts, CONCURRENT)))
        asyncio.run(abandon(server, texts[:64], 100))
        after.append(asyncio.run(saturate(server, texts, CONCURRENT)))
    share = statistics.median(before) / statistics.median(after)
    return Row(
        "throughput after 100 abandoned requests of 64 texts, over before", "≥ 0.95", f"{share:.2f}", share >= 0.95
    )


def measure_equality(server: Server, offline: Any, texts: Sequence[str]) -> Row:
    async def ask() -> list[Any]:
        async with open_client(server) as client:
            answers: list[Awaitable[Any]] = [client.post("/v1/score", json={"text": text}) for text in texts]
            return [answer.json()["results"][0] for answer in await asyncio.gather(*answers)]

    served, expected = asyncio.run(ask()), offline.judge(texts)
    calibration = offline.detector.calibration
    spread = statistics.stdev(calibration.scores.tolist())
    far = [abs(own.score - calibration.threshold) > 1e-4 * spread for own in expected]
    wrong = sum(
        own["accepted"] != other.accepted for own, other, counts in zip(served, expected, far, strict=True) if counts
    )
    return Row(
        "decisions that differ from offline, farther than 1e-4 standard deviations from the threshold",
        "0",
        f"{wrong} of {sum(far)}",
        wrong == 0,
    )


def measure_memory(server: Server, texts: Sequence[str], minutes: float) -> Row:
    asyncio.run(saturate(server, texts, CONCURRENT))
    before, end = server.read_memory(), time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        asyncio.run(saturate(server, texts, CONCURRENT))
    after = server.read_memory()
    return Row(
        f"memory of the server after {minutes:g} minutes under load, over before",
        "≤ 1.05",
        f"{after / before:.3f} ({before:.0f} to {after:.0f} MiB)",
        after <= 1.05 * before,
    )


def format_page(rows: Sequence[Row], command: str) -> str:
    run = describe_run("cpu")
    load = os.getloadavg()[2]
    lines = [
        "# The HTTP service, measured",
        "",
        "Two processes on one machine, one thread for the model in each: `apood serve` with MiniLM and nearest",
        "neighbours, and a program that asks it and scores the same texts offline, in turns. Texts have 10 to 200",
        "words.",
        "",
        f"The machine has {os.cpu_count()} processors, and the mean load in the last 15 minutes was {load:.1f}. If it",
        "is more than about two, other programs took their share, and processor time says more than the clock.",
        "",
        f"`{command}`, {run.date} UTC, commit {run.commit or 'unknown'}, {run.machine}, {run.software}.",
        "",
        "| what | aim | measured | met |",
        "| --- | ---: | ---: | --- |",
        *(f"| {row.what} | {row.aim} | {row.measured} | {'yes' if row.met else '**no**'} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def show(rows: list[Row]) -> list[Row]:
    """Print rows as soon as they are measured, and return them."""
    for row in rows:
        print(f"{row.what}: {row.measured}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--texts", type=int, default=400, help="texts per measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each measurement")
    parser.add_argument("--seconds", type=float, default=20, help="length of the overload")
    parser.add_argument("--minutes", type=float, default=20, help="length of the load before memory is measured again")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write")
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    from apood import KNN, TextDetector

    with tempfile.TemporaryDirectory() as folder:
        detector = Path(folder) / "detector"
        offline = TextDetector("minilm", KNN(k=3)).fit(make_texts(200, 1))
        offline.save(detector)
        texts = make_texts(given.texts, 2)
        with run_server(detector, "--deadline", "60") as server:
            rows = measure_throughput(server, offline, texts, given.rounds)
            rows += [measure_latency(server, offline, 40)]
            show(rows)
            peak = len(texts) / asyncio.run(saturate(server, texts, CONCURRENT))
        with run_server(detector, "--deadline", str(DEADLINE)) as server:
            rows += show(measure_overload(server, texts, peak, given.seconds))
        with run_server(detector, "--deadline", "60") as server:
            rows += show([measure_abandoned(server, texts, given.rounds), measure_equality(server, offline, texts)])
            rows += [measure_memory(server, texts, given.minutes)]
    page = format_page(rows, f"python -m benchmarks.service {' '.join(sys.argv[1:])}".strip())
    print(page)
    given.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
