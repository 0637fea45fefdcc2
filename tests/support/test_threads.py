"""The race of all threads against one."""

import pytest
import torch

from apood.support import threads
from apood.support.threads import ThreadRace


@pytest.fixture
def machine(monkeypatch):
    """Return a machine of 8 threads that can be told how long a piece takes; its clock only moves by work."""

    class Machine:
        threads, clock, costs = 8, 0.0, {1: 1.0, 8: 1.0}

        def work(self, size=1.0):
            self.clock += size * self.costs[self.threads]
            return self.threads

    own = Machine()
    monkeypatch.setattr(torch, "get_num_threads", lambda: own.threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: setattr(own, "threads", number))
    monkeypatch.setattr(threads.time, "perf_counter", lambda: own.clock)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return own


def race(machine, pieces=12, **options):
    """Return the number of threads of each piece."""
    own, used = ThreadRace(**options), []
    for number in range(pieces):
        with own.piece(1.0 + number):  # pieces of different sizes are compared by the time per size
            used.append(machine.work(1.0 + number))
        assert machine.threads == 8, "set back"
    return used


@pytest.mark.parametrize(("costs", "winner"), [({1: 2.0, 8: 1.0}, 8), ({1: 1.0, 8: 2.0}, 1)])
def test_the_faster_number_does_the_rest(machine, costs, winner):
    machine.costs = costs
    assert race(machine) == [8, 1, 8, 1, 8, 1, 8, *[winner] * 5]


def test_a_number_that_is_far_slower_is_tried_once(machine):
    machine.costs = {1: 20.0, 8: 1.0}
    assert race(machine) == [8, 1, *[8] * 10]
    machine.costs = {1: 1.0, 8: 20.0}
    assert race(machine) == [8, 1, 8, *[1] * 9]


def test_whoever_set_a_number_keeps_it(machine, monkeypatch):
    machine.costs = {1: 1.0, 8: 9.0}
    assert race(machine, on_cpu=False) == [8] * 12
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert race(machine) == [8] * 12


def test_the_number_is_set_back_after_an_error(machine):
    machine.costs = {1: 1.0, 8: 9.0}
    own = ThreadRace()
    for _ in range(5):
        with own.piece():
            machine.work()
    with pytest.raises(KeyboardInterrupt), own.piece():
        assert machine.threads == 1
        raise KeyboardInterrupt
    assert machine.threads == 8
