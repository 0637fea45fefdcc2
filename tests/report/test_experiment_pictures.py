"""Pictures of the paper's experiments, checked through the figure object."""

from pathlib import Path

import pytest

from apood.report.canvas import save_figure
from apood.report.pictures import Curve, Dot, WeightedTokens, draw_curves, draw_dots, draw_token_weights
from apood.support.errors import InputError


def test_dots_stand_where_their_figures_are():
    figure = draw_dots(
        {"Input": [Dot("a", 90.0, 1.0, [80.0, 100.0], 95.0), Dot("b", 70.0)], "Output": [Dot("a", 60.0)]}, "AUROC"
    )
    left, right = figure.axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["a", "b"] and len(right.get_yticks()) == 1
    drawn = {float(x) for line in left.lines for x in line.get_xdata()}
    assert {90.0, 80.0, 100.0, 95.0, 70.0} <= drawn
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["each set", "here", "in the paper"]


def test_curves_have_a_place_for_zero():
    panels = {"one": [Curve("a", {0: (50.0, None), 8: (60.0, 1.0), 1000: (70.0, 1.0)}), Curve("b", {8: (55.0, 0.5)})]}
    figure = draw_curves(panels, "N'", "AUROC")
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "8", "1,000"]
    assert list(axes.lines[1].get_xdata()) == [1] and list(axes.lines[0].get_ydata()) == [50.0, 60.0, 70.0]


def test_curves_of_many_magnitudes_have_a_logarithmic_axis():
    curve = Curve("a", {1: (1.2, 0.1), 4: (9.0, 10.0), 16: (200.0, None)})  # one of them reaches below 0
    (axes,) = draw_curves({"one": [curve]}, "T", "ratio", logarithmic=True).axes
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] > 0.1
    labels = {tick.get_text() for tick in axes.get_yticklabels()}
    assert {"1", "10", "100"} <= labels
    assert draw_curves({"one": [curve]}, "T", "ratio").axes[0].get_yscale() == "linear"


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (18.7, ["2", "3", "5", "10", "20"]),
        (199.4, ["1", "10", "100"]),
        (1.7, ["1.2", "1.3", "1.4", "1.5", "1.6", "1.7"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(highest, labels):
    curve = Curve("a", {1: (1.2, None), 4: (highest, None)})
    figure = draw_curves({"one": [curve]}, "T", "ratio", logarithmic=True)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    ticks = [tick for which in ("major", "minor") for tick in getattr(axes.yaxis, f"get_{which}_ticks")()]
    shown = [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
    assert shown == labels


def test_tokens_are_laid_out_in_lines():
    pieces = ["word "] * 30 + ["$a$", "\n"]
    figure = draw_token_weights({"a": WeightedTokens(pieces, [0.0] * 31 + [1.0])})
    axes, _ = figure.axes
    assert len(axes.texts) == 32 and len({text.get_position()[1] for text in axes.texts}) == 3
    dark = [patch.get_facecolor() for patch in axes.patches]
    assert sum(dark[-1][:3]) < sum(dark[0][:3])


def test_a_colour_means_the_same_attention_in_every_figure():
    """A head that spreads its attention evenly must not look like one that looks at a single token."""
    spread = draw_token_weights({"spread": WeightedTokens(["a"] * 50, [0.02] * 50)})
    sharp = draw_token_weights({"sharp": WeightedTokens(["a", "b"], [0.02, 0.98])})
    colours = [patch.get_facecolor() for figure in (spread, sharp) for patch in figure.axes[0].patches]
    assert len(set(colours[:51])) == 1 and min(colours[0][:3]) > 0.7 and min(colours[-1][:3]) < 0.1
    for figure in (spread, sharp):
        bar = figure.axes[1]
        assert bar.get_ylabel() == "share of the attention"
        assert [label.get_text() for label in bar.get_yticklabels()] == ["0%", "2%", "10%", "25%", "50%", "100%"]


def test_nothing_to_draw():
    for draw in (lambda: draw_dots({}, "x"), lambda: draw_curves({"a": []}, "x", "y"), lambda: draw_token_weights({})):
        with pytest.raises(InputError):
            draw()


def test_a_figure_is_the_same_file_each_time(tmp_path: Path):
    for name in ("one.svg", "two.svg"):
        save_figure(draw_dots({"a": [Dot("b", 1.0)]}, "x"), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
