"""The command line and trainings in separate processes, some of which are killed."""

import signal
import sys

PROGRAM = [sys.executable, "-c", "from apood.cli import main; main()"]


def heed_interrupts() -> None:
    """Restore SIGINT in a new process, which ignores it if its parent runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_a_checkpoint(process, checkpoint, previous):
    """Wait until the file differs from `previous` or the process has ended; return the file's identity."""
    while process.is_alive():
        if checkpoint.exists() and (found := checkpoint.stat().st_mtime_ns) != previous:
            return found
        process.join(0.001)
    return previous
