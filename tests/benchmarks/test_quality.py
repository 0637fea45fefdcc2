"""The quality benchmark in miniature: what it measures, keeps and writes to its page."""

from pathlib import Path

import pytest
import torch

from apood.evaluation.entry import Entry
from apood.tokens.batch import TokenBatch
from apood.tokens.writer import TokenStoreWriter
from benchmarks.quality import measure as measure_module
from benchmarks.quality import report as report_module
from benchmarks.quality.measure import DEFAULT, find_scores, find_stores, measure, read_measured
from benchmarks.quality.report import make_page, plot_aux_curve
from benchmarks.quality.tasks import Task

TASK = Task("minilm", "xsum", 128)
ALONE = [Entry("deep-svdd", {"steps": 2}, DEFAULT), Entry("mahalanobis", name="Mahalanobis, raw")]
SUPERVISED = [
    Entry("binary-logits", name="binary logits", aux="all"),
    Entry("deep-sad", {"steps": 2}, "Deep SAD", "all"),
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stores of one task; only a few quick methods are measured."""
    for module in (measure_module, report_module):
        monkeypatch.setattr(module, "UNSUPERVISED", ALONE)
        monkeypatch.setattr(module, "SUPERVISED", SUPERVISED)
        monkeypatch.setattr(module, "AUX_COUNTS", (0, 8))
    monkeypatch.setattr(report_module, "_ALONE", [entry.label for entry in ALONE])
    monkeypatch.setattr(report_module, "_WITH_AUX", [entry.label for entry in SUPERVISED])
    sets = {"train": (60, 0.0), "test": (30, 0.0), "aux": (20, 3.0), "ood-far": (30, 3.0), "ood-near": (30, 0.3)}
    for number, (name, (count, shift)) in enumerate(sets.items()):
        generator = torch.Generator().manual_seed(number)
        tokens = TokenBatch.from_lengths(torch.randn(3 * count, 4, generator=generator) + shift, [3] * count)
        with TokenStoreWriter(find_stores(TASK, tmp_path) / name, dim=4) as writer:
            writer.append(tokens)
    return tmp_path


def test_every_method_is_measured_kept_and_reported(work: Path) -> None:
    assert read_measured(TASK, work) is None
    measure((TASK, work, True))
    found = read_measured(TASK, work)
    assert found is not None and find_scores(TASK, work).is_file()
    runs = {label: sum(known == label for known, _ in found.costs) for label, _ in found.costs}
    assert runs == {
        DEFAULT: 3,
        "Mahalanobis, raw": 1,  # it has no seed
        "binary logits": 1,
        "Deep SAD": 3,
        "binary logits, N'=8": 1,  # it needs AUX sequences
        "Deep SAD, N'=0": 3,
        "Deep SAD, N'=8": 3,
    }
    assert {name for _, _, name in found.scores} == {"test", "far", "near"}
    page = make_page([found], "the command")
    assert "| Mahalanobis, raw | " in page and "## minilm-xsum-128 (untouched)" in page
    assert "| binary logits | – | " in page, "not defined without AUX sequences"
    plot_aux_curve([found], work / "curve.png")
    assert (work / "curve.png").read_bytes().startswith(b"\x89PNG")
