"""What all pictures are drawn on."""

from typing import Any

from apood.support.errors import ApoodError

__all__ = ["INK", "literal", "new_figure"]

INK = "#333333"


def new_figure(size: tuple[float, float]) -> Any:
    """A figure of its own, without pyplot's global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ApoodError("Plots need matplotlib, which `pip install 'apood[report]'` brings.") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def literal(text: str) -> str:
    """Text that matplotlib shows as it is, without taking dollars for formulas."""
    return text.replace("$", r"\$")
