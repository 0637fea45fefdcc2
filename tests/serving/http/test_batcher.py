"""The micro-batcher shares batches, keeps its limits, and loses nothing."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any

import pytest

from apood.serving.http.batcher import Batcher, FullError, LateError


class Model:
    """Doubles numbers. While it is held, a batch waits."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()

    def run(self, pieces: Sequence[int]) -> list[int]:
        self.batches.append(list(pieces))
        assert self.free.wait(10)
        if -1 in pieces:
            raise ValueError("a piece that cannot be run")
        return [2 * piece for piece in pieces]


def use(test: Callable[[Batcher, Model], Awaitable[None]], *, batch: int = 10, most: int = 1000) -> None:
    async def run() -> None:
        batcher = Batcher(batch, most)
        model = Model()
        try:
            await asyncio.wait_for(test(batcher, model), 20)
            assert batcher.in_flight == 0
        finally:
            model.free.set()
            await batcher.close()

    asyncio.run(run())


def ask(batcher: Batcher, model: Any, pieces: Sequence[int], *, size: int = 1, seconds: float = 10) -> Any:
    return asyncio.ensure_future(batcher.submit(model.run, pieces, [size] * len(pieces), seconds))


async def hold(batcher: Batcher, model: Model) -> Any:
    """Keep the worker busy with one piece until the model is freed."""
    model.free.clear()
    first = ask(batcher, model, [0])
    while not model.batches:
        await asyncio.sleep(0.001)
    return first


def test_requests_that_wait_share_batches_within_the_budget():
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        others = [ask(batcher, model, [n], size=3) for n in range(1, 6)]
        await asyncio.sleep(0.01)
        assert batcher.in_flight == 16
        model.free.set()
        assert await first == [0]
        assert await asyncio.gather(*others) == [[2], [4], [6], [8], [10]]
        assert model.batches == [[0], [1, 2, 3], [4, 5]]

    use(test)


def test_a_piece_larger_than_the_budget_is_a_batch_of_its_own():
    async def test(batcher: Batcher, model: Model) -> None:
        assert await ask(batcher, model, [1, 2], size=50) == [2, 4]
        assert model.batches == [[1], [2]]

    use(test)


def test_a_small_request_overtakes_a_list_but_the_list_is_finished():
    async def test(batcher: Batcher, model: Model) -> None:
        done = []
        (await hold(batcher, model)).add_done_callback(lambda _: done.append("first"))
        batcher._speed = 100.0  # so that sizes matter
        large = ask(batcher, model, list(range(100)), seconds=100)
        large.add_done_callback(lambda _: done.append("large"))
        await asyncio.sleep(0.01)
        small = ask(batcher, model, [7], seconds=100)
        small.add_done_callback(lambda _: done.append("small"))
        await asyncio.sleep(0.01)
        model.free.set()
        assert await large == [2 * n for n in range(100)]
        assert await small == [14]
        assert done == ["first", "small", "large"]

    use(test)


def test_a_late_request_leaves_the_queue():
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        with pytest.raises(LateError, match="within its deadline"):
            await ask(batcher, model, [1, 2, 3], seconds=0.05)
        assert batcher.in_flight == 1
        model.free.set()
        await first
        assert await ask(batcher, model, [4]) == [8]
        assert model.batches == [[0], [4]]

    use(test)


def test_an_abandoned_request_leaves_the_queue():
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        gone = ask(batcher, model, [1, 2, 3])
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert batcher.in_flight == 1
        model.free.set()
        await first
        assert await ask(batcher, model, [4]) == [8]
        assert model.batches == [[0], [4]]

    use(test)


