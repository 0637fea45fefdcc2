"""The heat map shows every cell where it belongs, with its number, and marks the best."""

import numpy as np
import pytest

from apood.report import heatmap
from apood.report.heatmap import HeatCell, plot_heatmap
from apood.support.errors import InputError


@pytest.fixture
def figure(monkeypatch, tmp_path):
    """Return a function that draws a heat map, checks the file and returns the figure."""
    made = []
    new_figure = heatmap.new_figure

    def remembered(size):
        made.append(new_figure(size))
        return made[-1]

    monkeypatch.setattr(heatmap, "new_figure", remembered)

    def draw(cells, **options):
        plot_heatmap(tmp_path / "map.png", cells, title="a $title", label="AUROC", **options)
        assert [path.name for path in tmp_path.iterdir()] == ["map.png"]
        image = pytest.importorskip("matplotlib.image")
        assert image.imread(tmp_path / "map.png").std() > 0
        return made[-1]

    return draw


def panels(figure):
    return [axes for axes in figure.axes if axes.images and axes.get_visible()]


def texts(axes):
    """Return the text at each place."""
    return {tuple(int(part) for part in text.get_position()): text.get_text() for text in axes.texts}


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_two_parameters_are_the_axes(figure):
    cells = [
        HeatCell({"k": k, "normalize": n}, 10 * k + i) for k in (50, 1, 5) for i, n in enumerate(("tokens", "none"))
    ]
    (axes,) = panels(figure(cells))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("k", "normalize")
    assert (ticks(axes.xaxis), ticks(axes.yaxis)) == (["1", "5", "50"], ["tokens", "none"])
    assert np.array_equal(axes.images[0].get_array(), [[10, 50, 500], [11, 51, 501]])
    assert texts(axes) == {
        (0, 0): "10.0",
        (1, 0): "50.0",
        (2, 0): "500.0",
        (0, 1): "11.0",
        (1, 1): "51.0",
        (2, 1): "501.0",
    }


def test_parameters_that_change_together_are_one_axis(figure):
    cells = [HeatCell({"beta": b, "queries": t, "heads": 8 // t}, t + b) for b in (0.051031, 1.0, 2.0) for t in (1, 4)]
    (axes,) = panels(figure(cells))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("beta", "queries, heads")
    assert (ticks(axes.xaxis), ticks(axes.yaxis)) == (["0.051", "1", "2"], ["1, 8", "4, 2"])


def test_more_parameters_make_small_multiples_on_one_scale(figure):
    cells = [
        HeatCell({"a": a, "b": b, "c": c}, 100 * c + a) for a in (1, 2, 3, 4) for b in (1, 2, 3) for c in (0.1, 1.0)
    ]
    drawn = panels(figure(cells))
    assert [axes.get_title() for axes in drawn] == ["c = 0.1", "c = 1"]
    assert {axes.images[0].get_clim() for axes in drawn} == {(11.0, 104.0)}
    assert [axes.images[0].get_array()[0, 0] for axes in drawn] == [11.0, 101.0]


def test_failed_cells_are_called_so_and_the_best_is_framed(figure):
    cells = [
        HeatCell({"k": 1}, 90.0),
        HeatCell({"k": 2}, None),
        HeatCell({"k": 3}, float("inf")),
        HeatCell({"k": 4}, 95.0),
    ]
    (axes,) = panels(figure(cells, best={"k": 4}))
    assert texts(axes) == {(0, 0): "90.0", (1, 0): "failed", (2, 0): "failed", (3, 0): "95.0"}
    (frame,) = axes.patches
    assert [round(part + 0.5) for part in frame.get_xy()] == [3, 0]
    assert not panels(figure(cells, best={}))[0].patches


def test_what_is_better_is_lighter(figure):
    cells = [HeatCell({"k": 1}, 1.0), HeatCell({"k": 2}, 2.0)]
    for higher, light in ((True, 2.0), (False, 1.0)):
        (image,) = panels(figure(cells, higher_is_better=higher))[0].images
        assert sum(image.cmap(image.norm(light))) > sum(image.cmap(image.norm(3.0 - light)))


@pytest.mark.parametrize("value", [None, 3.0])
def test_one_cell_is_enough(figure, value):
    assert len(panels(figure([HeatCell({"k": 1}, value)]))) == 1


def test_cells_that_make_no_grid_are_refused(tmp_path):
    with pytest.raises(InputError, match="at least one cell"):
        plot_heatmap(tmp_path / "map.png", [], title="", label="")
    with pytest.raises(InputError, match=r"needs k, n, got \{'k': 2\}"):
        plot_heatmap(
            tmp_path / "map.png", [HeatCell({"k": 1, "n": 2}, 1.0), HeatCell({"k": 2}, 1.0)], title="", label=""
        )
