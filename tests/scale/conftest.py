"""A small corpus with its detector, and the shards that one process writes of it."""

from pathlib import Path

import pytest
from scaled import make_corpus, make_small_detector, plan_scores, read_shards, run_here

from apood.scale.scoring import ScoreWorker


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scale")
    make_corpus(root / "corpus")
    make_small_detector(root)
    return root


@pytest.fixture(scope="module")
def reference(root: Path) -> dict[str, bytes]:
    job = plan_scores(root / "corpus", root / "detector", root / "reference")
    run_here(job, ScoreWorker(job.settings))
    return read_shards(root / "reference")
