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
they are; the tables have the deviations. *Layers* are those that a token is made of in these results: the last one, as
in the paper, or the mix that apood chooses for a model. Results of `robust` that are marked as *earlier* were made
before the present version of apood's recipe, on the last layer, and would be others today. In all results, baselines
have their defaults.

| experiment | model | recipe | layers | date | claim | here | means |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_PRESENT_RECIPE = "2026-11-18"  # since then, `robust` is what it is today


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
    recipe, date = facts["recipe"], facts["finished"][:10]
    origin = [
        recipe,
        _name_layers(facts),
        f"{date}, earlier" if recipe == "robust" and date < _PRESENT_RECIPE else date,
    ]
    cells = [name, model, *origin, claim["claim"], _VERDICTS[claim["held"]], claim["because"]]
    return f"| {' | '.join(cells)} |"


def _name_layers(facts: dict[str, Any]) -> str:
    """Return the layers of the tokens, by mode if the modes differ."""
    layers = {}
    for store in facts["stores"]:
        encoder = store["encoder"]
        own = str(encoder["layers"] if "layers" in encoder else encoder["layer"])
        layers[store["mode"]] = "last" if own == "-1" else own
    if len(set(layers.values())) < 2:
        return next(iter(layers.values()), "–")
    return ", ".join(f"{mode}: {own}" for mode, own in layers.items())


if __name__ == "__main__":
    main()
