"""Calls in another thread: in order, one at a time, with their errors, and no thread left."""

import threading
from collections.abc import Iterator

import pytest

from apood.support.background import BackgroundCalls, map_concurrently


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("background", "concurrent"))]


def square(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number**2


def test_a_call_runs_while_this_thread_goes_on():
    met = threading.Barrier(2, timeout=30)
    with BackgroundCalls() as calls:
        call = calls.start(met.wait)
        assert sorted([met.wait(), call.result()]) == [0, 1]


def test_at_most_one_call_is_under_way():
    free, began = threading.Event(), threading.Event()
    with BackgroundCalls() as calls:
        first = calls.start(free.wait, 30)
        threading.Timer(0.05, free.set).start()
        calls.start(began.set)  # waits for the first one
        assert first.done() and free.is_set()
    assert began.is_set()


@pytest.mark.parametrize("at_once", [False, True])
def test_results_are_in_order(at_once: bool):
    with BackgroundCalls(at_once=at_once) as calls:
        assert list(calls.map(square, [1, 2, 4, 5])) == [1, 4, 16, 25]
        assert list(calls.map(square, [])) == []


def test_the_next_item_is_made_while_a_call_runs_and_no_further_one():
    """The item and the call wait for each other."""
    met = threading.Barrier(2, timeout=30)
    made: list[int] = []

    def make() -> Iterator[int]:
        for number in (0, 1, 2, 4):
            if number:
                met.wait()
            made.append(number)
            yield number

    def call(number: int) -> int:
        if number != 4:
            met.wait()
        return number

    with BackgroundCalls() as calls:
        found = calls.map(call, make())
        assert [(next(found), len(made)) for _ in range(4)] == [(0, 2), (1, 3), (2, 4), (4, 4)]


def test_results_come_first_if_nothing_is_ready():
    made: list[int] = []

    def make() -> Iterator[int]:
        for number in (1, 2):
            made.append(number)
            yield number

    with BackgroundCalls() as calls:
        assert [(own, len(made)) for own in calls.map(square, make(), lambda: False)] == [(1, 1), (4, 2)]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_comes_after_the_results_before_it(at_once: bool):
    def make() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("no more")

    for items, error in ((iter([1, 2, 3, 4]), ValueError), (make(), OSError)):
        found: list[int] = []
        with pytest.raises(error), BackgroundCalls(at_once=at_once) as calls:
            for own in calls.map(square, items):
                found.append(own)
        assert found == [1, 4]


def test_an_error_is_raised_by_the_next_call_or_at_the_end():
    with pytest.raises(ValueError, match="three"), BackgroundCalls() as calls:
        calls.start(square, 3)
        calls.start(square, 4)
        raise AssertionError("not reached")
    with pytest.raises(ValueError, match="three"), BackgroundCalls() as calls:
        calls.start(square, 3)
        raise OSError("of later work")
    with pytest.raises(ValueError, match="three"), BackgroundCalls(at_once=True) as calls:
        calls.start(square, 3)
        raise AssertionError("not reached")


def test_an_interrupt_waits_for_the_call_under_way():
    ended: list[bool] = []
    free = threading.Event()

    def work() -> None:
        free.wait(30)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt), BackgroundCalls() as calls:
        calls.start(work)
        threading.Timer(0.05, free.set).start()
        raise KeyboardInterrupt
    assert ended


@pytest.mark.parametrize("end", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_is_not_replaced_by_an_error(end: type[BaseException]):
    with pytest.raises(end), BackgroundCalls() as calls:
        calls.start(square, 3)
        raise end


def test_items_are_worked_on_at_the_same_time_and_stay_in_order():
    met = threading.Barrier(3, timeout=30)

    def wait(number: int) -> int:
        met.wait()
        return number

    assert list(map_concurrently(wait, range(9), at_once=3)) == list(range(9))
    assert list(map_concurrently(square, [])) == []


def test_no_more_items_are_taken_than_are_worked_on():
    taken: list[int] = []
    found = map_concurrently(lambda number: number, (taken.append(number) or number for number in range(99)), at_once=4)
    assert [(next(found), len(taken)) for _ in range(3)] == [(0, 4), (1, 5), (2, 6)]
    found.close()
    assert len(taken) == 6


def test_the_first_error_ends_it():
    taken: list[int] = []
    with pytest.raises(ValueError, match="three"):
        list(map_concurrently(square, (taken.append(number) or number for number in range(100)), at_once=2))
    assert taken == [0, 1, 2, 3, 4]
