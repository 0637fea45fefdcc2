"""The canvas of all pictures: figures, panels and files."""

from pathlib import Path
from typing import Any

from apood.support.checks import import_optional
from apood.support.files import atomic_file

__all__ = ["INK", "escape_dollars", "make_panels", "new_figure", "refuse_without_matplotlib", "save_figure"]

INK = "#333333"


def refuse_without_matplotlib() -> None:
    """Raise an error if matplotlib is missing, before the work that ends in a picture."""
    import_optional("matplotlib.figure", "report", "A picture")


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty figure of that size in inches, without pyplot's global state."""
    refuse_without_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def make_panels(figure: Any, count: int, columns: int) -> list[Any]:
    """Add `count` axes to the figure in rows of `columns`, and return them."""
    grid = figure.subplots(-(-count // columns), columns, squeeze=False).flatten()
    for axes in grid[count:]:
        axes.set_visible(False)
    return list(grid[:count])


def save_figure(figure: Any, path: Path) -> None:
    """Write the figure in one step, in the format of the ending. Equal figures give equal files."""
    import matplotlib

    kind = path.suffix.removeprefix(".")
    undated = {"metadata": {"Date": None}} if kind == "svg" else {}
    with atomic_file(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "apood"}):
        figure.savefig(temporary, format=kind, dpi=150, **undated)


def escape_dollars(text: str) -> str:
    """Return text that matplotlib shows as it is, without formulas."""
    return text.replace("$", r"\$")
