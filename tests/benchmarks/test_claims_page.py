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
    stores = [{"mode": mode, "encoder": {"layers": layers}} for mode, layers in (("input", -1), ("output", "mix"))]
    facts = {"experiment": "scaling", "recipe": "paper", "model": {"name": "models/tiny"}, "stores": stores[:1]}
    facts["finished"] = "2026-11-16T08:00:00+00:00"
    claims = [{"claim": f"claim {n}", "held": held, "because": "1 > 0"} for n, held in enumerate([True, False, None])]
    leave(tmp_path / "tiny" / "scaling", facts, {"claims": claims})
    leave(tmp_path / "toy", facts | {"experiment": "toy", "model": None, "stores": []}, {"claims": claims[:1]})
    robust = facts | {"recipe": "robust"}
    leave(tmp_path / "another" / "scaling", robust, {"claims": claims[:1]})
    leave(tmp_path / "later" / "scaling", robust | {"finished": "2026-11-18", "stores": stores}, {"claims": claims[:1]})
    leave(tmp_path / "tiny" / "runtime", {}, {"measurements": []})
    lines = [line for line in make_page(tmp_path).splitlines() if line.startswith("| [")]
    assert lines == [
        "| [scaling](another/scaling/table.md) | tiny | robust | last | 2026-11-16, earlier | claim 0 | held | 1 > 0 |",
        "| [scaling](later/scaling/table.md) | tiny | robust | input: last, output: mix | 2026-11-18 | claim 0 | held "
        "| 1 > 0 |",
        "| [scaling](tiny/scaling/table.md) | tiny | paper | last | 2026-11-16 | claim 0 | held | 1 > 0 |",
        "| [scaling](tiny/scaling/table.md) | tiny | paper | last | 2026-11-16 | claim 1 | **not held** | 1 > 0 |",
        "| [scaling](tiny/scaling/table.md) | tiny | paper | last | 2026-11-16 | claim 2 | undecided | 1 > 0 |",
        "| [toy](toy/table.md) | – | paper | – | 2026-11-16 | claim 0 | held | 1 > 0 |",
    ]
