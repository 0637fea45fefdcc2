"""The service without HTTP: it judges texts and token arrays in shared batches, and replaces its detector."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from apood.decisions.drift import DriftAlarm
from apood.encoders.text.windows import MOST_WINDOWS
from apood.pipeline.judging import Judgement
from apood.serving.http.batcher import Batcher, FullError, LateError
from apood.serving.http.errors import HttpError, as_http_error
from apood.serving.http.metrics import Metrics
from apood.serving.http.served import Served, Work, read_tokens
from apood.serving.http.settings import Settings
from apood.serving.http.tally import Tally
from apood.serving.http.tracing import describe_trace
from apood.support.checks import format_count
from apood.support.errors import ApoodError
from apood.tokens.documents import number_documents

__all__ = ["Outcome", "Service", "describe_failure"]

_TEXT_LETTERS = 4  # per token, to guess the tokens of a text that is not tokenised yet
_MOST_LETTERS = 32  # per allowed token: a longer text is refused before it is tokenised
_log = logging.getLogger("apood")


@dataclass(frozen=True)
class Outcome:
    """What is done with a request.

    Attributes:
        accepted: whether the request passes. In shadow mode, every request does.
        detector: the digest of the detector that judged it.
        judgements: the decisions on its texts; empty if it could not be judged.
        problem: why it could not be judged.
    """

    accepted: bool
    detector: str
    judgements: Sequence[Judgement]
    problem: HttpError | None = None

    def describe_refusal(self) -> str:
        """Return why a request was refused, for its sender; scores and thresholds are left out."""
        if all(own.score == -float("inf") for own in self.judgements if not own.accepted):
            return "The input is empty or cannot be judged."
        return "The input is unlike those that this service was made for."


class Service:
    """Judges texts and token arrays. All methods are called in one event loop.

    Args:
        load: a function that loads what is served. It is called again to replace it.
        settings: the limits.

    Attributes:
        failed: why the start failed; None if it did not.
        on_failure: called if the start fails.
    """

    def __init__(self, load: Callable[[], Served], settings: Settings) -> None:
        self.settings, self.tally = settings, Tally()
        self.metrics = Metrics(self.tally)
        self.drift: DriftAlarm | None = None
        self.failed: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._load = load
        self._served: Served | None = None
        self._preparing = ThreadPoolExecutor(1, "prepare")
        self._loading = asyncio.Lock()
        self._batcher: Batcher | None = None

    @property
    def served(self) -> Served:
        """What is served now; raises HttpError 503 if it is not ready yet."""
        if self.failed is not None:
            raise HttpError(503, "The detector could not be started: the log says why.")
        if self._served is None:
            raise HttpError(503, "The detector is being loaded: try again soon.", headers={"retry-after": "1"})
        return self._served

    @property
    def in_flight(self) -> int:
        """The number of tokens that are prepared, wait or run."""
        return 0 if self._batcher is None else self._batcher.in_flight

    async def start(self) -> None:
        """Load the detector and warm it up; the service is ready after this, or has failed."""
        async with self._loading:
            try:
                served = await asyncio.to_thread(self._load)
                work = await self._warm_up(served)
                self._batcher = Batcher(served.batch_tokens, self.settings.most_tokens)
                self._batcher.observe = self.metrics.count_batch
                # The first time, what is done only once was done. The second time shows the speed.
                await self._batcher.submit(work.run, work.pieces, work.sizes, 3600)
            except Exception as error:
                self.failed = _describe_reason(error)
                _log.error("The detector could not be started: %s", self.failed)
                self.on_failure()
            else:
                self._take_over(served)

    async def reload(self) -> bool:
        """Load the detector again, beside the old one, and replace it; keep the old one if that fails."""
        async with self._loading:
            try:
                served = await asyncio.to_thread(self._load)
                await self._warm_up(served)
            except Exception as error:
                self.metrics.count_reload("failed")
                _log.error("The detector was not replaced: %s", _describe_reason(error))
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

    async def _warm_up(self, served: Served) -> Work:
        """Score a full batch beside those of requests, and return its work."""
        work = await asyncio.to_thread(served.make_warm_up)
        if work.pieces:
            await asyncio.to_thread(work.run, work.pieces)
        return work

    def set_deadline(self) -> float:
        """Return when a request that arrives now must be answered, as a time of the event loop."""
        return asyncio.get_running_loop().time() + self.settings.deadline

    async def judge_texts(self, served: Served, texts: Sequence[str], end: float) -> list[Judgement]:
        """Return the decisions of `served` on texts. Raise HttpError if they break a limit, LateError at `end`."""
        self._check_texts(texts)
        return await self._judge(served, lambda: served.prepare_texts(texts), self._guess_tokens(texts), end)

    async def judge_tokens(self, served: Served, body: bytes, end: float) -> list[Judgement]:
        """Return the decisions of `served` on the token arrays of a safetensors body, as `judge_texts` does."""

        def prepare() -> Work:
            batch = read_tokens(body)
            owners = number_documents(batch)
            self._check_count(int(owners[-1]) + 1, "sequence")
            if (most := int(np.bincount(owners).max())) > MOST_WINDOWS:  # as for texts
                raise HttpError(413, f"A text has {most:,} windows, and at most {MOST_WINDOWS} are allowed.")
            return served.prepare_tokens(batch)

        return await self._judge(served, prepare, len(body) // (4 * max(served.detector.dim_, 1)), end)

    async def explain(self, text: str, end: float) -> dict[str, Any]:
        """Return why a text has its score, as JSON."""
        served = self.served
        self._check_texts([text])
        _, (explanation,) = await self._run(lambda: served.prepare_explanation(text), self._guess_tokens([text]), end)
        return dict(explanation)

    async def _run(self, prepare: Callable[[], Work], guessed: int, end: float) -> tuple[Work, list[Any]]:
        """Return the prepared work, of `guessed` tokens, and the results of its pieces."""
        batcher, loop = self._batcher, asyncio.get_running_loop()
        assert batcher is not None
        with batcher.announce(end - loop.time(), guessed):
            try:
                async with asyncio.timeout_at(end):
                    work = await loop.run_in_executor(self._preparing, prepare)
            except TimeoutError as error:
                raise LateError from error
        self._check_tokens(work.sum_by_text(work.sizes))
        return work, await batcher.submit(work.run, work.pieces, work.sizes, end - loop.time())

    async def _judge(self, served: Served, prepare: Callable[[], Work], guessed: int, end: float) -> list[Judgement]:
        work, outcomes = await self._run(prepare, guessed, end)
        judgements = served.judge(work, outcomes)
        self.metrics.count_judgements(judgements, served.lengths.count(judgements))
        self._watch(served, judgements)
        return judgements

    def _watch(self, served: Served, judgements: Sequence[Judgement]) -> None:
        """Tell the drift alarm; it knows nothing about inputs that cannot be scored, or about another detector."""
        scores = [own.score for own in judgements if own.score != -float("inf")]
        if scores and self.drift is not None and served is self._served:
            self.drift.update(scores)
            self.metrics.show_drift(self.drift.gauges())

    def _guess_tokens(self, texts: Sequence[str]) -> int:
        most = self.settings.most_text_tokens  # a text of more tokens never reaches the model
        return sum(min(len(text) // _TEXT_LETTERS, most) for text in texts)

    def _check_texts(self, texts: Sequence[str]) -> None:
        self._check_count(len(texts), "text")
        most = _MOST_LETTERS * self.settings.most_text_tokens
        for index, text in enumerate(texts):
            if len(text) > most:
                raise HttpError(
                    413, f"The text at index {index} has {len(text):,} characters, and at most {most:,} are allowed."
                )

    def _check_count(self, count: int, kind: str) -> None:
        most = self.settings.most_texts
        if count > most:
            raise HttpError(413, f"The request has {format_count(count, kind)}, and at most {most:,} are allowed.")

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        settings = self.settings
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

    async def decide(self, served: Served, judging: Awaitable[Sequence[Judgement]]) -> Outcome:
        """Return what is done with a request that `served` is judging: it passes if each of its texts is accepted.

        A request that cannot be judged because of an error, a full queue or a missed deadline passes only with
        on_error="accept". One that breaks a limit raises HttpError. In shadow mode, all of them pass.
        """
        settings = self.settings
        try:
            judgements = await judging
        except Exception as error:
            known = as_http_error(error)
            if known is None:
                self.note_failure(error)
                known = HttpError(500, "The input could not be judged because of an error of the service.")
            of_service = known.status >= 500 or isinstance(error, FullError)
            if not settings.shadow and not (of_service and settings.on_error == "accept"):
                raise known from error
            self.metrics.count_unjudged()
            return Outcome(True, served.digest, [], known)
        return Outcome(settings.shadow or all(own.accepted for own in judgements), served.digest, judgements)

    def describe_shadow(self) -> dict[str, Any]:
        """Return what would have been refused, and what the drift alarm says, as JSON."""
        drift = None if self.drift is None else self.drift.gauges()
        return {"shadow": self.settings.shadow, **self.tally.describe(), "drift": drift}

    def note_failure(self, error: Exception) -> None:
        """Count and log an unexpected error. Its message is left out, because it may quote the input."""
        self.metrics.count_error()
        _log.error("%s%s", describe_failure(error), describe_trace())

    async def close(self) -> None:
        """Finish the batch that is running and stop the threads."""
        if self._batcher is not None:
            await self._batcher.close()
        await asyncio.to_thread(self._preparing.shutdown)


def _describe_reason(error: Exception) -> str:
    return str(error) if isinstance(error, ApoodError) else describe_failure(error)


def describe_failure(error: BaseException) -> str:
    """Return where an error came from, without its message, which may quote the input."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = "" if last is None else f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
    return f"{time.strftime('%H:%M:%S')} an unexpected error: {type(error).__name__}{where}"
