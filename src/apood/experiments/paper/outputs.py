"""What an experiment leaves in its folder."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from apood.experiments.paper.findings import Claim, Findings
from apood.report.canvas import save_figure
from apood.report.latex import latex_table
from apood.report.tables import markdown_table
from apood.support.files import atomic_file, write_json
from apood.support.version import __version__

__all__ = ["versions", "write_findings"]

_PACKAGES = ("torch", "transformers", "numpy", "scikit-learn", "datasets", "matplotlib")
_HELD = {True: "held", False: "not held", None: "cannot be told"}


def write_findings(findings: Findings, folder: Path, title: str, manifest: dict[str, Any]) -> list[Path]:
    """Writes results.json, table.md, table.tex, the figures as PNG and SVG, and, last, manifest.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", findings.as_json())
    written = [folder / "results.json"]
    if findings.tables:
        _write(folder / "table.md", _markdown(findings, title))
        _write(folder / "table.tex", "\n".join(latex_table(table.grid) for table in findings.tables))
        written += [folder / "table.md", folder / "table.tex"]
    for name, draw in findings.figures.items():
        figure = draw()
        for kind in ("png", "svg"):
            save_figure(figure, path := folder / f"{name}.{kind}")
            written.append(path)
    write_json(folder / "manifest.json", manifest)
    return [*written, folder / "manifest.json"]


def versions() -> dict[str, str]:
    """Of all that decides the figures."""
    found = {"apood": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return found


def _markdown(findings: Findings, title: str) -> str:
    parts = [f"# {title}"]
    for table in findings.tables:
        parts += [f"## {table.heading}", markdown_table(table.grid).rstrip()]
    if findings.claims:
        parts += ["## What the paper says, checked here", "\n".join(map(_claim, findings.claims))]
    return "\n\n".join(parts) + "\n"


def _claim(claim: Claim) -> str:
    because = f" ({claim.because})" if claim.because else ""
    return f"- {claim.sentence}: **{_HELD[claim.holds]}**{because}"


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
