"""Writes the results of each machine's latest runs into RESULTS.md, between two marks, and draws how times grow.

    python -m benchmarks.render [FILE ...]

Records of other files, such as those that another machine wrote with `--out`, are first added to results.csv.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.plot import draw_growth, has_growth
from benchmarks.record import RESULTS, Record, Row, Run, merge, read
from benchmarks.targets import Verdict, verdicts

__all__ = ["latest", "main", "render", "section", "shown_row", "table_head"]

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
    "step": "On a GPU 20 steps of a batch run back to back, as in a fit.",
    "encoder": "*Added by*: how much longer the encoder took with this right behind it, on the states that it had just "
    "made, than alone in the same round; the median of these differences.",
    "latency": "Wall clock of single calls, each waited for: half of them, and 95 of 100, took no longer.",
    "memory": "Resident memory beyond what was in use before, beside the size of the store; a GPU's peak is its own.",
    "errors": "The largest error over the root mean square of the quantity, |β a| up to 30, inputs rounded to the "
    "dtype; by norms: of the error and of the quantity.",
}
_HEAD = ("what", "shape", "dtype", "baseline", "baseline", "ours", "ratio", "of the limit", "peak MiB")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="results.csv of other machines")
    given = parser.parse_args()
    if lacking := [str(file) for file in given.files if not file.is_file()]:
        parser.error(f"there is no file {', '.join(lacking)}")
    print(f"{merge(RESULTS, given.files)} rows added to {RESULTS}")
    render(RESULTS, _PAGE)


def render(results: Path, page: Path) -> None:
    """Replaces what stands between the marks in `page`, or adds it at the end, and draws its plots beside it."""
    records = latest(read(results))
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    for machine, own in _by_machine(records).items():
        if has_growth(own):
            draw_growth(images / _image(machine), own)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    new = f"{_BEGIN}\n\n{section(records)}\n{_END}"
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    text = pattern.sub(lambda _: new, text) if pattern.search(text) else f"{text.rstrip()}\n\n{new}\n".lstrip()
    page.write_text(text, encoding="utf-8")


def latest(records: Sequence[Record]) -> list[Record]:
    """Of each machine and group those of the newest run."""
    newest: dict[tuple[str, str], str] = {}
    for record in records:
        key = (record.run.machine, record.row.group)
        newest[key] = max(newest.get(key, ""), record.run.date)
    return [record for record in records if record.run.date == newest[record.run.machine, record.row.group]]


def section(records: Sequence[Record]) -> str:
    """Markdown: for each machine its targets, then a table a group."""
    parts = [
        "## Speed\n",
        "Medians; baseline, limit and ours took turns in one process. *Of the limit* says how near ours comes to what "
        "no implementation can beat: the bare matrix product, or reading the tokens once.\n",
    ]
    for machine, own in _by_machine(records).items():
        parts.append(f"### {machine}\n")
        if found := verdicts(own):
            parts.append(_targets_table(found))
        if has_growth(own):
            parts.append(f"![Time against tokens, heads and queries](images/{_image(machine)})\n")
        for group, title in _TITLES.items():
            if rows := [record for record in own if record.row.group == group]:
                note = " ".join([_run_line(rows[0].run), _NOTES.get(group, "")]).strip()
                parts.append(f"#### {title}, {machine}\n\n{note}\n")
                parts.append("\n".join([*table_head(), *(shown_row(record.row) for record in rows)]) + "\n")
    return "\n".join(parts)


def table_head() -> list[str]:
    """The first two lines of a table of rows."""
    return [_line(_HEAD), _line(["---"] * 4 + ["---:"] * (len(_HEAD) - 4))]


def shown_row(row: Row) -> str:
    """A row as a line of that table."""
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


def _targets_table(found: Sequence[Verdict]) -> str:
    lines = [_line(["target", "at most", "measured", "met"]), _line(["---", "---:", "---:", "---"])]
    for verdict in found:
        unit = f" {verdict.target.unit}".rstrip()
        bound, measured = (f"{value:.3g}{unit}" for value in (verdict.target.most, verdict.measured))
        lines.append(_line([verdict.target.text, bound, measured, "yes" if verdict.met else "**no**"]))
    return "\n".join(lines) + "\n"


def _run_line(run: Run) -> str:
    return f"`python -m benchmarks`, {run.date} UTC, commit {run.commit or 'unknown'}, {run.software}."


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _by_machine(records: Sequence[Record]) -> dict[str, list[Record]]:
    """GPUs first."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.run.device != "cuda"):
        found.setdefault(record.run.machine, []).append(record)
    return found


def _image(machine: str) -> str:
    return f"growth-{re.sub('[^a-z0-9]+', '-', machine.lower()).strip('-')}.png"


if __name__ == "__main__":
    main()
