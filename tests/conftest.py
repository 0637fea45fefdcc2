"""Settings and fixtures that all tests share."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

# Without a GPU the kernels run in an interpreter. Triton reads this variable when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# No deadline: the time of an example depends on the machine.
# The same examples in every run: a failure must be the same for everybody.
settings.register_profile("apood", deadline=None, derandomize=True)
settings.load_profile("apood")

# A process of pytest-xdist gets whole files, whose tests share fixtures. These take longest, so they begin: otherwise
# one process would be left alone with one of them at the end.
LONGEST = (
    "experiments/test_demo.py",
    "scale/test_ray_cluster.py",
    "docs/test_documentation.py",
    "experiments/test_paper_benches.py",
    "breaking/test_breaking.py",
)


@pytest.hookimpl(trylast=True)  # after pytest has put tests with the same fixtures side by side
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first."""
    folder = Path(__file__).parent
    place = {folder / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` do nothing: it is for power cuts, which no test has, and waits for milliseconds every time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of `jobs` from one that has imported everything; new ones would spend seconds on that."""
    from multiprocessing.forkserver import ensure_running

    from processes import context

    ensure_running()  # not later, while interrupts are blocked: all forks would block them for ever
    monkeypatch.setattr("apood.support.processes.multiprocessing", SimpleNamespace(get_context=lambda _: context))


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the robust recipe, and so the default detector, train for 4 steps."""
    from apood.detectors.ap_ood import recipe

    for recipes in (recipe._RECIPES, recipe._WITH_AUX):
        monkeypatch.setitem(recipes, "robust", replace(recipe.ROBUST, steps=4))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a model family to the folder of a tiny model, made once; copy it before changing it."""
    from tiny_models import made_once

    return made_once(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Return 300 texts of 1 to 28 words in random order of length, enough for several batches."""
    from tiny_models import WORDS

    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 29, (300,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(40, (n,), generator=generator).tolist()) for n in lengths]
