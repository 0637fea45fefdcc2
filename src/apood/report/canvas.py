"""What all pictures are drawn on."""

from pathlib import Path
from typing import Any

from apood.support.checks import import_optional
from apood.support.files import atomic_file

__all__ = ["INK", "literal", "new_figure", "refuse_without_matplotlib", "save_figure"]

INK = "#333333"


def refuse_without_matplotlib() -> None:
    """Raise an error if matplotlib is missing, before the work that ends in a picture."""
    import_optional("matplotlib.figure", "report", "A picture")


def new_figure(size: tuple[float, float]) -> Any:
    """A figure of its own, without pyplot's global state."""
    refuse_without_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Writes the figure in one step, in the format that the ending says; the same figure is the same file."""
    import matplotlib

    kind = path.suffix.removeprefix(".")
    undated = {"metadata": {"Date": None}} if kind == "svg" else {}
    with atomic_file(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "apood"}):
        figure.savefig(temporary, format=kind, dpi=150, **undated)


def literal(text: str) -> str:
    """Text that matplotlib shows as it is, without taking dollars for formulas."""
    return text.replace("$", r"\$")
