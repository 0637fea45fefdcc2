"""The page about the Ray engine has the rows of its script."""

import ast
import re
from pathlib import Path

from benchmarks import scale


def find_rows() -> list[str]:
    """Return a pattern for the first column of each row that the script notes."""
    tree = ast.parse(Path(scale.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "bench.note"]
    return ["".join(map(make_pattern, getattr(call.args[0], "values", [call.args[0]]))) for call in calls]


def make_pattern(part: ast.expr) -> str:
    return re.escape(part.value) if isinstance(part, ast.Constant) else ".+"


def test_the_page_has_every_row_of_the_script_and_no_other():
    lines = scale._PAGE.read_text(encoding="utf-8").splitlines()
    shown = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert shown[:2] == ["what", "---"]
    rows = find_rows()
    assert len(rows) > 8
    missing = [row for row in rows if not any(re.fullmatch(row, own) for own in shown[2:])]
    old = [own for own in shown[2:] if not any(re.fullmatch(row, own) for row in rows)]
    assert not missing and not old, f"repeat python -m benchmarks.scale --page: missing {missing}, no longer {old}"
