"""Calls in other threads: one at a time beside this thread, or several at once that mostly wait."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Self, TypeVar

__all__ = ["BackgroundCalls", "map_concurrently"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_FIRST = -1  # the priority of a stream whose work a GPU begins before that of others


class BackgroundCalls:
    """Runs one call at a time in another thread, inside of a `with` block.

    The error of a call is raised by the next `start`, or on exit. On exit it replaces an error of this thread, because
    it belongs to work that was started earlier. KeyboardInterrupt and GeneratorExit are not replaced: a caller that
    catches errors must not swallow them. The thread ends with the block.

    Args:
        on_gpu: whether calls compute on a GPU on which this thread computes, too. They then have a CUDA stream of their
            own. In the stream of this thread, each of their results would wait for all that was launched before. Their
            results must be on the CPU, because memory of the GPU would belong to their stream.
        at_once: run each call at once, in this thread: for work that would only compete with that of this thread.
    """

    def __init__(self, *, on_gpu: bool = False, at_once: bool = False) -> None:
        self._on_gpu, self._at_once = on_gpu, at_once

    def __enter__(self) -> Self:
        self._pool = None if self._at_once else ThreadPoolExecutor(1, "background")
        self._call: Future[Any] | None = None
        # Chosen here, because another thread may have another current GPU.
        self._stream = _find_stream_here() if self._on_gpu else None
        return self

    def start(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Wait for the previous call, start this one, and return its future result."""
        if self._pool is None:
            done: Future[Result] = Future()
            done.set_result(function(*arguments))
            return done
        if self._call is not None:
            self._call.result()
        if self._stream is not None:
            _let_wait(self._stream)
        call = self._pool.submit(self._run, function, arguments)
        self._call = call
        return call

    def _run(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        if self._stream is None:
            return function(*arguments)
        import torch  # not above: commands that use no GPU import this module, too

        with torch.cuda.stream(self._stream):
            result = function(*arguments)
        self._stream.synchronize()
        return result

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], ready: Callable[[], bool] = lambda: True
    ) -> Generator[Result]:
        """Yield what the function returns for each item, in order; while it runs for one, the next item is made.

        An error in making an item is raised after the results for all items before it were yielded. `ready` says
        whether the next item can be made without waiting for whoever gives it; if not, the result comes first.
        """
        last: Future[Result] | None = None
        try:
            for item in items:
                following = self.start(function, item)
                if last is not None:
                    yield last.result()
                last = following
                if self._pool is None or not ready():
                    yield last.result()
                    last = None
        except Exception:
            if last is not None:
                yield last.result()
            raise
        if last is not None:
            yield last.result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        with self._pool:  # which waits, too, so that one more Ctrl-C does not leave the call under way
            if self._call is not None:
                wait([self._call])
        if self._call is not None and (kind is None or issubclass(kind, Exception)):
            self._call.result()


def _find_stream_here() -> Any:
    """Return the stream of all calls of this process on the current GPU."""
    import torch

    return _find_stream(torch.cuda.current_device())


def _let_wait(stream: Any) -> None:
    """Let a stream begin its next work after all that this thread has launched on its GPU."""
    import torch

    stream.wait_stream(torch.cuda.current_stream(stream.device))


@cache  # torch keeps memory for each stream, so that a new one would begin without any
def _find_stream(gpu: int) -> Any:
    import torch

    return torch.cuda.Stream(gpu, priority=_FIRST)  # type: ignore[no-untyped-call]


def map_concurrently(
    function: Callable[[Item], Result], items: Iterable[Item], *, at_once: int = 16
) -> Generator[Result]:
    """Yield what the function returns for each item, in order, for functions that mostly wait, such as for a network.

    At most `at_once` items are worked on, and as many results are held. The first error ends it.
    """
    with ThreadPoolExecutor(at_once, "concurrent") as pool:
        calls: deque[Future[Result]] = deque()
        try:
            for item in items:
                calls.append(pool.submit(function, item))
                if len(calls) == at_once:
                    yield calls.popleft().result()
            while calls:
                yield calls.popleft().result()
        finally:
            for call in calls:
                call.cancel()
