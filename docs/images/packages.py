"""Draw the packages of apood from their real imports: `python docs/images/packages.py` writes docs/images/packages.png.

A package stands below every package that it imports. An arrow goes from it to one of these; arrows that follow from
others are left out.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

import apood

__all__: list[str] = []

PACKAGE = Path(apood.__file__).parent
PICTURE = Path(__file__).with_name("packages.png")
WIDTH, HEIGHT = 2.3, 0.62


def read_packages() -> tuple[dict[str, set[str]], dict[str, tuple[int, int]]]:
    """Return the packages that each package imports, and the number of modules and lines of each package."""
    imports: dict[str, set[str]] = defaultdict(set)
    sizes: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in PACKAGE.rglob("*.py"):
        package, *rest = path.relative_to(PACKAGE).parts
        if not rest:
            continue
        text = path.read_text(encoding="utf-8")
        modules, lines = sizes[package]
        sizes[package] = modules + 1, lines + len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apood."):
                imports[package].add(str(node.module).split(".")[1])
    return {package: imports[package] - {package} for package in sizes}, dict(sizes)


def draw(path: Path) -> None:
    """Draw the packages into `path`."""
    imports, sizes = read_packages()

    @cache
    def reached(package: str) -> frozenset[str]:
        return frozenset(imports[package]).union(*(reached(other) for other in imports[package]))

    @cache
    def depth(package: str) -> int:
        return 1 + max((depth(other) for other in imports[package]), default=-1)

    layers: dict[int, list[str]] = defaultdict(list)
    for package in sorted(sizes):
        layers[depth(package)].append(package)
    places = {
        package: ((number - (len(packages) - 1) / 2) * (WIDTH + 0.7), -1.35 * level)
        for level, packages in layers.items()
        for number, package in enumerate(packages)
    }
    figure, axes = plt.subplots(figsize=(9, 0.95 * len(layers) + 0.4))
    for package, (x, y) in places.items():
        box = FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle="round,pad=0.08", fc="#eef3fa", ec="#35507a"
        )
        axes.add_patch(box)
        modules, lines = sizes[package]
        axes.text(x, y + 0.1, package, ha="center", va="center", fontsize=11, weight="bold")
        axes.text(x, y - 0.2, f"{modules} modules, {lines:,} lines", ha="center", va="center", fontsize=7.5)
        direct = {other for other in imports[package] if not any(other in reached(third) for third in imports[package])}
        for other in direct:
            to_x, to_y = places[other]
            axes.annotate(
                "",
                xy=(to_x, to_y - HEIGHT / 2 - 0.1),
                xytext=(x, y + HEIGHT / 2 + 0.1),
                arrowprops={"arrowstyle": "-|>", "color": "#7d8fae", "shrinkA": 0, "shrinkB": 0},
                zorder=0,
            )
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    draw(PICTURE)
