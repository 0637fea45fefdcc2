"""A tiny detector of texts, saved and served."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_server import Running, make_detector, run_service

from apood.serving.http.served import Served, load_served


@pytest.fixture(scope="session")
def detector_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_detector(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def served(detector_folder: Path) -> Served:
    return load_served(detector_folder)


@pytest.fixture(scope="module")
def server(served: Served) -> Iterator[Running]:
    with run_service(served) as running:
        yield running
