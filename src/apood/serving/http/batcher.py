"""The micro-batcher: requests that arrive together share the batches of one worker thread, within limits."""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from apood.support.errors import ApoodError

__all__ = ["Batcher", "FullError", "LateError", "Run"]

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Model work: it returns one result per piece. Only pieces with the same function share a batch."""

_USED = 0.7  # share of a request's time that work in flight may take by estimate; the rest is for estimates that fail
_SHARE = 2.0  # a request is served as if it had this part (one half) of the worker, so small ones overtake large ones
_WEIGHT = 0.2  # of the newest batch in the estimate of the speed


class FullError(ApoodError):
    """Work that was refused because too much is in flight; `retry_after` is the time to wait, in whole seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"The service is full: try again in {retry_after} s.")
        self.retry_after = retry_after


class LateError(ApoodError):
    """Work that was not done before its deadline."""

    def __init__(self) -> None:
        super().__init__("The request was not judged within its deadline.")


@dataclass
class _Job:
    """One request: its pieces, those that are queued, and the future of its results."""

    run: Run
    pieces: Sequence[Any]
    sizes: Sequence[int]
    answer: "asyncio.Future[list[Any]]"
    queued: int  # tokens that no batch has taken yet
    next: int = 0  # the first piece that no batch has taken yet
    missing: int = 0
    results: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.missing = len(self.pieces)
        self.results = [None] * len(self.pieces)


