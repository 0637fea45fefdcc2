"""The table of a comparison: the same figures and best values in every format, and names that are only names."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from apood.evaluation.comparison import Comparison, ComparisonPlan
from apood.evaluation.entry import Entry
from apood.evaluation.result import Result, Run, compute_mean_row
from apood.report.comparison import describe_fits, make_comparison_grid, write_comparison
from apood.report.grid import mark_best
from apood.report.tables import TerminalTable, format_html, format_latex, format_markdown


def row(method, dataset, auroc, fpr):
    values = {"auroc": auroc, "fpr95": fpr, "aupr_id": auroc, "aupr_ood": auroc}
    intervals = {
        f"{key}_{end}": value + d for key, value in values.items() for end, d in (("low", -1.0), ("high", 2.0))
    }
    return {"method": method, "dataset": dataset, **values, **intervals, "n_id": 10, "n_ood": 10}


def make_result(entry, *splits, accepted=None, warnings=()):
    """Each split is {dataset: (AUROC, FPR95)}."""
    results = []
    for split in splits:
        rows = [row(entry.label, dataset, *values) for dataset, values in split.items()]
        results.append(Run(0, None, [*rows, compute_mean_row(rows)], accepted, 12.3, 0.0123, 2_500_000, list(warnings)))
    return Result(entry, results)


PLAN = ComparisonPlan(
    ood={"a": Path("a"), "b": Path("b")}, id_train=Path("t"), id_test=Path("e"), aux=Path("x"), splits=2
)


@pytest.fixture
def comparison():
    """Without AUX: first, second, third; with AUX: one that is better than all, and one with another's AUROC on a."""
    return Comparison(
        PLAN,
        [
            make_result(
                Entry("knn", name="third"), {"a": (70.0, 50.0), "b": (70, 50)}, {"a": (72.0, 54.0), "b": (70, 50)}
            ),
            make_result(Entry("ap-ood", name="learns", aux="all"), *[{"a": (99.0, 1.0), "b": (99.0, 1.0)}] * 2),
            make_result(
                Entry("length", name="first"), *[{"a": (90.0, 20.0), "b": (80.0, 40.0)}] * 2, warnings=["odd!"]
            ),
            make_result(Entry("mahalanobis", name="second"), *[{"a": (80.0, 30.0), "b": (80.04, 40.0)}] * 2),
            make_result(Entry("ap-ood", name="learns less", aux="all"), *[{"a": (99.02, 2.0), "b": (50.0, 2.0)}] * 2),
        ],
    )


CELLS = {
    "third": {"a": ("71.0 ±1.4", "52.0 ±2.8"), "b": ("70.0 ±0.0", "50.0 ±0.0")},
    "first †": {"a": ("*90.0 ±0.0*", "*20.0 ±0.0*"), "b": ("*80.0 ±0.0*", "*40.0 ±0.0*")},
    "second": {"a": ("_80.0 ±0.0_", "_30.0 ±0.0_"), "b": ("*80.0 ±0.0*", "*40.0 ±0.0*")},
    "learns": {"a": ("*99.0 ±0.0*", "*1.0 ±0.0*"), "b": ("*99.0 ±0.0*", "*1.0 ±0.0*")},
    "learns less": {"a": ("*99.0 ±0.0*", "_2.0 ±0.0_"), "b": ("_50.0 ±0.0_", "_2.0 ±0.0_")},
}
"""*best* and _second_ of a block; where two are best as shown, none is second."""


def plain(text):
    return text.replace("**", "*").replace("<u>", "_").replace("</u>", "_").replace("<b>", "*").replace("</b>", "*")


def of_markdown(text):
    header, _, *lines = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("|")]
    return {
        line[0]: {column: tuple(plain(cell).split(" / ")) for column, cell in zip(header[1:], line[1:], strict=True)}
        for line in lines
        if len(line) == len(header) and line[1].strip(" |")
    }


def of_latex(text):
    lines = [line for line in text.splitlines() if line.endswith(r"\\") and " & " in line]
    cells = [[part.strip() for part in line.removesuffix(r"\\").split("&")] for line in lines]
    for line in cells:
        for index, cell in enumerate(line):
            shown = re.sub(r"\\textbf\{(.*)\}", r"*\1*", re.sub(r"\\underline\{(.*)\}", r"_\1_", cell))
            line[index] = shown.replace(r"$\pm$", "±").replace(r"\textdagger{}", "†")
    header, *rest = cells
    return {
        above[0]: {c: tuple(filter(None, pair)) for c, *pair in zip(header[1:], above[1:], below[1:], strict=True)}
        for above, below in zip(rest[::2], rest[1::2], strict=True)
    }


