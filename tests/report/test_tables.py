"""Tables of results for the terminal, and as Markdown and LaTeX."""

import io

import numpy as np
import pytest
from rich.console import Console

from apood.evaluation.result import compute_mean_row, compute_rows
from apood.report.grid import Block, Figure, Grid, make_grid
from apood.report.tables import TerminalTable, format_latex, format_markdown
from apood.support.errors import InputError

DATASETS = ["cnn_dm", "newsroom", "reddit-tifu", "samsum", "python-docs", "europarl", "shuffled words", "spliced"]


def make_rows(methods, datasets):
    generator = np.random.default_rng(0)
    return [
        row
        for quality, method in enumerate(methods)
        for row in compute_rows(
            method,
            generator.normal(1 + quality, 1, 50),
            {dataset: generator.normal(size=40) for dataset in datasets},
        )
    ]


def render(table, width, **options):
    stream = io.StringIO()
    Console(file=stream, width=width, **options).print(table)
    return stream.getvalue()


def format_auroc(row):
    return f"{row['auroc']:.1f} ({row['auroc_low']:.1f}–{row['auroc_high']:.1f})"


@pytest.mark.parametrize("width", [40, 120])
def test_every_figure_is_whole_at_every_width(width):
    rows = make_rows(["knn", "mahalanobis-normalised-mean"], DATASETS)
    text = render(TerminalTable(make_grid(rows), "Detectors on XSum"), width)
    assert text.startswith("Detectors on XSum\n")
    assert max(len(line) for line in text.splitlines()) <= width
    for row in rows:
        assert format_auroc(row) in text
        assert f"{row['fpr95']:.0f} ({row['fpr95_low']:.0f}–{row['fpr95_high']:.0f})" in text
    for method in ("knn", "mahalanobis-normalised-mean"):
        assert f"{compute_mean_row([row for row in rows if row['method'] == method])['auroc']:.1f}" in text


@pytest.mark.parametrize(("width", "blocks"), [(120, 2), (80, 3)])
def test_datasets_that_do_not_fit_beside_go_below(width, blocks):
    text = render(TerminalTable(make_grid(make_rows(["knn", "mahalanobis"], DATASETS))), width)
    assert text.count("───\n") == blocks


def test_the_best_auroc_of_a_column_is_bold():
    rows = make_rows(["worse", "better"], ["a"])
    bold = "\x1b[1m"
    text = render(TerminalTable(make_grid(rows)), 80, force_terminal=True, color_system="standard")
    assert f"{bold}{format_auroc(rows[1])}" in text
    assert f"{bold}{format_auroc(rows[0])}" not in text


def test_names_are_no_markup():
    text = render(TerminalTable(make_grid(make_rows(["[red]knn"], ["[bold]a"]))), 80)
    assert "[red]knn" in text
    assert "[bold]a" in text


def test_markdown():
    rows = make_rows(["worse", "better"], ["a|b", "c"])
    header, rule, worse, better, blank, legend = format_markdown(make_grid(rows)).splitlines()
    assert header == "| method | a\\|b | c | mean |"
    assert rule == "| --- | ---: | ---: | ---: |"
    assert worse.startswith(f"| worse | {format_auroc(rows[0])} / {rows[0]['fpr95']:.0f} (")
    assert better.startswith(f"| better | **{format_auroc(rows[2])}** / {rows[2]['fpr95']:.0f} (")
    mean = compute_mean_row(rows[2:])
    assert better.endswith(f"| **{mean['auroc']:.1f}** / {mean['fpr95']:.0f} |")
    assert not blank
    assert "AUROC" in legend


def test_markdown_shows_figures_as_they_are():
    """A figure may be a token of a text."""
    grid = Grid([Block(None, ["a"])], ["x"], {("a", "x"): (Figure("<s> | 40%"),)}, "")
    assert format_markdown(grid).splitlines()[2] == r"| a | \<s\> \| 40% |"


def test_mean_rows_may_be_among_the_rows():
    rows = make_rows(["knn"], ["a", "b"])
    assert format_markdown(make_grid([*rows, compute_mean_row(rows)])) == format_markdown(make_grid(rows))


def test_a_method_that_lacks_a_dataset_has_no_mean():
    rows = make_rows(["knn", "svdd"], ["a", "b"])[:3]
    assert format_markdown(make_grid(rows)).splitlines()[3].endswith("| – | – |")
    assert "–" in render(TerminalTable(make_grid(rows)), 80)


def test_equal_figures_are_all_best():
    first, second = make_rows(["knn", "svdd"], ["a"])
    second = {**second, "auroc": first["auroc"] + 0.001}
    assert format_markdown(make_grid([first, second])).count("**") == 8


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="at least one row of a dataset"):
        make_grid([])
    with pytest.raises(InputError, match="got 1 other rows"):
        make_grid([compute_mean_row(make_rows(["knn"], ["a"]))])


def test_latex_spells_the_signs_that_pdflatex_lacks():
    cells = {("β = 1/√D †", "␣ é"): (Figure("1 ±2"), Figure("–"))}
    text = format_latex(Grid([Block("λ", ["β = 1/√D †"])], ["␣ é"], cells, "AUROC of √384…", ["exp(-d²)"]))
    assert r"$\beta$ = 1/$\sqrt{D}$ \textdagger{} & 1 $\pm$2 \\" in text
    assert r"method & \textvisiblespace{} é \\" in text and r"\emph{$\lambda$}" in text
    assert r"\caption{AUROC of $\sqrt{384}$\ldots{}}" in text and "exp(-d$^2$)" in text
    assert {sign for sign in text if not sign.isascii()} == {"é"}  # letters are LaTeX's own affair
