"""The picture of score distributions."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from apood.report.plots import _choose_limits, _estimate_density, plot_score_distributions
from apood.support.errors import ApoodError, InputError


def read_png(path):
    from matplotlib.image import imread

    return imread(path)[..., :3]


def pixels_of(image, colour, tolerance=0.12):
    wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return int((np.abs(image - wanted).max(axis=-1) < tolerance).sum())


def test_the_picture_shows_id_and_ood(tmp_path):
    generator = np.random.default_rng(0)
    path = tmp_path / "scores.png"
    plot_score_distributions(path, {"xsum": generator.normal(size=100), "reddit": torch.randn(50) - 3}, threshold=-1.6)
    image = read_png(path)
    assert pixels_of(image, "#2a6f97") > 100
    assert pixels_of(image, "#d1603d") > 100
    assert [file.name for file in tmp_path.iterdir()] == ["scores.png"]


def test_it_grows_with_the_number_of_sets(tmp_path):
    sets = {f"set {i}": np.random.default_rng(i).normal(-i, 1, 80) for i in range(8)}
    plot_score_distributions(tmp_path / "eight.png", sets, title="Eight sets")
    plot_score_distributions(str(tmp_path / "two.png"), dict(list(sets.items())[:2]))
    eight, two = read_png(tmp_path / "eight.png"), read_png(tmp_path / "two.png")
    assert eight.shape[0] > 2 * two.shape[0]
    assert eight.shape[1] == two.shape[1]


@pytest.mark.parametrize(
    ("scores", "threshold"),
    [
        ([1.0], None), ([2.0] * 30, 0.5), ([-math.inf] * 5, -math.inf), ([math.inf, -math.inf, 0.0], 0.5),
        ([1e300, -1e300], 0.5), ([1e-300, 0.0], None), ([5e8, 5e8 + 1e-7], 0.5),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_odd_scores_are_drawn_without_a_warning(tmp_path, scores, threshold):
    plot_score_distributions(tmp_path / "odd.png", {"id": scores, "ood": [0.0, 1.0, 2.0]}, threshold)
    assert (tmp_path / "odd.png").stat().st_size > 1000


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_caption_says_what_is_shown(tmp_path, threshold, monkeypatch):
    figures = []
    monkeypatch.setattr("apood.report.plots.save_figure", lambda figure, _: figures.append(figure))
    plot_score_distributions(tmp_path / "scores.png", {"id": [1.0, 2.0], "ood": [0.0]}, threshold)
    caption = " ".join(figures[0].get_supxlabel().split())
    assert "the first set is in-distribution" in caption
    assert ("dashed line is the threshold" in caption) == (threshold is not None)


def test_names_are_no_formulas(tmp_path):
    plot_score_distributions(tmp_path / "dollars.png", {"$\\frac$": [1.0], "$$": [0.0]}, title="from $5 to $\\oops$")
    assert (tmp_path / "dollars.png").exists()


def test_far_scores_do_not_stretch_the_axis():
    generator = np.random.default_rng(1)
    id_scores = generator.normal(-400, 30, 1000)
    far, long_tail = generator.normal(-9e4, 3e4, 500), -500 - 300 * generator.pareto(0.7, 800)
    low, high = _choose_limits([id_scores, far, long_tail, np.array([-math.inf, math.inf])], threshold=-450)
    assert -3000 < low < -600
    assert -330 < high < -250


def test_the_axis_reaches_the_threshold():
    low, high = _choose_limits([np.linspace(0, 1, 100)], threshold=-5.0)
    assert low < -5
    assert high > 1


def test_a_ridge_lies_where_the_scores_are():
    grid, density = _estimate_density(np.random.default_rng(2).normal(3, 1, 5000), (-10.0, 10.0))
    assert grid[density.argmax()] == pytest.approx(3, abs=0.4)
    assert density.max() == 1
    assert grid[density > 0.5].max() - grid[density > 0.5].min() == pytest.approx(2.355, rel=0.15)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    path = tmp_path / "scores.png"
    with pytest.raises(InputError, match="at least one set"):
        plot_score_distributions(path, {})
    with pytest.raises(InputError, match="got none for reddit"):
        plot_score_distributions(path, {"xsum": [1.0], "reddit": []})
    with pytest.raises(InputError, match="The reddit scores hold 1 NaN"):
        plot_score_distributions(path, {"xsum": [1.0], "reddit": [math.nan]})
    assert not path.exists()


def test_a_missing_matplotlib_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ApoodError, match=r"matplotlib.*apood\[report\]"):
        plot_score_distributions(tmp_path / "scores.png", {"xsum": [1.0]})


def test_importing_the_room_leaves_matplotlib_alone():
    modules = ", ".join(f"apood.report.{name}" for name in ("plots", "heatmap", "pictures", "tables"))
    code = f"import sys, {modules}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