class TableReader(HTMLParser):
    """The texts of the cells, *best* and _second_."""

    def __init__(self):
        super().__init__()
        self.rows, self.tags = [], set()

    def handle_starttag(self, tag, _):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append([])
        elif tag == "span":
            self.rows[-1][-1].append("")
        elif tag in ("b", "u"):
            self.handle_data("*" if tag == "b" else "_")

    def handle_endtag(self, tag):
        if tag in ("b", "u"):
            self.handle_data("*" if tag == "b" else "_")

    def handle_data(self, text):
        if self.rows and self.rows[-1] and text.strip():
            cell = self.rows[-1][-1]
            cell[-1:] = [(cell[-1] if cell else "") + text]


def read_html(text):
    reader = TableReader()
    reader.feed(text[: text.index("</table>")])
    return reader


def of_html(text):
    header, *rows = read_html(text).rows
    return {
        row[0][0]: {column[0]: tuple(cell) for column, cell in zip(header[1:], row[1:], strict=True)}
        for row in rows
        if len(row) > 1
    }


def render(grid, width=120):
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system="standard").print(TerminalTable(grid))
    return stream.getvalue()


FORMATS = {
    "markdown": lambda grid: of_markdown(format_markdown(grid)),
    "latex": lambda grid: of_latex(format_latex(grid)),
    "html": lambda grid: of_html(format_html(grid, "title")),
}


@pytest.mark.parametrize("form", FORMATS)
def test_figures_and_marks(comparison, form):
    table = FORMATS[form](make_comparison_grid(comparison))
    assert list(table) == ["third", "first †", "second", "learns", "learns less"]
    assert list(table["third"]) == ["a", "b", "mean", "fit, s", "score, s per 1000", "size, MB"]
    for name, cells in CELLS.items():
        assert {column: table[name][column] for column in ("a", "b")} == cells, name
    assert table["first †"]["mean"] == ("*85.0 ±0.0*", "*30.0 ±0.0*")
    costs = {column: "".join(table["learns"][column]) for column in ("fit, s", "score, s per 1000", "size, MB")}
    assert costs == {"fit, s": "12", "score, s per 1000": "0.012", "size, MB": "2.5"}