@pytest.mark.parametrize("pieces", [[1], [1] * 20])
def test_a_full_service_refuses_single_requests_and_lists_by_their_tokens(pieces):
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        waiting = ask(batcher, model, [1], size=30)
        await asyncio.sleep(0.01)
        with pytest.raises(FullError) as refused:
            await ask(batcher, model, pieces, size=20 // len(pieces))
        assert refused.value.retry_after >= 1
        model.free.set()
        await asyncio.gather(first, waiting)
        assert await ask(batcher, model, pieces, size=20 // len(pieces)) == [2 * piece for piece in pieces]

    use(test, most=50)


def test_a_request_that_would_be_late_is_refused_at_once():
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        batcher._speed = 10.0
        waiting = ask(batcher, model, [1], size=20, seconds=10)
        await asyncio.sleep(0.01)
        with pytest.raises(FullError, match="try again in 5 s"):
            await ask(batcher, model, [2], size=25, seconds=10)
        batcher.check_room(10)
        with pytest.raises(FullError):
            batcher.check_room(1)
        model.free.set()
        await asyncio.gather(first, waiting)

    use(test)


def test_an_idle_worker_takes_any_request_so_that_a_wrong_estimate_corrects_itself():
    async def test(batcher: Batcher, model: Model) -> None:
        batcher._speed = 1e-6
        for _ in range(30):
            assert await ask(batcher, model, [1], size=10) == [2]
        assert batcher._speed > 100

    use(test)


def test_an_error_fails_only_its_own_request():
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        good, bad = ask(batcher, model, [1, 2]), ask(batcher, model, [3, -1])
        await asyncio.sleep(0.01)
        model.free.set()
        await first
        assert await good == [2, 4]
        with pytest.raises(ValueError, match="cannot be run"):
            await bad

    use(test)


def test_after_an_error_the_pieces_of_a_late_request_are_not_tried_one_by_one():
    async def test(batcher: Batcher, model: Model) -> None:
        model.free.clear()
        with pytest.raises(LateError):
            await ask(batcher, model, [-1, 1, 2], seconds=0.05)
        model.free.set()
        assert await ask(batcher, model, [4]) == [8]
        assert model.batches == [[-1, 1, 2], [4]]

    use(test)


def test_a_result_that_is_there_at_the_deadline_is_given():
    async def test(batcher: Batcher, model: Model) -> None:
        model.free.clear()
        asked = ask(batcher, model, [1], seconds=10)
        while not model.batches:
            await asyncio.sleep(0.001)
        model.free.set()
        batcher._worker.submit(int).result()  # the worker is done, and the loop learns of it in its next turn
        loop = asyncio.get_running_loop()
        loop.call_soon(setattr, loop, "time", lambda: time.monotonic() + 10)  # after which the deadline has passed
        assert await asked == [2]

    use(test)


class Wrong(Model):
    """Returns too few results, or raises what a future refuses."""

    def run(self, pieces: Sequence[int]) -> list[int]:
        if 1 in pieces:
            return []
        if 2 in pieces:
            raise StopIteration
        return super().run(pieces)


def test_the_worker_goes_on_after_wrong_results_and_errors_of_its_observer():
    async def test(batcher: Batcher, _model: Model) -> None:
        model = Wrong()
        for piece, expected in ((1, ValueError), (2, RuntimeError)):
            with pytest.raises(expected):
                await ask(batcher, model, [piece], seconds=2)
        first = await hold(batcher, model)
        asked = [ask(batcher, model, [piece]) for piece in (1, 3)]
        await asyncio.sleep(0.01)
        model.free.set()
        assert await first == [0] and await asked[1] == [6]
        with pytest.raises(ValueError, match="values to unpack"):
            await asked[0]

        def fail(_tokens: int, _seconds: float) -> None:
            raise KeyError

        batcher.observe = fail
        with pytest.raises(KeyError):
            await ask(batcher, model, [4], seconds=2)
        batcher.observe = lambda _tokens, _seconds: None
        assert await ask(batcher, model, [5], seconds=2) == [10]

    use(test)


def test_what_is_being_prepared_is_in_flight():
    async def test(batcher: Batcher, model: Model) -> None:
        with batcher.announce(10, 40):
            assert batcher.in_flight == 40
            with pytest.raises(FullError), batcher.announce(10, 20):
                pass
            assert await ask(batcher, model, [1]) == [2]

    use(test, most=50)


def test_pieces_of_two_detectors_never_share_a_batch():
    async def test(batcher: Batcher, model: Model) -> None:
        other = Model()
        first = await hold(batcher, model)
        asked = [ask(batcher, model if n % 2 else other, [n]) for n in range(1, 7)]
        await asyncio.sleep(0.01)
        model.free.set()
        await first
        assert await asyncio.gather(*asked) == [[2 * n] for n in range(1, 7)]
        assert sorted(chain(*model.batches)) == [0, 1, 3, 5] and sorted(chain(*other.batches)) == [2, 4, 6]

    use(test)


def test_the_event_loop_runs_while_the_model_works():
    async def test(batcher: Batcher, model: Model) -> None:
        first = await hold(batcher, model)
        started, turns = time.perf_counter(), 0
        while time.perf_counter() - started < 0.05:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
        model.free.set()
        await first

    use(test)
