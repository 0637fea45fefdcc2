"""A comparison as files: the figures, and the same table in three formats."""

from pathlib import Path

from apood.evaluation.comparison import Comparison
from apood.report.comparison import grid_of_comparison
from apood.report.tables import format_html, format_latex, format_markdown
from apood.support.files import atomic_file, write_json

__all__ = ["write_comparison"]


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes `results.json`, `table.md`, `table.tex` and `table.html`, each in one step."""
    grid = grid_of_comparison(comparison)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", comparison.to_json())
    tables = {
        "table.md": format_markdown(grid),
        "table.tex": format_latex(grid),
        "table.html": format_html(grid, "Comparison of out-of-distribution detectors"),
    }
    for name, text in tables.items():
        with atomic_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in ("results.json", *tables)]
