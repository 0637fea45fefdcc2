"""The quick demo with the real encoder and texts, from start to end."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import apood
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.result import MEAN, ResultRow
from apood.experiments.demo import _pick_refused, run_demo
from apood.experiments.demo_sources import find_minilm
from apood.support.errors import InputError


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ResultRow], str]:
    out = tmp_path_factory.mktemp("demo")
    console = Console(record=True, width=120, file=(out / "printed.txt").open("w", encoding="utf-8"))
    return out, run_demo(out, quick=True, console=console), console.export_text()


def auroc(rows: list[ResultRow], method: str, dataset: str) -> float:
    return next(row["auroc"] for row in rows if (row["method"], row["dataset"]) == (method, dataset))


def test_rows_of_every_method_and_set_are_saved(demo: tuple[Path, list[ResultRow], str]) -> None:
    out, rows, _ = demo
    assert json.loads((out / "results.json").read_text()) == rows
    methods, datasets = ({row[key] for row in rows} for key in ("method", "dataset"))
    assert len(rows) == len(methods) * len(datasets) == 6 * 8


def test_attention_is_best_at_spliced_sentences(demo: tuple[Path, list[ResultRow], str]) -> None:
    _, rows, _ = demo
    others = ("Mahalanobis", "Mahalanobis, normalised", "KNN", "length only")
    for dataset in ("spliced dialogue", MEAN):
        assert auroc(rows, "default", dataset) > max(auroc(rows, method, dataset) for method in others)
    # Nobody tells a spliced licence well: the default and normalised Mahalanobis are within each other's interval.
    (licence,) = (row for row in rows if (row["method"], row["dataset"]) == ("default", "spliced licence"))
    assert licence["auroc_high"] > max(auroc(rows, method, "spliced licence") for method in others)
    assert auroc(rows, "AP-OOD", "spliced dialogue") > max(auroc(rows, m, "spliced dialogue") for m in others)


def test_it_says_what_the_sets_are_and_who_is_ahead(demo: tuple[Path, list[ResultRow], str]) -> None:
    _, rows, printed = demo
    printed = " ".join(printed.split())
    assert "spliced texts are documentation with one foreign sentence" in printed
    means = {row["method"]: row["auroc"] for row in rows if row["dataset"] == MEAN}
    best = max(means, key=lambda method: means[method])
    assert (f"{best} is ahead of the default on these texts" in printed) == (best != "default")


def test_length_separates_no_set(demo: tuple[Path, list[ResultRow], str]) -> None:
    _, rows, _ = demo
    assert all(40 < row["auroc"] < 60 for row in rows if row["method"] == "length only")


def test_the_saved_detector_decides(demo: tuple[Path, list[ResultRow], str]) -> None:
    out, _, printed = demo
    assert f"apood score {out / 'detector'}" in printed
    detector = apood.load(out / "detector")
    encoder = TextEncoder(str(find_minilm()), max_tokens=96, on_long="beginning")
    documented = "Return a new list containing all items from the iterable in ascending order."
    chat = "Hey, are you coming to the party tonight? I will bring my sister and some pizza."
    assert np.array_equal(detector.predict(encoder.encode([documented, chat])), [1, -1])


@pytest.mark.parametrize("refused", [(0, 9), (3, 0), (40, 50), (1, 1), (0, 0)])
def test_up_to_three_refused_texts_are_picked(refused: tuple[int, int]) -> None:
    """Every set also has two texts that were accepted."""
    generator = np.random.default_rng(0)
    scores = {
        name: generator.permutation(np.r_[-1 - generator.random(count), 1.0, 2.0])
        for name, count in zip("ab", refused, strict=True)
    }
    shown = _pick_refused(scores, 0.0)
    assert len(set(shown)) == len(shown) == min(3, sum(refused))
    assert all(scores[name][index] < 0 for name, index in shown)


def test_three_spliced_texts_are_shown(demo: tuple[Path, list[ResultRow], str]) -> None:
    assert demo[2].count("foreign (spliced") == 3


def test_an_output_folder_that_is_a_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="taken/detector"):
        run_demo(tmp_path / "taken", quick=True, console=Console(quiet=True))
