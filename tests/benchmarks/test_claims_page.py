"""The page of all claims is made from what experiments have left."""

import json
from pathlib import Path
from typing import Any

from benchmarks.claims import make_page


def leave(folder: Path, facts: dict[str, Any], results: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def test_each_claim_has_its_line_beside_those_of_the_same_experiment(tmp_path: Path) -> None:
    facts = {"experiment": "scaling", "recipe": "paper", "model": {"name": "models/tiny"}}
    claims = [{"claim": f"claim {n}", "held": held, "because": "1 > 0"} for n, held in enumerate([True, False, None])]
    leave(tmp_path / "tiny" / "scaling", facts, {"claims": claims})
    leave(tmp_path / "toy", facts | {"experiment": "toy", "model": None}, {"claims": claims[:1]})
    leave(tmp_path / "another" / "scaling", facts | {"recipe": "robust"}, {"claims": claims[:1]})
    leave(tmp_path / "tiny" / "runtime", {}, {"measurements": []})
    lines = [line for line in make_page(tmp_path).splitlines() if line.startswith("| [")]
    assert lines == [
        "| [scaling](another/scaling/table.md) | tiny | robust | claim 0 | held | 1 > 0 |",
        "| [scaling](tiny/scaling/table.md) | tiny | paper | claim 0 | held | 1 > 0 |",
        "| [scaling](tiny/scaling/table.md) | tiny | paper | claim 1 | **not held** | 1 > 0 |",
        "| [scaling](tiny/scaling/table.md) | tiny | paper | claim 2 | undecided | 1 > 0 |",
        "| [toy](toy/table.md) | – | paper | claim 0 | held | 1 > 0 |",
    ]
