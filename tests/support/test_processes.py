"""Tasks in processes of their own."""

import os
import signal

from hypothesis import given
from hypothesis import strategies as st

from apood.support.processes import Failure, Share, in_processes, share_cores


def test_a_process_that_dies_loses_only_its_task():
    # The first signal kills its process, the second does not exist, and the third is ignored.
    found = dict(in_processes(signal.raise_signal, [signal.SIGKILL, 1000, signal.SIGCHLD], Share(jobs=1, threads=1)))
    assert "killed" in found[0].reason and "memory" in found[0].reason
    assert found[1] == Failure("OSError: [Errno 22] Invalid argument", expected=False)
    assert found[2] is None


def test_a_process_that_failed_unexpectedly_gets_no_other_task():
    whose = "__import__('os').getpid()"
    found = dict(in_processes(eval, [whose, whose, "1 / 0", whose], Share(jobs=1, threads=1)))
    assert found[2] == Failure("ZeroDivisionError: division by zero", expected=False)
    assert found[0] == found[1] != found[3]


@given(tasks=st.integers(1, 300), jobs=st.none() | st.integers(1, 300))
def test_processes_share_the_cores(tasks, jobs):
    share = share_cores(tasks, jobs)
    cores = len(os.sched_getaffinity(0))
    assert 1 <= share.jobs <= min(tasks, jobs or tasks) and share.threads >= 1
    assert share.jobs * share.threads <= cores
    assert share.threads == share_cores(tasks).threads  # sums depend on it, so it may not depend on the jobs
