"""Work in a process of its own: the command line, and trainings that are killed."""

import signal
import sys

PROGRAM = [sys.executable, "-c", "from apood.cli import main; main()"]


def heed_interrupts() -> None:
    """To run in a process about to start: one whose parent is in the background would ignore SIGINT like it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_a_checkpoint(process, checkpoint, previous):
    """Until the file is another one than `previous`, or the process has ended; gives the file's identity."""
    while process.is_alive():
        if checkpoint.exists() and (found := checkpoint.stat().st_mtime_ns) != previous:
            return found
        process.join(0.001)
    return previous
