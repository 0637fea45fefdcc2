"""A tiny detector of texts, saved and served."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_server import KNOWN, Running, make_texts, run_service
from tiny_models import save_model

from apood import KNN, TextDetector, TextEncoder
from apood.serving.http.served import Served, load_served


@pytest.fixture(scope="session")
def detector_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a detector of texts: texts of known words are in-distribution."""
    folder = tmp_path_factory.mktemp("served")
    save_model("bert", folder / "bert")
    encoder = TextEncoder(folder / "bert", max_tokens=24)
    TextDetector(encoder, KNN(k=3), accept=0.9).fit(make_texts(200, KNOWN, 1)).save(folder / "detector")
    return folder / "detector"


@pytest.fixture(scope="session")
def served(detector_folder: Path) -> Served:
    return load_served(detector_folder)


@pytest.fixture(scope="module")
def server(served: Served) -> Iterator[Running]:
    with run_service(served) as running:
        yield running
