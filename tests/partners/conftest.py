"""A tiny detector of texts, loaded once."""

import pytest
from http_server import make_detector

from apood.serving.http.served import Served, load_served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return load_served(make_detector(tmp_path_factory.mktemp("served")))
