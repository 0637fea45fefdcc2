"""The one module that knows Ray: connect to a cluster, and let a pool of workers process the parts of a job."""

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, TextIO, cast

from apood.data.parts import Part
from apood.scale.job import Settings
from apood.scale.units import make_row
from apood.scale.worker import Worker
from apood.support.checks import format_count, import_optional
from apood.support.errors import InputError
from apood.support.progress import progress_bar

__all__ = ["Cluster", "connect", "find_resources", "has_cluster", "run_workers"]

_ADDRESS = "RAY_ADDRESS"
_ANSWER_SECONDS = 10.0
_PROBE_SECONDS = 60.0  # until a machine has started a process and imported torch
_FREE_SECONDS = 5.0  # until the resources of a job that has just ended are free again
_MOST_BLOCKS = 10_000  # lists of parts that Ray holds; a part is a block of its own if there are not more
_OWN_ERROR = re.compile(r"(?:\w+\(\w+\): )?(?:apood\.[\w.]+Error|InputError): (.+)")  # in a traceback of a worker
_MOST_THREADS = 8  # CPU threads of a worker with a GPU
_SOME_FAIL = (
    "If workers start on some machines and not on others, take the others out of the cluster, or give fewer --workers."
)
_REPEATED = "retries remaining"  # in a notice of Ray about an error that it survives, with the whole traceback
_DIED = "A worker died or was killed"  # in a notice of Ray, followed by lists of numbers and of possible reasons


