"""Figures 7 to 10 of the paper from the measurements of the runtime experiment, each as PNG and SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apood.experiments.runtime_profiles import AP_OOD, ENCODER, GENERATION, MAHALANOBIS, METHODS
from apood.report.canvas import INK, literal, new_figure, save_figure
from apood.report.heatmap import Cell, heatmap_of

__all__ = ["draw_figures", "find"]

Measurement = Mapping[str, Any]

_COLOURS = ("#2a6f97", "#d1603d", "#6a994e", "#7d5ba6")
_FAINT = "#c9d6df"
_FORMATS = ("png", "svg")


def find(results: Mapping[str, Any], what: str, **wanted: int) -> list[Measurement]:
    """The measurements of one thing at these sizes that memory sufficed for."""
    return [
        found
        for found in results["measurements"]
        if found["what"] == what
        and found["mean_ms"] is not None
        and all(found[name] == value for name, value in wanted.items())
    ]


def draw_figures(results: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes `figure7.png`, `figure7.svg`, … and returns their paths; without a generating model 10 has one row."""
    figures = {7: _relative, 8: _by_batch, 9: _heat_map, 10: _model}
    written = []
    for number, draw in figures.items():
        figure = draw(results)
        for kind in _FORMATS:
            path = out / f"figure{number}.{kind}"
            save_figure(figure, path)
            written.append(path)
    return written


def _relative(results: Mapping[str, Any]) -> Any:
    """Figure 7: of encoder and detector together, how much is the detector's."""
    sizes = _usual(results)
    figure = new_figure((6.4, 2.6))
    axes = figure.add_subplot()
    encoder = _mean(find(results, ENCODER, **sizes))
    for height, (method, colour) in enumerate(zip((MAHALANOBIS, AP_OOD), _COLOURS[1::-1], strict=True)):
        own = _mean(find(results, method, **sizes, **(_attention(results) if method == AP_OOD else {})))
        share = 100 * own / (own + encoder)
        axes.barh(height, 100 - share, color=_FAINT)
        axes.text(2, height, "encoder", va="center", fontsize=9, color=INK)
        axes.barh(height, share, left=100 - share, color=colour)
        axes.text(101, height, f"{share:.1f}%", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(2), [MAHALANOBIS, AP_OOD])
    axes.set(xlim=(0, 112), xlabel="percent of the time of encoder and detector")
    _title(axes, f"Detectors beside {results['model']['name']}")
    return figure


def _by_batch(results: Mapping[str, Any]) -> Any:
    """Figure 8: all methods against the batch size."""
    figure = new_figure((6.4, 4.2))
    axes = figure.add_subplot()
    context = results["profile"]["context"]
    for method, colour in zip(METHODS, _COLOURS, strict=True):
        attention = _attention(results) if method == AP_OOD else {}
        _draw_line(axes, find(results, method, context=context, **attention), "batch", colour, method)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    # a deviation as large as its mean would reach down without end
    least = min((found["mean_ms"] for method in METHODS for found in find(results, method)), default=1.0)
    axes.set(yscale="log", ylim=(least / 2, None), xlabel="sequences in a batch", ylabel="ms")
    _title(axes, f"Scoring sequences of {context} tokens")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _heat_map(results: Mapping[str, Any]) -> Any:
    """Figure 9: AP-OOD over its numbers of heads and queries."""
    heads, queries = results["profile"]["head_counts"], results["profile"]["query_counts"]
    cells = [
        Cell({"heads M": found["heads"], "queries T": found["queries"]}, found["mean_ms"])
        for found in find(results, AP_OOD, **_usual(results))
        if found["heads"] in heads and found["queries"] in queries
    ]
    return heatmap_of(cells, title="AP-OOD, milliseconds a batch", label="ms", higher_is_better=False)


def _model(results: Mapping[str, Any]) -> Any:
    """Figure 10: encoder, and encoder with decoder, against batch size and context length."""
    parts = [part for part in (ENCODER, GENERATION) if find(results, part)]
    usual = _usual(results)
    figure = new_figure((9.0, 3.0 * len(parts)))
    panels = figure.subplots(len(parts), 2, squeeze=False)
    for row, part in zip(panels, parts, strict=True):
        label = "encoder" if part == ENCODER else f"generation of {results['profile']['new_tokens']} tokens"
        for axes, (grows, fixed) in zip(row, (("batch", "context"), ("context", "batch")), strict=True):
            _draw_line(axes, find(results, part, **{fixed: usual[fixed]}), grows, _COLOURS[0], label)
            axes.set(xlabel="sequences in a batch" if grows == "batch" else "tokens a sequence", ylabel="ms")
            axes.set(xlim=(0, None), ylim=(0, None))
            _title(axes, label.capitalize())
    return figure


def _usual(results: Mapping[str, Any]) -> dict[str, int]:
    return {name: results["profile"][name] for name in ("batch", "context")}


def _attention(results: Mapping[str, Any]) -> dict[str, int]:
    return {name: results["profile"][name] for name in ("heads", "queries")}


def _mean(found: Sequence[Measurement]) -> float:
    return float(found[0]["mean_ms"]) if found else float("nan")


def _draw_line(axes: Any, found: Sequence[Measurement], by: str, colour: str, label: str) -> None:
    rows = sorted(found, key=lambda each: int(each[by]))
    sizes, means, deviations = ([row[name] for row in rows] for name in (by, "mean_ms", "deviation_ms"))
    axes.errorbar(sizes, means, yerr=deviations, color=colour, marker="o", markersize=4, capsize=3, label=label)


def _title(axes: Any, text: str) -> None:
    axes.set_title(literal(text), loc="left", fontsize=11, color=INK)
    axes.tick_params(labelsize=8, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
