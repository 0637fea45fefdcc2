"""One function on many tasks, in processes of their own: one that dies takes nothing but its task with it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TypeVar

from apood.support.errors import ApoodError
from apood.support.progress import progress_bar, relabel

__all__ = ["Failure", "Share", "attempt", "in_processes", "run_tasks", "share_cores"]

_TO_LEAVE = 10.0  # seconds for a process that is not wanted any more
Task = TypeVar("Task")
Result = TypeVar("Result")


class Failure(NamedTuple):
    """Why a task has no result, in one line; what apood did not foresee may have broken the process it happened in."""

    reason: str
    foreseen: bool = True


class Share(NamedTuple):
    """How many processes, and how many threads each of them has."""

    jobs: int
    threads: int


def share_cores(tasks: int, jobs: int | None = None) -> Share:
    """At most `jobs` processes, which together have no more threads than this machine has cores.

    The number of threads follows from the machine and the tasks alone: sums in floating point depend on it, and
    results must not change with `jobs`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // max(1, tasks))
    most = max(1, min(cores // threads, tasks))
    return Share(most if jobs is None else min(jobs, most), threads)


def attempt(function: Callable[[Task], Result], task: Task) -> Result | Failure:
    """What the function makes of a task, or why it could not."""
    try:
        return function(task)
    except ApoodError as error:
        return Failure(" ".join(str(error).split()))
    except Exception as error:
        return Failure(" ".join(f"{type(error).__name__}: {error}".split()), foreseen=False)


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    share: Share | None,
    label: str,
    on_done: Callable[[Task, Result | Failure], object],
) -> list[Result | Failure]:
    """Return the outcome of each task, in this process or in those of a `share`, under a progress bar."""
    found: dict[int, Result | Failure] = {}
    with progress_bar(len(tasks), label) as progress:

        def in_this_process() -> Iterator[tuple[int, Result | Failure]]:
            for index, task in enumerate(tasks):
                relabel(progress, f"{label}: {task}")
                yield index, attempt(function, task)

        for index, outcome in in_this_process() if share is None else in_processes(function, tasks, share):
            found[index] = outcome
            on_done(tasks[index], outcome)
            progress.update()
    return [found[index] for index in range(len(tasks))]


def in_processes(
    function: Callable[[Task], Result], tasks: Sequence[Task], share: Share
) -> Iterator[tuple[int, Result | Failure]]:
    """The number of each task with its result, as they come; the processes end with the iteration, however it ends."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit lock_folder threads
    waiting = deque(enumerate(tasks))
    processes: dict[Connection, BaseProcess] = {}
    busy: dict[Connection, int] = {}

    def start() -> None:
        pipe, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, function, share.threads), daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()  # so that its end is seen when the process ends
        processes[pipe] = process
        give(pipe)

    def give(pipe: Connection) -> None:
        busy[pipe], task = waiting.popleft()
        with contextlib.suppress(ConnectionError):  # one that is dead already is found out when nothing comes back
            pipe.send(task)

    def retire(pipe: Connection) -> None:
        """An error of a GPU, for one, stays with the process that had it."""
        pipe.close()
        process = processes.pop(pipe)
        process.join(_TO_LEAVE)
        if process.is_alive():
            process.kill()
            process.join()

    try:
        while waiting or busy:
            while waiting and len(processes) < share.jobs:
                start()
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                index = busy.pop(pipe)
                try:
                    outcome = pipe.recv()
                except (EOFError, ConnectionError):
                    pipe.close()
                    outcome = Failure(_how_it_ended(processes.pop(pipe)))
                else:
                    if isinstance(outcome, Failure) and not outcome.foreseen:
                        retire(pipe)
                    elif waiting:
                        give(pipe)
                yield index, outcome
    finally:
        for pipe, process in processes.items():
            pipe.close()  # one that waits for a task ends by itself
            if pipe in busy:
                process.terminate()
        for process in processes.values():
            process.join()


def _how_it_ended(process: BaseProcess) -> str:
    process.join()
    code = process.exitcode
    if code == -signal.SIGKILL:
        return "Its process was killed, most likely because memory ran out; use fewer jobs."
    return f"Its process ended with code {code}."


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that starts inside never sees Ctrl-C, which reaches all of them: the first one ends the others."""
    resource_tracker.ensure_running()  # else the start does it, and lets interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, function: Callable[[Task], Result], threads: int) -> None:
    """What a process does until nobody has tasks for it any more."""
    import torch
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # its own would be shared between processes, and left behind by one that is ended
    torch.set_num_threads(threads)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        sys.stderr = nowhere  # many progress bars on one terminal are none
        try:
            while True:
                pipe.send(attempt(function, pipe.recv()))
        except (EOFError, ConnectionError):
            return