class Batcher:
    """Runs the pieces of requests in batches, in one worker thread, so that the event loop never waits for a model.

    A batch starts as soon as the worker is free, with whatever has arrived. Requests are served by the time at which
    they would be done if each had half of the worker: small ones overtake large ones, but none waits forever. A request
    is refused if, by the measured speed, it would be late. The work of a request that is late or abandoned leaves the
    queue at once; only the batch that is running is finished.

    Args:
        batch_tokens: the largest number of tokens of a batch, except for a piece that is larger.
        most_tokens: the largest number of tokens in flight, however fast the worker is.

    Attributes:
        observe: called after every batch with its number of tokens and the seconds it took.
    """

    def __init__(self, batch_tokens: int, most_tokens: int) -> None:
        self.observe: Callable[[int, float], None] = lambda _tokens, _seconds: None
        self._batch_tokens, self._most_tokens = batch_tokens, most_tokens
        self._worker = ThreadPoolExecutor(1, "model")
        self._line: list[tuple[float, int, _Job]] = []
        self._numbers = itertools.count()
        self._queued = self._running = self._announced = 0
        self._speed = math.inf  # tokens per second, measured
        self._arrived = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """The number of tokens that are announced, wait or run."""
        return self._announced + self._queued + self._running

    def check_room(self, seconds: float, tokens: int = 0) -> None:
        """Raise FullError if a request with this number of tokens would not be done in `seconds`.

        A worker that is idle takes everything within its limit, so that a wrong estimate corrects itself.
        """
        ahead = self.in_flight
        if ahead and (
            ahead + tokens > self._most_tokens or ahead + _SHARE * tokens > _USED * max(seconds, 0) * self._speed
        ):
            raise FullError(max(1, math.ceil((ahead + tokens) / self._speed)))

    @contextmanager
    def announce(self, seconds: float, tokens: int) -> Iterator[None]:
        """Count these tokens as in flight while a request is prepared. Raise FullError as `check_room` does."""
        self.check_room(seconds, tokens)
        self._announced += tokens
        try:
            yield
        finally:
            self._announced -= tokens

    async def submit(self, run: Run, pieces: Sequence[Any], sizes: Sequence[int], seconds: float) -> list[Any]:
        """Return the results of `pieces`, which have `sizes` tokens. Raise FullError, or LateError after `seconds`.

        If the caller is cancelled, the work is dropped.
        """
        if not pieces:
            return []
        tokens = sum(sizes)
        self.check_room(seconds, tokens)
        loop = asyncio.get_running_loop()
        if self._serving is None:
            self._serving = loop.create_task(self._serve())
        job = _Job(run, pieces, sizes, loop.create_future(), tokens)
        self._queued += tokens
        heapq.heappush(self._line, (loop.time() + _SHARE * tokens / self._speed, next(self._numbers), job))
        self._arrived.set()
        try:
            async with asyncio.timeout(seconds):
                return await job.answer
        except TimeoutError as error:
            if job.answer.done() and not job.answer.cancelled():  # just in time, or the work itself raised it
                return job.answer.result()
            raise LateError from error
        finally:
            self._queued -= job.queued
            job.queued = 0
            job.answer.cancel()

    async def close(self) -> None:
        """Stop the worker after the batch that is running."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await asyncio.to_thread(self._worker.shutdown)

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while taken := self._take():
                try:
                    outcomes = await self._run(taken)
                except Exception as error:  # it fails this batch alone: the loop must go on
                    outcomes = [error] * len(taken)
                finally:
                    self._running = 0
                for (job, index), outcome in zip(taken, outcomes, strict=True):
                    _deliver(job, index, outcome)

    async def _run(self, taken: "Sequence[tuple[_Job, int]]") -> list[Any]:
        """Return one result, or the error, per piece, and learn the speed from the batch."""
        tokens = self._running = sum(job.sizes[index] for job, index in taken)
        outcomes, seconds = await asyncio.get_running_loop().run_in_executor(self._worker, _run_batch, taken)
        if 2 * tokens >= self._batch_tokens or math.isinf(self._speed):  # small batches say little
            new = tokens / max(seconds, 1e-6)
            self._speed = new if math.isinf(self._speed) else self._speed + _WEIGHT * (new - self._speed)
        self.observe(tokens, seconds)
        return outcomes

    def _take(self) -> list[tuple[_Job, int]]:
        """Return the pieces of the next batch, each as its request and its index there."""
        taken: list[tuple[_Job, int]] = []
        room, later = self._batch_tokens, []
        while self._line and (room > 0 or not taken):
            entry = heapq.heappop(self._line)
            job = entry[2]
            if job.answer.done():  # late, abandoned or failed
                continue
            if taken and job.run != taken[0][0].run:  # of another detector: its turn comes
                later.append(entry)
                break
            while job.next < len(job.pieces) and (not taken or job.sizes[job.next] <= room):
                taken.append((job, job.next))
                room -= job.sizes[job.next]
                job.queued -= job.sizes[job.next]
                self._queued -= job.sizes[job.next]
                job.next += 1
            if job.next < len(job.pieces):
                later.append(entry)
                break
        for entry in later:
            heapq.heappush(self._line, entry)
        return taken


def _run_batch(taken: Sequence[tuple[_Job, int]]) -> tuple[list[Any], float]:
    """Return one result, or the error, per piece, and the seconds that it took. This runs in the worker thread."""
    started = time.perf_counter()
    run, pieces = taken[0][0].run, [job.pieces[index] for job, index in taken]
    outcomes: list[Any]
    try:
        outcomes = list(run(pieces))
        if len(outcomes) != len(pieces):
            raise RuntimeError("A batch has another number of results than of pieces.")
    except Exception:
        # One piece that cannot be run must not fail its neighbours. Nobody waits for those of a late request.
        outcomes = [LateError() if job.answer.done() else _run_alone(run, job.pieces[at]) for job, at in taken]
    return outcomes, time.perf_counter() - started


def _run_alone(run: Run, piece: Any) -> Any:
    """Return the result of one piece, or the error."""
    try:
        (outcome,) = run([piece])
    except StopIteration as error:
        return RuntimeError(f"The work raised {error!r}.")  # a future refuses StopIteration
    except Exception as error:
        return error
    return outcome


def _deliver(job: _Job, index: int, outcome: Any) -> None:
    if job.answer.done():
        return
    if isinstance(outcome, Exception):
        job.answer.set_exception(outcome)
        return
    job.results[index] = outcome
    job.missing -= 1
    if not job.missing:
        job.answer.set_result(job.results)
