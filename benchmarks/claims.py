"""Write the page paper/CLAIMS.md with all claims of the paper that experiments below paper/ have checked.

    python -m benchmarks.claims

Each folder there holds the results of one experiment, as `apood bench` writes them.
"""

import json
from pathlib import Path
from typing import Any

__all__ = ["main", "make_page"]

_PAPER = Path(__file__).parent / "paper"
_VERDICTS = {True: "held", False: "**not held**", None: "undecided"}
_HEAD = """# The paper's claims, one by one

Written by `python -m benchmarks.claims` from the results beside it. A claim holds if the means say so, however close
they are; the tables have the deviations.

| experiment | model | recipe | claim | here | means |
| --- | --- | --- | --- | --- | --- |
"""


def main() -> None:
    """Run the command."""
    (_PAPER / "CLAIMS.md").write_text(make_page(_PAPER), encoding="utf-8")


def make_page(folder: Path) -> str:
    """Return the page of all claims that were checked in the experiments below `folder`."""
    lines = []
    for path in sorted(folder.rglob("results.json"), key=_order):
        results = json.loads(path.read_text(encoding="utf-8"))
        for claim in results.get("claims", []):
            lines.append(_line(path.parent.relative_to(folder), _facts(path.parent), claim))
    return _HEAD + "\n".join(lines) + "\n"


def _order(results: Path) -> tuple[str, str]:
    return results.parent.name, str(results)


def _facts(experiment: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((experiment / "manifest.json").read_text(encoding="utf-8"))
    return facts


def _line(place: Path, facts: dict[str, Any], claim: dict[str, Any]) -> str:
    model = "–" if facts["model"] is None else Path(facts["model"]["name"]).name
    name = f"[{facts['experiment']}]({place.as_posix()}/table.md)"
    cells = [name, model, facts["recipe"], claim["claim"], _VERDICTS[claim["held"]], claim["because"]]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
