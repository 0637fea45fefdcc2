"""The LaTeX tables compile: a real pdflatex reads what `apood.report.latex` writes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from apood.report.grid import Block, Figure, Grid
from apood.report.tables import format_latex

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(ROOT.glob("benchmarks/paper/**/*.tex"))
SPECIAL = '<b> & {{ 7 * 7 }} [a](b) $x_1$ 50% \\input{x} #1 ^ ~ | `code` "quoted" ± – † … ␣ β λ d² 1/√D √2'

pytestmark = [
    pytest.mark.partners,
    pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: run make test-partners"),
]


def compile_tables(folder: Path, *tables: str) -> str:
    """Compile a document with these tables, and return pdflatex's output."""
    # \clearpage: LaTeX holds at most 18 floating tables that are not yet on a page.
    body = "\n\\clearpage\n".join(tables)
    document = f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "document.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "document.pdf").stat().st_size > 1000
    return done.stdout


def test_every_special_character_is_printed(tmp_path):
    method = f"[{SPECIAL}"
    grid = Grid(
        blocks=[Block(title=None, methods=[method, "knn"]), Block(title=SPECIAL, methods=["with AUX"])],
        columns=[SPECIAL, "mean"],
        cells={(method, SPECIAL): (Figure("90.0 ±1.5", "best"), Figure("20 ±3", "second"))},
        legend=SPECIAL,
        notes=[SPECIAL],
    )
    printed = compile_tables(tmp_path, format_latex(grid))
    assert "Missing character" not in printed


def test_the_committed_tables_of_the_paper_compile(tmp_path):
    assert len(COMMITTED) > 10
    printed = compile_tables(tmp_path, *(path.read_text(encoding="utf-8") for path in COMMITTED))
    assert "Missing character" not in printed


def test_a_table_that_is_broken_fails(tmp_path):
    with pytest.raises(AssertionError, match="Misplaced alignment tab"):
        compile_tables(tmp_path, r"\begin{table}a & b\end{table}")