@dataclass(frozen=True)
class Cluster:
    """The resources of a cluster.

    Attributes:
        machines: what each machine has, by Ray's names, such as CPU and GPU.
        uses_gpus: whether workers use GPUs: not if torch does not see them.
    """

    machines: Sequence[Mapping[str, float]]
    uses_gpus: bool

    def count_workers(self, wanted: int | None) -> int:
        """Return how many workers there are: as wanted, or one per GPU or, without GPUs, per processor."""
        most = self._count_places(self.machines)
        if not most:
            raise InputError(
                "No machine of the Ray cluster has a GPU and a processor, which a worker needs: start its nodes with "
                "both."
                if self.uses_gpus
                else "The Ray cluster has no processor for workers yet: start a node that has some."
            )
        if wanted is not None and wanted > most:
            units = "GPUs with a processor on their machine" if self.uses_gpus else "processors"
            raise InputError(f"--workers {wanted} needs as many {units}, and the cluster has {most}.")
        return wanted or most

    def without_gpus(self) -> "Cluster":
        """Return the same machines without their GPUs, for workers that need none."""
        machines = [{name: count for name, count in own.items() if name != "GPU"} for own in self.machines]
        return replace(self, machines=machines, uses_gpus=False)

    def list_notices(self, workers: int) -> Iterator[str]:
        """Yield sentences about what the user may not expect if so many workers start now."""
        if (gpus := _count_gpus(self.machines)) and not self.uses_gpus:
            yield (
                f"The cluster offers {format_count(gpus, 'GPU')} that torch cannot use, so workers use "
                "processors: install torch with CUDA on its machines."
            )
        if (shortage := self._describe_shortage(workers)) is not None:
            yield shortage

    def _describe_shortage(self, workers: int) -> str | None:
        """Return a sentence if so many workers cannot start within some seconds, because others use the cluster."""
        from ray._private.state import available_resources_per_node

        until = time.monotonic() + _FREE_SECONDS
        while (free := self._count_places(available_resources_per_node().values())) < workers:
            if time.monotonic() > until:
                what = "GPUs" if self.uses_gpus else "processors"
                return (
                    f"The cluster has room for {free} of {workers} workers: other programs use its {what}, and the "
                    "rest begin when these end."
                )
            time.sleep(0.2)
        return None

    def _count_places(self, machines: Iterable[Mapping[str, float]]) -> int:
        """Return for how many workers these resources are enough; a worker needs all of its own on one machine."""
        needs = {name.removeprefix("num_")[:-1].upper(): count for name, count in self.needs.items()}
        return sum(min(int(own.get(name, 0) // count) for name, count in needs.items()) for own in machines)

    @property
    def needs(self) -> dict[str, float]:
        """The resources of one worker, which fit on every machine. Ray gives it as many threads as processors."""
        if not self.uses_gpus:
            return {"num_cpus": 1}
        shares = [own["CPU"] // own["GPU"] for own in self.machines if own.get("GPU", 0) >= 1 <= own.get("CPU", 0)]
        return {"num_gpus": 1, "num_cpus": max(1, int(min([_MOST_THREADS, *shares])))}


def _count_gpus(machines: Iterable[Mapping[str, float]]) -> int:
    return sum(int(own.get("GPU", 0)) for own in machines)


def has_cluster(address: str | None) -> bool:
    """Return whether `connect` finds a cluster, or refuses the address; otherwise it starts Ray on this machine."""
    return (address or os.environ.get(_ADDRESS) or "local") != "local"


@contextmanager
def connect(address: str | None) -> Iterator[None]:
    """Connect to the cluster at `address` during the block: host:port, or "auto" for the one on this machine.

    Without an address it is that in the variable RAY_ADDRESS or, if there is none, Ray is started on this machine and
    stopped at the end.

    Raises:
        InputError: if Ray is not installed, or if there is no cluster at the address.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # otherwise Ray prints its own notices of restarts
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _REPEATED)
    ray = import_optional("ray", "ray", "--engine ray")
    import_optional("ray.data", "ray", "--engine ray")
    ours = not ray.is_initialized()
    if ours:
        address = address or os.environ.get(_ADDRESS)
        _refuse_unreachable(address)
        local: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            with _silence():
                ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise InputError(_describe_failure(address, error)) from error
    with redirect_stdout(cast(TextIO, _Notices())):  # Ray prints them among the results, also when it stops
        try:
            yield
        finally:
            if ours:
                ray.shutdown()


def _describe_failure(address: str | None, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return "There is no Ray cluster on this machine: start one with `ray start --head`."
    if address in (None, "local"):
        return f"Ray cannot be started on this machine ({error})."
    return f"There is no Ray cluster at {address} ({error})."


class _Notices:
    """Standard error, with a sentence in the place of each of Ray's long notices of the death of a worker."""

    def write(self, text: str) -> int:
        if _DIED in text:
            text = "A worker died; its work is repeated."
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def find_resources() -> Cluster:
    """Return the resources of the cluster of `connect`.

    Raises:
        InputError: if a machine with a GPU cannot run apood.
    """
    import ray

    machines = [own["Resources"] for own in ray.nodes() if own["Alive"]]
    return Cluster(machines, uses_gpus=_count_gpus(machines) > 0 and _sees_gpu(ray))


def _sees_gpu(ray: Any) -> bool:
    """Return whether torch on a machine with a GPU can use it; True if all GPUs are busy, so that nobody can say."""
    if ray.available_resources().get("GPU", 0) < 1:
        return True
    answer = ray.remote(num_gpus=1, num_cpus=0)(_is_gpu_usable).remote()
    try:
        return bool(ray.get(answer, timeout=_PROBE_SECONDS))
    except ray.exceptions.GetTimeoutError:  # another program was faster
        ray.cancel(answer)
        return True
    except ray.exceptions.RayError as error:
        raise _explain(error) from error


def _is_gpu_usable() -> bool:
    import torch

    return torch.cuda.is_available()


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what Ray's own library prints on standard error while it starts. Errors are raised, not printed."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _refuse_unreachable(address: str | None) -> None:
    """Raise InputError if nobody listens at an address. Ray itself would try for a minute."""
    if address is None or address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal():
        raise InputError(
            f"--address takes host:port of a cluster's head node, such as 10.0.0.1:6379, or auto, got {address!r}."
        )
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"Nobody answers at {address} ({error}): start the cluster with `ray start --head`, and give its address."
        ) from error


def run_workers(
    worker: type[Worker],
    settings: Settings,
    parts: Sequence[Part],
    chosen: Sequence[int],
    *,
    cluster: Cluster,
    workers: int,
) -> Iterator[dict[str, Any]]:
    """Yield what workers return about each of the `chosen` parts, as soon as it is done.

    Rows of the plan go through Ray, texts and results do not: a worker reads its part, and commits its shards. So Ray
    moves next to nothing. Its back-pressure keeps as many parts at work as there are workers. It starts a worker that
    died again, elsewhere if the node is gone, and repeats its part, of which only the unit at work was lost.
    """
    from ray.data import ActorPoolStrategy

    if not chosen:
        return
    count = min(workers, len(chosen))
    data = _make_dataset(parts, chosen, count).map(
        worker,
        fn_constructor_args=(replace(settings, on_gpu=cluster.uses_gpus),),
        compute=ActorPoolStrategy(size=count),
        **cluster.needs,
    )
    with progress_bar(len(chosen), worker.__name__.removesuffix("Worker").lower(), unit="part") as progress:
        for found in _iterate(data, len(cluster.machines)):
            progress.update()
            yield found


def _make_dataset(parts: Sequence[Part], chosen: Sequence[int], workers: int) -> Any:
    import ray.data

    context = ray.data.DataContext.get_current()
    wanted = {
        "enable_progress_bars": False,
        "execution_no_progress_timeout_s": -1,  # otherwise Ray gives a job up if no part is done for half an hour
        # A worker that cannot start is replaced. If as many in a row cannot start as there are workers, and one more,
        # the error of the last one ends the work. One machine is enough for that if workers hold all places elsewhere.
        "actor_init_retry_on_errors": True,
        "actor_init_max_retries": 1,
        "max_consecutive_actor_init_deaths": workers,
    }
    for name, value in wanted.items():
        if hasattr(context, name):  # earlier versions have fewer
            setattr(context, name, value)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised; it would print their tracebacks too
    rows = [make_row(number, parts[number]) for number in chosen]
    return ray.data.from_items(rows, override_num_blocks=min(len(rows), _MOST_BLOCKS))


def _iterate(data: Any, machines: int) -> Iterator[dict[str, Any]]:
    from ray.exceptions import RayError

    try:
        yield from data.iter_rows()
    except Exception as error:
        if isinstance(error, RayError) or type(error).__module__.startswith("ray."):  # Ray Data has errors of its own
            raise _explain(error, machines) from error
        raise


def _explain(error: BaseException, machines: int = 1) -> InputError:
    """Return the error of apood that made a worker fail or, if there is none, the last line of what Ray says.

    If a worker could not start on one of several machines, it also says what to do if only some are to blame.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [match[1] for line in lines if (match := _OWN_ERROR.match(line))]
    message = found[-1] if found else f"A worker failed: {lines[-1] if lines else type(error).__name__}"
    advises = machines > 1 and getattr(error, "actor_init_failed", False)
    return InputError(f"{message} {_SOME_FAIL}" if advises else message)
