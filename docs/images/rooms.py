"""Draw the rooms of apood from their real imports: `python docs/images/rooms.py` writes docs/images/rooms.png.

A room stands below every room that it imports. An arrow goes from a room to a room it imports; arrows that follow from
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
PICTURE = Path(__file__).with_name("rooms.png")
WIDTH, HEIGHT = 2.3, 0.62


def read_rooms() -> tuple[dict[str, set[str]], dict[str, tuple[int, int]]]:
    """Return the rooms that each room imports, and the number of modules and lines of each room."""
    imports: dict[str, set[str]] = defaultdict(set)
    sizes: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in PACKAGE.rglob("*.py"):
        room, *rest = path.relative_to(PACKAGE).parts
        if not rest:
            continue
        text = path.read_text(encoding="utf-8")
        modules, lines = sizes[room]
        sizes[room] = modules + 1, lines + len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apood."):
                imports[room].add(str(node.module).split(".")[1])
    return {room: imports[room] - {room} for room in sizes}, dict(sizes)


def draw(path: Path) -> None:
    """Draw the rooms into `path`."""
    imports, sizes = read_rooms()

    @cache
    def reached(room: str) -> frozenset[str]:
        return frozenset(imports[room]).union(*(reached(other) for other in imports[room]))

    @cache
    def depth(room: str) -> int:
        return 1 + max((depth(other) for other in imports[room]), default=-1)

    layers: dict[int, list[str]] = defaultdict(list)
    for room in sorted(sizes):
        layers[depth(room)].append(room)
    places = {
        room: ((number - (len(rooms) - 1) / 2) * (WIDTH + 0.7), -1.35 * level)
        for level, rooms in layers.items()
        for number, room in enumerate(rooms)
    }
    figure, axes = plt.subplots(figsize=(9, 0.95 * len(layers) + 0.4))
    for room, (x, y) in places.items():
        box = FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, boxstyle="round,pad=0.08", fc="#eef3fa", ec="#35507a"
        )
        axes.add_patch(box)
        modules, lines = sizes[room]
        axes.text(x, y + 0.1, room, ha="center", va="center", fontsize=11, weight="bold")
        axes.text(x, y - 0.2, f"{modules} modules, {lines:,} lines", ha="center", va="center", fontsize=7.5)
        direct = {other for other in imports[room] if not any(other in reached(third) for third in imports[room])}
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
