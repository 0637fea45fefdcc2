"""The command line in a process of its own."""

import signal
import sys

PROGRAM = [sys.executable, "-c", "from apood.cli import main; main()"]


def heed_interrupts() -> None:
    """To run in a process about to start: one whose parent is in the background would ignore SIGINT like it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
