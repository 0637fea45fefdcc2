"""Turns: a lock in the order of asking."""

import threading
import time

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