def test_the_terminal_shows_the_same(comparison):
    text = render(make_comparison_grid(comparison))
    bold, underlined = "\x1b[1m", "\x1b[4m"
    assert f"{bold}90.0 ±0.0" in text and f"{underlined}80.0 ±0.0" in text and f"{bold}71.0" not in text
    assert "\x1b[1;2m20.0 ±0.0" in text and "\x1b[2;4m30.0 ±0.0" in text
    bare = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert bare.index("without AUX") < bare.index("first †") < bare.index("with AUX") < bare.index("learns")
    assert "† first: 2 of 2 fits warned, the first: odd!" in bare
    (line,) = [line for line in bare.splitlines() if line.startswith("first †")]
    assert line.split() == ["first", "†", "90.0", "±0.0", "80.0", "±0.0", "85.0", "±0.0", "12", "0.012", "2.5"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_terminal_table_is_as_wide_as_the_terminal(comparison, width):
    bare = re.sub(r"\x1b\[[\d;]*m", "", render(make_comparison_grid(comparison), width))
    assert max(map(len, bare.splitlines())) <= width
    assert all(cell.strip("*_") in bare for cells in CELLS.values() for pair in cells.values() for cell in pair)


def test_blocks_only_where_there_are_two(comparison):
    alone = Comparison(PLAN, [result for result in comparison.results if not result.entry.uses_aux])
    assert [(block.title, len(block.methods)) for block in make_comparison_grid(comparison).blocks] == [
        ("without AUX", 3),
        ("with AUX", 2),
    ]
    assert [block.title for block in make_comparison_grid(alone).blocks] == [None]


def test_the_accept_rate_is_a_column_where_there_is_one(comparison):
    plan = ComparisonPlan(ood={"a": Path("a")}, id_validation=Path("v"), splits=1)
    grid = make_comparison_grid(Comparison(plan, [make_result(Entry("knn"), {"a": (90.0, 20.0)}, accepted=93.75)]))
    assert grid.columns[-1] == "ID let through, %" and grid.cells["knn", grid.columns[-1]][0].text == "93.8"
    assert "95%" in grid.legend and "ID let through, %" not in make_comparison_grid(comparison).columns


def test_a_method_that_failed_has_no_figures_and_a_reason(comparison):
    third, learns, first, second, _ = comparison.results
    failed = Result(first.entry, first.runs[:1], {2: "it is too odd."})
    learnt = Result(learns.entry, [], {1: "no.", 2: "nor here."})
    grid = make_comparison_grid(Comparison(PLAN, [third, failed, second, learnt]))
    reasons = ["– first: 1 of 2 splits failed, the first: split 2: it is too odd.",
               "– learns: 2 of 2 splits failed, the first: split 1: no."]  # fmt: skip
    assert grid.notes[-1] == reasons[1] and reasons[0] in grid.notes
    assert grid.cells["second", "a"][0] == ("80.0 ±0.0", "best")  # those that failed do not compete
    for form in ("markdown", "html"):
        table = FORMATS[form](grid)
        assert {cell for name in ("first †", "learns") for cell in table[name].values()} == {("–",)}
    assert rf"learns{' & --' * 6} \\" in format_latex(grid) and "-- learns: 2 of 2 splits failed" in format_latex(grid)
    bare = re.sub(r"\x1b\[[\d;]*m", "", render(grid))
    assert re.search(r"^learns( +–){6}$", bare, re.MULTILINE) and reasons[1] in bare


def test_methods_with_one_split_among_many_show_their_interval():
    alone = make_result(Entry("knn"), {"a": (90.0, 20.0), "b": (80.0, 40.0)})
    trained = make_result(Entry("ap-ood"), *[{"a": (80.0, 30.0), "b": (70.0, 40.0)}] * 2)
    grid = make_comparison_grid(Comparison(PLAN, [alone, trained]))
    assert grid.cells["knn", "a"][0].text == "90.0 (89.0–92.0)" and grid.cells["knn", "mean"][0].text == "85.0"
    assert grid.cells["ap-ood", "a"][0].text == "80.0 ±0.0"
    assert "over 2 splits (with 95% intervals for methods without a seed" in grid.legend
    assert "interval" not in make_comparison_grid(Comparison(PLAN, [trained])).legend


def test_a_narrow_table_has_no_costs():
    plan = ComparisonPlan(ood={"a": Path("a")}, splits=1)
    comparison = Comparison(plan, [make_result(Entry("knn"), {"a": (90.0, 20.0)})])
    wide, narrow = make_comparison_grid(comparison), make_comparison_grid(comparison, costs=False)
    assert narrow.columns == ["a", "mean"] == wide.columns[:2] and len(wide.columns) > 2
    assert "seconds" in wide.legend and "seconds" not in narrow.legend


def test_a_single_split_shows_its_interval():
    plan = ComparisonPlan(ood={"a": Path("a")}, splits=1)
    grid = make_comparison_grid(Comparison(plan, [make_result(Entry("knn"), {"a": (90.0, 20.0)})]))
    assert [figure.text for figure in grid.cells["knn", "a"]] == ["90.0 (89.0–92.0)", "20.0 (19.0–22.0)"]
    assert [figure.text for figure in grid.cells["knn", "mean"]] == ["90.0", "20.0"]
    assert "95% interval" in grid.legend


def test_marks():
    assert mark_best({"x": 1.0, "y": 3.0, "z": 2.0}, 1, highest=True, second=True) == {
        "x": "",
        "y": "best",
        "z": "second",
    }
    assert mark_best({"x": 1.0, "y": 3.0, "z": 2.0}, 1, highest=False, second=False) == {"x": "best", "y": "", "z": ""}
    assert mark_best({"x": 1.02, "y": 1.04, "z": 0.5}, 1, highest=True, second=True) == {
        "x": "best",
        "y": "best",
        "z": "",
    }
    assert mark_best({"x": 2.0, "y": 1.02, "z": 1.04}, 1, highest=True, second=True) == {
        "x": "best",
        "y": "second",
        "z": "second",
    }
    assert mark_best({}, 1, highest=True, second=True) == {}


NASTY = '<script>alert("x")</script> & {{ 7 * 7 }} [a](b) $x_1$ 50% \\input{x} #1 ^ ~ | `code` *bold*'


@pytest.fixture
def nasty():
    plan = ComparisonPlan(ood={NASTY: Path("a")}, splits=1)
    own = make_result(Entry("knn", name=NASTY), {NASTY: (90.0, 20.0)}, warnings=[f"because of {NASTY}"])
    return make_comparison_grid(Comparison(plan, [own]))


def test_html_escapes_names(nasty):
    text = format_html(nasty, NASTY)
    assert "<script" not in text and "{{ 7 * 7 }}" in text
    reader = read_html(text)
    assert reader.rows[0][1][0] == NASTY and reader.rows[1][0][0] == f"{NASTY} †"
    assert "script" not in reader.tags


def test_html_needs_nothing_else(comparison):
    text = format_html(make_comparison_grid(comparison), "A title")
    assert "<title>A title</title>" in text and "prefers-color-scheme: dark" in text
    assert not re.search(r"https?:|src=|@import|url\(", text)


def test_latex_escapes_names(nasty):
    text = format_latex(nasty)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {5}
    bare = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|textdagger)\{\}", "", text
    )
    bare = re.sub(r"\\[&%$#_{}]|\$\\pm\$|\\\\$", "", bare, flags=re.MULTILINE)
    commands = set(re.findall(r"\\([a-zA-Z]+)", bare))
    assert commands <= {"begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "textbf", "emph",
                        "usepackage", "addlinespace", "multicolumn", "par", "smallskip", "footnotesize"}  # fmt: skip
    assert not re.search(r"[$#_^~<>|]", bare.replace("% needs", ""))
    assert bare.count("{") == bare.count("}") and "\\input" not in bare


