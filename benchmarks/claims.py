"""Gathers what the experiments below paper/ found of the paper's claims into one page, paper/CLAIMS.md.

    python -m benchmarks.claims

Each folder there is what `apood bench` left of one experiment.
"""

import json
from pathlib import Path
from typing import Any

__all__ = ["main", "page"]

_PAPER = Path(__file__).parent / "paper"
_VERDICTS = {True: "held", False: "**not held**", None: "cannot be told"}
_HEAD = """# The paper's claims, one by one

Written by `python -m benchmarks.claims` from the results beside it. A claim holds if the means say so, however close
they are; the tables have the deviations.

| experiment | model | recipe | claim | here | means |
| --- | --- | --- | --- | --- | --- |
"""


def main() -> None:
    """The command."""
    (_PAPER / "CLAIMS.md").write_text(page(_PAPER), encoding="utf-8")


def page(folder: Path) -> str:
    """All claims that were checked in the experiments below `folder`."""
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
