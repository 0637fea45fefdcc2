"""The command line and trainings in separate processes, some of which are killed."""

import contextlib
import multiprocessing
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = [sys.executable, "-c", "from apood.cli import main; main()"]
"""The program as users start it, which needs seconds to import everything."""

context = multiprocessing.get_context("forkserver")
"""Processes that start at once: forks of a server that has imported everything heavy.

A process of pytest has one server with one list of modules, so this is the only place that gives one.
"""
context.set_forkserver_preload(
    [
        "apood.backbones.training_loop",
        "apood.cli.app",
        "apood.detectors.fusion",
        "apood.encoders.embed",
        "apood.pipeline.text_detector",
        "apood.serving.http.server",
        "hypothesis.strategies",
        "pytest",
        "torch._dynamo",  # an optimiser imports it at its first step
        "transformers.models.auto",
        "transformers.models.bert.modeling_bert",
    ]
)


class Ending(NamedTuple):
    """How a program ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str


class Program:
    """`apood` with these arguments in a fork, which has pipes, signals and a group like a process of its own.

    Attributes:
        pid: the number of the process and of its group.
        stdin, stdout, stderr: our ends of its pipes.
    """

    def __init__(self, *arguments: Any, cwd: Path | None = None, **environment: str) -> None:
        theirs_in, ours_in = context.Pipe(duplex=False)
        ours_out, theirs_out = context.Pipe(duplex=False)
        ours_err, theirs_err = context.Pipe(duplex=False)
        theirs, ours = (theirs_in, theirs_out, theirs_err), (ours_in, ours_out, ours_err)
        words, place = list(map(str, arguments)), str(cwd or Path.cwd())
        self._process = context.Process(target=_run_main, args=(words, place, {**os.environ, **environment}, *theirs))
        self._process.start()
        self.pid: int = self._process.pid or 0
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(os.dup(pipe.fileno()), mode) for pipe, mode in zip(ours, "wrr", strict=True)
        )
        for pipe in (*theirs, *ours):
            pipe.close()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # with the processes that it started
        self._process.kill()
        self._process.join()
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def is_running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, seconds: float = 60) -> Ending:
        """Wait for its end, and return how it ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"it did not end in {seconds} s"
        return Ending(self._process.exitcode, self.stdout.read(), self.stderr.read())


def run_program(*arguments: Any, cwd: Path | None = None) -> Ending:
    """Run `apood` with these arguments in a fork until it ends."""
    with Program(*arguments, cwd=cwd) as program:
        program.stdin.close()
        return program.end()


def _run_main(words: list[str], place: str, environment: dict[str, str], *pipes: Any) -> None:
    """Make this fork like a new process, and call the program."""
    import torch

    from apood.cli import main

    os.setpgid(0, 0)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate("rww"))  # noqa: SIM115, PTH123
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    sys.modules["__main__"] = types.ModuleType("__main__")  # that of pytest is not for processes that it starts
    sys.argv = ["apood", *words]
    main()


def wait_for_a_checkpoint(process, checkpoint, previous):
    """Wait until the file differs from `previous` or the process has ended; return the file's identity."""
    while process.is_alive():
        if checkpoint.exists() and (found := checkpoint.stat().st_mtime_ns) != previous:
            return found
        process.join(0.001)
    return previous
