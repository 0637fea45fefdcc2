"""Tasks in processes of their own: a process that dies loses nothing but its task."""

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

_SECONDS_TO_END = 10.0  # for a process that is no longer needed
Task = TypeVar("Task")
Result = TypeVar("Result")


class Failure(NamedTuple):
    """The failure of a task.

    Attributes:
        reason: the error message, in one line.
        expected: whether apood raised the error itself; any other error may have broken its process.
    """

    reason: str
    expected: bool = True


class Share(NamedTuple):
    """A share of the cores.

    Attributes:
        jobs: number of processes.
        threads: number of threads per process.
    """

    jobs: int
    threads: int


def share_cores(tasks: int, jobs: int | None = None) -> Share:
    """Return at most `jobs` processes, which together have no more threads than this machine has cores.

    The number of threads depends on the machine and the number of tasks alone: floating-point sums depend on it, and
    results must not change with `jobs`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // max(1, tasks))
    most = max(1, min(cores // threads, tasks))
    return Share(most if jobs is None else min(jobs, most), threads)


def attempt(function: Callable[[Task], Result], task: Task) -> Result | Failure:
    """Return the result of a task, or its failure."""
    try:
        return function(task)
    except ApoodError as error:
        return Failure(" ".join(str(error).split()))
    except Exception as error:
        return Failure(" ".join(f"{type(error).__name__}: {error}".split()), expected=False)


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
    """Yield the number of each task with its result, as they finish; the processes end with the iteration."""
    context = multiprocessing.get_context("spawn")  # a forked process would inherit the locks of threads
    waiting = deque(enumerate(tasks))
    processes: dict[Connection, BaseProcess] = {}
    busy: dict[Connection, int] = {}

    def start() -> None:
        pipe, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, function, share.threads), daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()  # so that the end of the process is noticed
        processes[pipe] = process
        give(pipe)

    def give(pipe: Connection) -> None:
        busy[pipe], task = waiting.popleft()
        with contextlib.suppress(ConnectionError):  # a process that is already dead is noticed when it does not answer
            pipe.send(task)

    def retire(pipe: Connection) -> None:
        """End a process after an unexpected error: an error of a GPU, for example, stays in its process."""
        pipe.close()
        process = processes.pop(pipe)
        process.join(_SECONDS_TO_END)
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
                    outcome = Failure(_describe_end(processes.pop(pipe)))
                else:
                    if isinstance(outcome, Failure) and not outcome.expected:
                        retire(pipe)
                    elif waiting:
                        give(pipe)
                yield index, outcome
    finally:
        for pipe, process in processes.items():
            pipe.close()  # a process that waits for a task then ends by itself
            if pipe in busy:
                process.terminate()
        for process in processes.values():
            process.join()


def _describe_end(process: BaseProcess) -> str:
    process.join()
    code = process.exitcode
    if code == -signal.SIGKILL:
        return "Its process was killed, most likely because memory ran out; use fewer jobs."
    return f"Its process ended with code {code}."


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hide Ctrl-C from processes that start inside: it reaches all processes, and the parent ends the others."""
    resource_tracker.ensure_running()  # otherwise the start would do it, and allow interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, function: Callable[[Task], Result], threads: int) -> None:
    """Run tasks in a child process until there are no more."""
    import torch
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # the default lock is shared between processes, and a killed one would keep it
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # results must not depend on the number of processes
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        sys.stderr = nowhere  # several progress bars on one terminal are unreadable
        try:
            while True:
                pipe.send(attempt(function, pipe.recv()))
        except (EOFError, ConnectionError):
            return
