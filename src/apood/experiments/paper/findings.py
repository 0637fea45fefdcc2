"""The results of an experiment, and the files that it writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apood.experiments.paper.claims import Claim
from apood.report.canvas import save_figure
from apood.report.grid import Grid
from apood.report.tables import format_latex, format_markdown
from apood.support.files import atomic_file, write_json
from apood.support.provenance import describe_origin

__all__ = ["Draw", "Findings", "Table", "write_findings"]

Draw = Callable[[], Any]
"""Returns a figure of matplotlib."""


@dataclass(frozen=True)
class Table:
    """A grid with a heading."""

    heading: str
    grid: Grid


@dataclass(frozen=True)
class Findings:
    """All results of an experiment.

    Attributes:
        results: all figures as plain JSON.
        tables: the tables.
        figures: a function that draws each picture, by file name.
        claims: the paper's claims, checked.
    """

    results: Mapping[str, Any]
    tables: Sequence[Table] = ()
    figures: Mapping[str, Draw] = field(default_factory=dict)
    claims: Sequence[Claim] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the results and claims as plain JSON."""
        claims = [{"claim": claim.sentence, "held": claim.holds, "because": claim.because} for claim in self.claims]
        return {**self.results, "claims": claims}


def write_findings(findings: Findings, folder: Path, title: str, manifest: dict[str, Any]) -> list[Path]:
    """Write results.json, table.md, table.tex, the figures as PNG and SVG and, last, manifest.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", findings.to_json())
    written = [folder / "results.json"]
    if findings.tables:
        latex = "\n".join(format_latex(table.grid) for table in findings.tables)
        for name, text in (("table.md", _to_markdown(findings, title, manifest)), ("table.tex", latex)):
            with atomic_file(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
            written.append(folder / name)
    for name, draw in findings.figures.items():
        figure = draw()
        for kind in ("png", "svg"):
            save_figure(figure, path := folder / f"{name}.{kind}")
            written.append(path)
    write_json(folder / "manifest.json", manifest)
    return [*written, folder / "manifest.json"]


def _to_markdown(findings: Findings, title: str, manifest: dict[str, Any]) -> str:
    parts = [f"# {title}", describe_origin(manifest)]
    for table in findings.tables:
        parts += [f"## {table.heading}", format_markdown(table.grid).rstrip()]
    if findings.claims:
        lines = [f"- {claim.sentence}: **{claim.verdict}**{claim.reason}" for claim in findings.claims]
        parts += ["## What the paper says, checked here", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"
