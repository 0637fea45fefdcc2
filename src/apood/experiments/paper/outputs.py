"""What an experiment leaves in its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apood.experiments.paper.findings import Claim, Findings
from apood.report.canvas import save_figure
from apood.report.latex import latex_table
from apood.report.tables import markdown_table
from apood.support.files import atomic_file, write_json

__all__ = ["made_with", "write_findings"]


def write_findings(findings: Findings, folder: Path, title: str, manifest: dict[str, Any]) -> list[Path]:
    """Writes results.json, table.md, table.tex, the figures as PNG and SVG, and, last, manifest.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", findings.as_json())
    written = [folder / "results.json"]
    if findings.tables:
        _write(folder / "table.md", _markdown(findings, title, manifest))
        _write(folder / "table.tex", "\n".join(latex_table(table.grid) for table in findings.tables))
        written += [folder / "table.md", folder / "table.tex"]
    for name, draw in findings.figures.items():
        figure = draw()
        for kind in ("png", "svg"):
            save_figure(figure, path := folder / f"{name}.{kind}")
            written.append(path)
    write_json(folder / "manifest.json", manifest)
    return [*written, folder / "manifest.json"]


def made_with(manifest: Mapping[str, Any]) -> str:
    """The line below a title that says where figures come from: command, device and date."""
    return f"`{manifest['command']}`, {manifest['device']}, {manifest['finished'][:10]}."


def _markdown(findings: Findings, title: str, manifest: dict[str, Any]) -> str:
    parts = [f"# {title}", made_with(manifest)]
    for table in findings.tables:
        parts += [f"## {table.heading}", markdown_table(table.grid).rstrip()]
    if findings.claims:
        parts += ["## What the paper says, checked here", "\n".join(map(_claim, findings.claims))]
    return "\n\n".join(parts) + "\n"


def _claim(claim: Claim) -> str:
    because = f" ({claim.because})" if claim.because else ""
    return f"- {claim.sentence}: **{claim.verdict}**{because}"


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
