"""The toy experiment shows what it claims: means cannot tell the sequences apart, attention can."""

import json
from pathlib import Path

import pytest

from apood.experiments import toy

PNG = b"\x89PNG\r\n\x1a\n"


def test_attention_finds_what_averaging_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three starts find the basin as six do, and the maps may be coarse."""
    monkeypatch.setattr(toy, "_STARTS", 3)
    monkeypatch.setattr(toy, "_GRID", 24)
    results = toy.run_toy(tmp_path)
    assert results["auroc_percent"]["ap-ood"] == 100.0
    assert 45 < results["auroc_percent"]["mahalanobis"] < 55
    x, y = results["query"]
    assert abs(x - y) < 0.25 * (abs(x) + abs(y)), "the learnt query lies along the ID tokens' line"
    assert json.loads((tmp_path / "results.json").read_text()) == results
    for name in ("figure1.png", "figure2.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