def test_latex_is_a_whole_table(comparison):
    text = format_latex(make_comparison_grid(comparison))
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")
    ]  # fmt: skip
    assert r"\begin{tabular}{lrrrrrr}" in text and text.count(r"\midrule") == 2
    assert {line.count("&") for line in text.splitlines() if " & " in line} == {6}
    assert r"\multicolumn{7}{l}{\emph{with AUX}}" in text


def test_a_row_that_begins_with_a_bracket_is_no_length():
    plan = ComparisonPlan(ood={"a": Path("a")}, splits=1)
    text = format_latex(
        make_comparison_grid(Comparison(plan, [make_result(Entry("knn", name="[2] knn"), {"a": (9.0, 2.0)})]))
    )
    assert "{[}2{]} knn & " in text and not re.search(r"^\s*\[", text, re.MULTILINE)


def test_markdown_escapes_names(nasty):
    header, _, line = [line for line in format_markdown(nasty).splitlines() if line.startswith("|")]
    assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", header)) == 7
    assert r"\<script\>" in line and r"\[a\](b)" in line and r"\*bold\*" in line


def test_names_are_no_markup_of_the_terminal():
    plan = ComparisonPlan(ood={"[bold]a": Path("a")}, splits=1)
    grid = make_comparison_grid(
        Comparison(plan, [make_result(Entry("knn", name="[red]knn"), {"[bold]a": (90.0, 20.0)})])
    )
    assert "[red]knn" in render(grid) and "[bold]a" in render(grid)


def test_files(comparison, tmp_path):
    written = write_comparison(comparison, tmp_path / "deep" / "out")
    assert [path.name for path in written] == ["results.json", "table.md", "table.tex", "table.html"]
    grid = make_comparison_grid(comparison)
    assert json.loads(written[0].read_text()) == json.loads(json.dumps(comparison.to_json()))
    assert written[1].read_text() == format_markdown(grid) and written[2].read_text() == format_latex(grid)
    assert of_html(written[3].read_text()) == of_html(format_html(grid, ""))
    assert sorted(written[0].parent.iterdir()) == sorted(written)


def test_every_kind_of_warning_is_told_once():
    """Those of a kind differ in figures alone; another kind is not hidden behind the first."""
    warned = [["d² is 9.1, not 1", "few"], ["d² is 1e+03, not 1"], ["few", "few"]]
    runs = [Run(0, None, [], None, 0.0, 0.0, 0, warnings) for warnings in warned]
    assert describe_fits([Result(Entry("knn", name="a"), runs)]) == [
        "† a: 2 of 3 fits warned, the first: d² is 9.1, not 1",
        "† a: 2 of 3 fits warned, the first: few",
    ]
