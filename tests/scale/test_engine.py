"""What a command asks a cluster before its workers start, with a stand-in for Ray that answers at once."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from apood.data.parts import Part
from apood.scale import engine
from apood.support.errors import InputError


class _RayError(Exception):
    pass


class _GetTimeoutError(_RayError):
    pass


class FakeRay:
    """A machine of 4 processors and 2 GPUs, and one that is gone. A task runs or fails when its answer is asked for."""

    exceptions = SimpleNamespace(RayError=_RayError, GetTimeoutError=_GetTimeoutError)

    def __init__(self, free: float = 2.0, failure: Exception | None = None) -> None:
        self.free, self.failure = free, failure
        self.asked: list[Any] = []
        self.cancelled: list[Any] = []

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"CPU": 4.0, "GPU": 2.0, "memory": 1e9}
        return [{"Alive": alive, "Resources": resources if alive else {}} for alive in (True, False)]

    def available_resources_per_node(self) -> dict[str, dict[str, float]]:
        return {"one": self.available_resources()}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 4.0} | ({"GPU": self.free} if self.free else {})

    def remote(self, **needs: float) -> Callable[..., Any]:
        assert needs == {"num_gpus": 1, "num_cpus": 0}
        return lambda function: SimpleNamespace(remote=lambda: function)

    def get(self, answer: Callable[[], Any], timeout: float) -> Any:
        assert timeout > 0
        self.asked.append(answer)
        if self.failure is not None:
            raise self.failure
        return answer()

    def cancel(self, answer: Any) -> None:
        self.cancelled.append(answer)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay], FakeRay]:
    """A function that puts a stand-in in the place of Ray."""

    def replace_ray(fake: FakeRay) -> FakeRay:
        monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "ray.data", SimpleNamespace())  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "ray._private.state", fake)  # type: ignore[arg-type]
        return fake

    return replace_ray


@pytest.mark.parametrize("usable", [True, False])
def test_workers_ask_for_gpus_that_torch_can_use(use, monkeypatch: pytest.MonkeyPatch, usable: bool):
    use(FakeRay())
    monkeypatch.setattr("torch.cuda.is_available", lambda: usable)
    found = engine.find_resources()
    assert found.needs == ({"num_gpus": 1, "num_cpus": 2} if usable else {"num_cpus": 1})
    assert found.count_workers(None) == (2 if usable else 4)
    notices = list(found.list_notices(1))
    assert len(notices) == (not usable)
    assert usable or "offers 2 GPUs that torch cannot use, so workers use processors" in notices[0]


HEAD, CPUS, GPUS = {"CPU": 64.0}, {"CPU": 96.0}, {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("machines", "threads", "workers"),
    [
        ([HEAD, GPUS], 2, 4),  # the 64 processors of the head are of no use to a worker on the other machine
        ([CPUS, GPUS, {"CPU": 96.0, "GPU": 8.0}], 2, 12),  # the smallest share fits everywhere
        ([{"CPU": 256.0, "GPU": 2.0}], 8, 2),
        ([{"CPU": 2.0, "GPU": 4.0}, {"CPU": 64.0, "GPU": 4.0}], 1, 6),
        ([{"GPU": 1.0}, GPUS], 2, 4),  # a head that takes no work
    ],
)
def test_a_worker_needs_a_gpu_and_processors_of_the_same_machine(machines, threads: int, workers: int):
    cluster = engine.Cluster(machines, uses_gpus=True)
    assert cluster.needs == {"num_gpus": 1, "num_cpus": threads}
    assert cluster.count_workers(None) == workers
    message = f"--workers {workers + 1} needs as many GPUs with a processor .* the cluster has {workers}"
    with pytest.raises(InputError, match=message):
        cluster.count_workers(workers + 1)


def test_what_fits_nowhere_is_refused():
    with pytest.raises(InputError, match="No machine of the Ray cluster has a GPU and a processor"):
        engine.Cluster([HEAD, {"GPU": 4.0}], uses_gpus=True).count_workers(None)
    with pytest.raises(InputError, match="has no processor for workers yet"):
        engine.Cluster([{}], uses_gpus=False).count_workers(None)
    assert engine.Cluster([{"CPU": 1.0}, GPUS], uses_gpus=False).count_workers(None) == 9


def test_free_places_are_counted_on_each_machine(use, monkeypatch: pytest.MonkeyPatch):
    ray = use(FakeRay())
    monkeypatch.setattr(engine, "_FREE_SECONDS", 0.0)
    free = {"head": HEAD, "busy": {"CPU": 1.0, "GPU": 3.0}, "idle": {"CPU": 6.0, "GPU": 1.0}, "new": GPUS}
    monkeypatch.setattr(ray, "available_resources_per_node", lambda: free)
    (notice,) = engine.Cluster([HEAD, GPUS, GPUS, GPUS], uses_gpus=True).list_notices(12)
    assert notice.startswith("The cluster has room for 5 of 12 workers: other programs use its GPUs")


def test_busy_gpus_are_not_waited_for(use, monkeypatch: pytest.MonkeyPatch):
    ray = use(FakeRay(free=0.0))
    monkeypatch.setattr(engine, "_FREE_SECONDS", 0.0)
    found = engine.find_resources()
    assert found.uses_gpus and ray.asked == []
    (notice,) = found.list_notices(2)
    assert notice.startswith("The cluster has room for 0 of 2 workers: other programs use its GPUs")


def test_a_machine_that_does_not_answer_is_not_asked_any_longer(use):
    ray = use(FakeRay(failure=_GetTimeoutError("no answer")))
    assert engine.find_resources().uses_gpus
    assert ray.cancelled == ray.asked and len(ray.asked) == 1


def test_a_machine_that_cannot_run_apood_is_an_error_in_one_sentence(use):
    use(FakeRay(failure=_RayError("Traceback:\n  line 1\nModuleNotFoundError: No module named 'torch'\n")))
    with pytest.raises(InputError, match=r"^A worker failed: ModuleNotFoundError: No module named 'torch'$"):
        engine.find_resources()


def test_a_connection_alone_asks_nothing(use):
    ray = use(FakeRay())
    with engine.connect(None):
        pass
    assert ray.asked == []


def test_notices_of_ray_are_not_among_the_results(use, capsys: pytest.CaptureFixture[str]):
    use(FakeRay())
    with engine.connect(None):
        print("(raylet) A worker died.")
    print("results")
    assert capsys.readouterr() == ("results\n", "(raylet) A worker died.\n")


def test_notices_of_the_end_of_ray_are_not_among_the_results(
    use, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    fake = use(FakeRay())
    started = SimpleNamespace(is_initialized=lambda: False, init=lambda **_: None, shutdown=lambda: print("A notice."))
    fake.__dict__.update(vars(started))
    with engine.connect(None):
        pass
    assert capsys.readouterr() == ("", "A notice.\n")


def test_a_death_is_a_notice_of_one_sentence(use, capsys: pytest.CaptureFixture[str]):
    use(FakeRay())
    reasons = (
        "A worker died or was killed while executing a task by an unexpected system error. " + "To troubleshoot " * 80
    )
    with engine.connect(None):
        print(f"\033[33m(raylet)\033[0m {reasons}\nRayTask ID: ffff Worker ID: 1234")
    assert capsys.readouterr() == ("", "A worker died; its work is repeated.\n")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("auto", "There is no Ray cluster on this machine: start one with `ray start --head`."),
        (None, "Ray cannot be started on this machine (Please specify an address.)."),
    ],
)
def test_what_to_do_if_no_ray_runs(use, monkeypatch: pytest.MonkeyPatch, address: str | None, message: str):
    def init(**_: object) -> None:
        raise ConnectionError("Please specify an address.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    use(FakeRay()).__dict__.update(is_initialized=lambda: False, init=init)
    with pytest.raises(InputError) as caught, engine.connect(address):
        pass
    assert str(caught.value) == message


@pytest.mark.parametrize(("at_start", "machines"), [(True, 2), (True, 1), (False, 2)])
def test_what_to_do_with_a_machine_on_which_no_worker_starts(at_start: bool, machines: int):
    error = _RayError("apood.support.errors.InputError: There is no folder 'none'.")
    error.actor_init_failed = at_start  # type: ignore[attr-defined]
    message = str(engine._explain(error, machines))
    assert message.startswith("There is no folder 'none'.")
    assert message.endswith("or give fewer --workers.") == (at_start and machines > 1)


def test_a_part_may_take_longer_than_ray_waits_for_progress(monkeypatch: pytest.MonkeyPatch):
    import ray.data

    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "execution_no_progress_timeout_s", 2.0)
    monkeypatch.setattr("ray.data.from_items", lambda rows, **_: rows)
    assert len(engine._make_dataset([Part("a.txt", 0, None, 5)], [0], 1)) == 1
    assert context.execution_no_progress_timeout_s == -1


def test_errors_of_ray_data_are_sentences():
    from ray.data.exceptions import ExecutionTimeoutError

    def fail():
        raise ExecutionTimeoutError("It made no progress.")
        yield

    with pytest.raises(InputError, match=r"^A worker failed: It made no progress\.$"):
        list(engine._iterate(SimpleNamespace(iter_rows=fail), 1))
