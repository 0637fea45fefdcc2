"""Turns: a lock in the order of asking."""

import threading
import time
from collections import deque

import pytest

from apood.support.turns import Turns


def test_one_thread_at_a_time():
    turns, inside, seen = Turns(), [], []

    def work() -> None:
        for _ in range(200):
            with turns:
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 800 and set(seen) == {1}


def test_a_thread_with_many_pieces_lets_others_pass():
    turns, order, begun = Turns(), [], threading.Event()

    def work_long() -> None:
        for number in range(20):
            with turns:
                order.append(("long", number))
                begun.set()
                time.sleep(0.01)

    def work_short() -> None:
        begun.wait()
        with turns:
            order.append(("short", 0))

    threads = [threading.Thread(target=work) for work in (work_long, work_short)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order.index(("short", 0)) <= 3, "it does not wait for all pieces"


def test_an_error_ends_the_turn():
    turns = Turns()
    with pytest.raises(ValueError, match="inside"), turns:
        raise ValueError("inside")
    with turns:
        pass


class InterruptedLine(deque):
    """A line in which Ctrl-C comes just before or just after a thread is put into it."""

    def __init__(self, *, after: bool) -> None:
        super().__init__()
        self.after = after

    def append(self, turn: object) -> None:
        if self.after:
            super().append(turn)
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_lining_up_blocks_nobody(after: bool):
    turns, entered = Turns(), threading.Event()
    turns._line = InterruptedLine(after=after)

    def ask() -> None:
        with turns:
            entered.set()

    with turns:
        with pytest.raises(KeyboardInterrupt), turns:
            pass
        turns._line = deque(turns._line)
        other = threading.Thread(target=ask, daemon=True)
        other.start()
        assert not entered.wait(0.05), "the turn still belongs to the first"
    assert entered.wait(10), "the next one gets it"
    other.join()


def test_an_interrupt_when_the_turn_has_come_passes_it_on(monkeypatch: pytest.MonkeyPatch):
    turns = Turns()

    class InterruptedLock:
        """A turn that comes while its thread waits, together with Ctrl-C."""

        def __init__(self) -> None:
            self.acquired = 0

        def acquire(self) -> None:
            self.acquired += 1
            if self.acquired == 2:
                turns.__exit__()
                raise KeyboardInterrupt

        def release(self) -> None:
            pass

    with monkeypatch.context() as patched:
        turns.__enter__()
        patched.setattr(threading, "Lock", InterruptedLock)
        with pytest.raises(KeyboardInterrupt):
            turns.__enter__()
    assert turns._holder is None and not turns._line
    with turns:
        pass
