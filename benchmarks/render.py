"""Write the results of each machine's latest runs into RESULTS.md, between two marks, and draw how times grow.

    python -m benchmarks.render [FILE ...]

Records of other files, such as those written with `--out` on another machine, are first added to results.csv.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from apood.report.canvas import INK, new_figure, save_figure
from benchmarks.growth import BY_HEADS, BY_QUERIES, BY_TOKENS
from benchmarks.record import RESULTS, Record, Row, Run, merge, read
from benchmarks.targets import Verdict, check_targets

__all__ = ["format_head", "format_row", "main", "make_section", "render", "select_latest"]

_PAGE = RESULTS.with_name("RESULTS.md")
_BEGIN, _END = "<!-- speed: begin, written by python -m benchmarks.render -->", "<!-- speed: end -->"
_TITLES = {
    "pool": "Attention pool",
    "step": "Training step",
    "fit": "Whole fit",
    "latency": "One sequence at a time",
    "scoring": "Scoring through detectors",
    "encoder": "Beside an encoder",
    "growth": "Growth with tokens, heads and queries",
    "reading": "Reading a store",
    "memory": "Memory against the size of the corpus",
    "errors": "Errors against float64",
}
_NOTES = {
    "fit": "The baseline is extrapolated from a few steps.",
    "step": "On a GPU, 20 steps on a batch run without a pause, as in a fit.",
    "encoder": "*Added by*: the additional time of an encoder pass that is followed by this one on its states, over "
    "the encoder alone in the same round; the median of the differences.",
    "latency": "Wall-clock time of single calls: the median and the 95th percentile.",
    "memory": "Additional resident memory, beside the size of the store; the peak of a GPU is its own memory.",
    "errors": "The largest error over the root mean square of the quantity, with |β a| up to 30 and inputs rounded "
    "to the dtype; by norms: the norm of the error over the norm of the quantity.",
}
_PANELS = {BY_TOKENS: "tokens", BY_HEADS: "heads M", BY_QUERIES: "queries T"}
_OURS, _BARE, _FAINT = "#2a6f97", "#d1603d", "#9a9a9a"
_HEAD = ("what", "shape", "dtype", "baseline", "baseline", "ours", "ratio", "of the limit", "peak MiB")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="results.csv of other machines")
    given = parser.parse_args()
    if lacking := [str(file) for file in given.files if not file.is_file()]:
        parser.error(f"there is no file {', '.join(lacking)}")
    print(f"{merge(RESULTS, given.files)} rows added to {RESULTS}")
    render(RESULTS, _PAGE)


def render(results: Path, page: Path) -> None:
    """Replace the text between the marks in `page`, or add it at the end, and draw the plots."""
    records = select_latest(read(results))
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    for machine, own in _group_by_machine(records).items():
        if _has_growth(own):
            _draw_growth(images / _name_image(machine), own)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    new = f"{_BEGIN}\n\n{make_section(records)}\n{_END}"
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    text = pattern.sub(lambda _: new, text) if pattern.search(text) else f"{text.rstrip()}\n\n{new}\n".lstrip()
    page.write_text(text, encoding="utf-8")


def select_latest(records: Sequence[Record]) -> list[Record]:
    """Return the records of the newest run of each machine and group."""
    newest: dict[tuple[str, str], str] = {}
    for record in records:
        key = (record.run.machine, record.row.group)
        newest[key] = max(newest.get(key, ""), record.run.date)
    return [record for record in records if record.run.date == newest[record.run.machine, record.row.group]]


def make_section(records: Sequence[Record]) -> str:
    """Return Markdown with the targets of each machine and a table per group."""
    parts = [
        "## Speed\n",
        "Medians; baseline, limit and ours were timed in turns in one process. The limit is what no implementation can "
        "beat: the bare matrix product, or reading the tokens once. *Of the limit* is the limit over ours.\n",
    ]
    for machine, own in _group_by_machine(records).items():
        parts.append(f"### {machine}\n")
        if found := check_targets(own):
            parts.append(_format_targets(found))
        if _has_growth(own):
            parts.append(f"![Time against tokens, heads and queries](images/{_name_image(machine)})\n")
        for group, title in _TITLES.items():
            if rows := [record for record in own if record.row.group == group]:
                note = " ".join([_describe_run(rows[0].run), _NOTES.get(group, "")]).strip()
                parts.append(f"#### {title}, {machine}\n\n{note}\n")
                parts.append("\n".join([*format_head(), *(format_row(record.row) for record in rows)]) + "\n")
    return "\n".join(parts)


def format_head() -> list[str]:
    """Return the first two lines of a table of rows."""
    return [_line(_HEAD), _line(["---"] * 4 + ["---:"] * (len(_HEAD) - 4))]


def format_row(row: Row) -> str:
    """Return a row as a line of the table."""
    unit = "" if row.unit == "error" else f" {row.unit}"

    def number(value: float | None, after: str = "") -> str:
        return "" if value is None else f"{value:.3g}{after}" if value < 1000 else f"{value:,.0f}{after}"

    share = "" if row.fraction is None else f"{row.fraction:.0%}"
    return _line(
        [
            row.what, row.shape, row.dtype, row.baseline, number(row.baseline_value, unit), number(row.value, unit),
            number(row.ratio), share, number(row.peak_mib),
        ]
    )  # fmt: skip


def _format_targets(found: Sequence[Verdict]) -> str:
    lines = [_line(["target", "at most", "measured", "met"]), _line(["---", "---:", "---:", "---"])]
    for verdict in found:
        unit = f" {verdict.target.unit}".rstrip()
        bound, measured = (f"{value:.3g}{unit}" for value in (verdict.target.most, verdict.measured))
        lines.append(_line([verdict.target.text, bound, measured, "yes" if verdict.met else "**no**"]))
    return "\n".join(lines) + "\n"


def _describe_run(run: Run) -> str:
    return f"`python -m benchmarks`, {run.date} UTC, commit {run.commit or 'unknown'}, {run.software}."


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _group_by_machine(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each machine, GPUs first."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.run.device != "cuda"):
        found.setdefault(record.run.machine, []).append(record)
    return found


def _name_image(machine: str) -> str:
    return f"growth-{re.sub('[^a-z0-9]+', '-', machine.lower()).strip('-')}.png"


def _has_growth(records: Sequence[Record]) -> bool:
    """Return whether there is anything to draw."""
    return any(record.row.what in _PANELS for record in records)


def _draw_growth(path: Path, records: Sequence[Record]) -> None:
    """Draw a panel per growing size; the dotted line is proportional growth through the largest point."""
    figure = new_figure((11, 3.4))
    for axes, (what, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        rows = sorted((record.row for record in records if record.row.what == what), key=lambda row: _size(row, what))
        sizes = [_size(row, what) for row in rows]
        axes.plot(sizes, [row.value for row in rows], "o-", color=_OURS, markersize=4, label="attention pool")
        axes.plot(sizes, [row.limit_value for row in rows], "s--", color=_BARE, markersize=3, label="bare product")
        if rows:
            last = rows[-1].value / sizes[-1]
            axes.plot(sizes, [last * size for size in sizes], ":", color=_FAINT, label="proportional")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="ms")
        axes.tick_params(labelsize=8, labelcolor=INK)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8, frameon=False)
    save_figure(figure, path)


def _size(row: Row, what: str) -> int:
    sizes = {name: int(number) for name, number in re.findall(r"([A-Z])=(\d+)", row.shape)}
    return {BY_TOKENS: sizes["N"] * sizes["S"], BY_HEADS: sizes["M"], BY_QUERIES: sizes["T"]}[what]


if __name__ == "__main__":
    main()
