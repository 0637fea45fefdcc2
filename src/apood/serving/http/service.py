"""The service without HTTP: it judges texts and token arrays in shared batches, and replaces its detector."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from apood.decisions.drift import DriftAlarm
from apood.pipeline.judging import Judgement
from apood.serving.http.batcher import Batcher, FullError, LateError
from apood.serving.http.errors import HttpError, as_http_error
from apood.serving.http.metrics import Metrics
from apood.serving.http.served import Served, Work
from apood.serving.http.tally import Tally
from apood.support.checks import format_count
from apood.support.errors import ApoodError

__all__ = ["OnError", "Outcome", "Service", "Settings", "describe_failure"]

OnError = Literal["refuse", "accept"]
"""What becomes of a request that cannot be judged."""

_log = logging.getLogger("apood")


@dataclass(frozen=True)
class Settings:
    """The limits of a service.

    Attributes:
        deadline: the seconds after which a request is answered with 504.
        most_bytes: the largest body.
        most_texts: the largest number of texts, or sequences of tokens, of a request.
        most_text_tokens: the largest number of tokens of a text.
        most_tokens: the largest number of tokens in flight.
        shadow: whether nothing is refused.
        on_error: what becomes of a request that cannot be judged because of an error of the service.
    """

    deadline: float = 10.0
    most_bytes: int = 1 << 20
    most_texts: int = 256
    most_text_tokens: int = 8192
    most_tokens: int = 1 << 18
    shadow: bool = False
    on_error: OnError = "refuse"


@dataclass(frozen=True)
class Outcome:
    """What is done with a request.

    Attributes:
        accepted: whether the request passes. In shadow mode, every request that was judged does.
        judgements: the decisions on its texts; empty if it could not be judged.
        problem: why it could not be judged.
    """

    accepted: bool
    judgements: Sequence[Judgement]
    problem: HttpError | None = None


class Service:
    """Judges texts and token arrays. All methods are called in one event loop.

    Args:
        load: a function that loads what is served. It is called again to replace it.
        settings: the limits.
    """

    def __init__(self, load: Callable[[], Served], settings: Settings) -> None:
        self.settings, self.tally = settings, Tally()
        self.metrics = Metrics(self.tally)
        self.drift: DriftAlarm | None = None
        self._load = load
        self._served: Served | None = None
        self._preparing = ThreadPoolExecutor(1, "prepare")
        self._loading = asyncio.Lock()
        self._batcher: Batcher | None = None

    @property
    def served(self) -> Served:
        """What is served now; raises HttpError 503 if it is not ready yet."""
        if self._served is None:
            raise HttpError(503, "The detector is being loaded: try again soon.", headers={"retry-after": "1"})
        return self._served

    @property
    def in_flight(self) -> int:
        """The number of tokens that wait or run."""
        return 0 if self._batcher is None else self._batcher.in_flight

    async def start(self) -> None:
        """Load the detector and warm it up; the service is ready after this."""
        async with self._loading:
            served = await asyncio.to_thread(self._load)
            self._batcher = Batcher(served.batch_tokens, self.settings.most_tokens)
            self._batcher.observe = self.metrics.count_batch
            await self._warm_up(served)
            self._take_over(served)

    async def reload(self) -> bool:
        """Load the detector again, beside the old one, and replace it; keep the old one if that fails."""
        async with self._loading:
            try:
                served = await asyncio.to_thread(self._load)
                await self._warm_up(served)
            except Exception as error:
                self.metrics.count_reload("failed")
                reason = str(error) if isinstance(error, ApoodError) else describe_failure(error)
                _log.error("The detector was not replaced: %s", reason)
                return False
            self._take_over(served)
            self.metrics.count_reload("done")
            _log.info("The detector was replaced by %s.", served.digest)
            return True

    def _take_over(self, served: Served) -> None:
        """Serve from now on; requests that were prepared for the detector before still run with it."""
        known = None if self._served is None else self._served.detector.calibration.scores
        if known is None or not np.array_equal(known, served.detector.calibration.scores):
            self.drift = DriftAlarm(served.detector.calibration.scores)
            self.metrics.show_drift(self.drift.gauges())
        self._served = served

    async def _warm_up(self, served: Served) -> None:
        """Score a full batch twice: what is done only once is done then, and the second time shows the speed."""
        assert self._batcher is not None
        work = await asyncio.to_thread(served.make_warm_up)
        await asyncio.to_thread(work.run, work.pieces)
        await self._batcher.submit(work.run, work.pieces, work.sizes, 3600)

    async def judge_texts(self, texts: Sequence[str]) -> list[Judgement]:
        """Return the decisions on texts."""
        if len(texts) > self.settings.most_texts:
            raise HttpError(
                413, f"The request has {len(texts):,} texts, and at most {self.settings.most_texts:,} are allowed."
            )
        return await self._judge(lambda served: served.prepare_texts(texts))

    async def judge_tokens(self, body: bytes) -> list[Judgement]:
        """Return the decisions on the token arrays of a safetensors body."""
        return await self._judge(lambda served: served.prepare_tokens(body))

    async def explain(self, text: str) -> dict[str, Any]:
        """Return why a text has its score, as JSON."""
        _, (explanation,) = await self._run(self.served, lambda served: served.prepare_explanation(text))
        return dict(explanation)

    async def _run(self, served: Served, prepare: Callable[[Served], Work]) -> tuple[Work, list[Any]]:
        """Return the prepared work and the results of its pieces."""
        batcher = self._batcher
        assert batcher is not None
        loop, seconds = asyncio.get_running_loop(), self.settings.deadline
        end = loop.time() + seconds
        batcher.check_room(seconds)  # before any work
        try:
            async with asyncio.timeout_at(end):
                work = await loop.run_in_executor(self._preparing, prepare, served)
        except TimeoutError as error:
            raise LateError(
                f"The request was not judged within its deadline, {seconds:.3g} s after it came."
            ) from error
        self._check_size(work)
        return work, await batcher.submit(work.run, work.pieces, work.sizes, end - loop.time())

    async def _judge(self, prepare: Callable[[Served], Work]) -> list[Judgement]:
        served = self.served
        work, outcomes = await self._run(served, prepare)
        judgements = served.judge(work, outcomes)
        self.metrics.count_judgements(judgements)
        self.metrics.count_unusual(served.count_unusual(judgements))
        self._watch(served, judgements)
        return judgements

    def _watch(self, served: Served, judgements: Sequence[Judgement]) -> None:
        """Tell the drift alarm; it knows nothing about inputs that cannot be scored, or about another detector."""
        scores = [own.score for own in judgements if own.score != -float("inf")]
        if scores and self.drift is not None and served is self._served:
            self.drift.update(scores)
            self.metrics.show_drift(self.drift.gauges())

    def _check_size(self, work: Work) -> None:
        settings, tokens = self.settings, work.count_tokens()
        if work.count > settings.most_texts:
            raise HttpError(
                413, f"The body has {work.count:,} sequences, and at most {settings.most_texts:,} are allowed."
            )
        for index, own in enumerate(tokens):
            if own > settings.most_text_tokens:
                raise HttpError(
                    413,
                    f"The text at index {index} has {format_count(own, 'token')}, and at most "
                    f"{settings.most_text_tokens:,} are allowed.",
                )
        if sum(tokens) > settings.most_tokens:
            raise HttpError(
                413, f"The request has {sum(tokens):,} tokens, and at most {settings.most_tokens:,} are allowed."
            )

    async def decide(self, judging: Awaitable[Sequence[Judgement]]) -> Outcome:
        """Return what is done with a request that is being judged: it passes if each of its texts is accepted.

        A request that cannot be judged because of an error, a full queue or a missed deadline passes only with
        on_error="accept". One that breaks a limit raises HttpError.
        """
        try:
            judgements = await judging
        except Exception as error:
            known = as_http_error(error)
            if known is not None and known.status < 500 and not isinstance(error, FullError):
                raise known from error
            if known is None:
                self.note_failure(error)
                known = HttpError(500, "The input could not be judged because of an error of the service.")
            if self.settings.on_error == "refuse":
                raise known from error
            self.metrics.count_unjudged()
            return Outcome(True, [], known)
        return Outcome(self.settings.shadow or all(own.accepted for own in judgements), judgements)

    def note_failure(self, error: Exception) -> None:
        """Count and log an error that was not foreseen. Its message is left out, because it may quote the input."""
        self.metrics.count_error()
        _log.error("%s", describe_failure(error))

    async def close(self) -> None:
        """Finish the batch that is running and stop the threads."""
        if self._batcher is not None:
            await self._batcher.close()
        await asyncio.to_thread(self._preparing.shutdown)


def describe_failure(error: BaseException) -> str:
    """Return where an error came from, without its message, which may quote the input."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
    return f"{time.strftime('%H:%M:%S')} an error that was not foreseen: {type(error).__name__}{where}"
