"""The report of the runtime experiment: table 11 with our figures beside the paper's, and figures 7 to 10."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from apood.experiments.runtime_profiles import AP_OOD, ENCODER, GENERATION, MAHALANOBIS, METHODS
from apood.report.canvas import INK, escape_dollars, new_figure, save_figure
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.heatmap import HeatCell, draw_heatmap
from apood.report.tables import format_latex, format_markdown
from apood.support.errors import InputError
from apood.support.files import atomic_file, read_json
from apood.support.provenance import describe_origin

__all__ = ["PAPER", "draw_figures", "make_table", "read_manifest", "read_results", "write_report"]

Measurement = Mapping[str, Any]

_COLOURS = ("#2a6f97", "#d1603d", "#6a994e", "#7d5ba6")
_FAINT = "#c9d6df"
_FORMATS = ("png", "svg")


class Time(NamedTuple):
    """Mean and standard deviation in milliseconds."""

    mean: float
    deviation: float


PAPER = {
    AP_OOD: Time(6.58, 0.095),
    MAHALANOBIS: Time(0.52, 0.146),
    ENCODER: Time(28.43, 2.513),
    GENERATION: Time(34940.34, 65.842),
}
"""The paper's times, on an A100 with 40 GB: 32 sequences of 512 tokens, M = 256, T = 4."""

_PAPER_COLUMN = "paper: PEGASUS large, A100"
_TITLE = "# runtime: what detectors cost beside the model (table 11)"
_SHARE = "AP-OOD of encoder and detector"


def make_table(results: Mapping[str, Any]) -> Grid:
    """Return table 11: milliseconds per batch, and the share of AP-OOD that the paper criticises."""
    profile, device = results["profile"], results["device"]
    ours = f"here: {results['model']['name']}, {device}"
    sizes = {name: profile[name] for name in ("batch", "context")}
    attention = {name: profile[name] for name in ("heads", "queries")}
    here: dict[str, Time] = {}
    for what in PAPER:
        for found in find(results, what, **sizes, **(attention if what == AP_OOD else {})):
            here[what] = Time(found["mean_ms"], found["deviation_ms"])
    cells: dict[tuple[str, str], Cell] = {}
    for column, times in ((_PAPER_COLUMN, PAPER), (ours, here)):
        cells |= {(what, column): (_format_time(time),) for what, time in times.items()}
        if {AP_OOD, ENCODER} <= times.keys():
            share = times[AP_OOD].mean / (times[AP_OOD].mean + times[ENCODER].mean)
            cells[_SHARE, column] = (Figure(f"{100 * share:.1f}%"),)
    legend = (
        f"Milliseconds per batch, mean ± standard deviation of {profile['measured']} batches. Here: {profile['batch']} "
        f"sequences of {profile['context']} tokens, M = {profile['heads']}, T = {profile['queries']}, outputs of "
        f"{profile['new_tokens']} tokens (beams: {profile['beams']}); paper: 32 of 512, M = 256, T = 4, outputs of "
        "unknown length."
    )
    return Grid([Block(None, [*PAPER, _SHARE])], [_PAPER_COLUMN, ours], cells, legend)


def write_report(results: Mapping[str, Any], manifest: Mapping[str, Any], out: Path) -> list[Path]:
    """Write `table11.md`, `table11.tex` and the figures to the folder, and return their paths."""
    table = make_table(results)
    written = []
    markdown = "\n\n".join([_TITLE, describe_origin(manifest), format_markdown(table)])
    for name, text in (("table11.md", markdown), ("table11.tex", format_latex(table))):
        with atomic_file(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(out / name)
    return written + draw_figures(results, out)


def read_results(path: Path) -> dict[str, Any]:
    """Return the results of an earlier run."""
    return _read(path, make_table)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of an earlier run."""
    return _read(path, describe_origin)


def _read(path: Path, usable: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"There is no {path} to draw from: measure first.")
    try:
        found: dict[str, Any] = read_json(path)
        usable(found)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not what the runtime experiment writes ({type(error).__name__}: {error})."
        ) from error
    return found


def _format_time(time: Time) -> Figure:
    return Figure(f"{_format_number(time.mean)} ±{_format_number(time.deviation)}")


def _format_number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def find(results: Mapping[str, Any], what: str, **wanted: int) -> list[Measurement]:
    """Return the measurements of `what` at these sizes, without those that ran out of memory."""
    return [
        found
        for found in results["measurements"]
        if found["what"] == what
        and found["mean_ms"] is not None
        and all(found[name] == value for name, value in wanted.items())
    ]


def draw_figures(results: Mapping[str, Any], out: Path) -> list[Path]:
    """Write figures 7 to 10 as PNG and SVG, and return their paths; without generation, figure 10 has one row."""
    figures = {7: _draw_share, 8: _draw_by_batch, 9: _draw_heat_map, 10: _draw_model}
    written = []
    for number, draw in figures.items():
        figure = draw(results)
        for kind in _FORMATS:
            path = out / f"figure{number}.{kind}"
            save_figure(figure, path)
            written.append(path)
    return written


def _draw_share(results: Mapping[str, Any]) -> Any:
    """Draw figure 7: the detector's share of the time of encoder and detector together."""
    sizes = _get_usual_sizes(results)
    figure = new_figure((6.4, 2.6))
    axes = figure.add_subplot()
    encoder = _get_first_mean(find(results, ENCODER, **sizes))
    for height, (method, colour) in enumerate(zip((MAHALANOBIS, AP_OOD), _COLOURS[1::-1], strict=True)):
        own = _get_first_mean(find(results, method, **sizes, **(_find_attention(results) if method == AP_OOD else {})))
        share = 100 * own / (own + encoder)
        axes.barh(height, 100 - share, color=_FAINT)
        axes.text(2, height, "encoder", va="center", fontsize=9, color=INK)
        axes.barh(height, share, left=100 - share, color=colour)
        axes.text(101, height, f"{share:.1f}%", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(2), [MAHALANOBIS, AP_OOD])
    axes.set(xlim=(0, 112), xlabel="percent of the time of encoder and detector")
    _make_title(axes, f"Detectors beside {results['model']['name']}")
    return figure


def _draw_by_batch(results: Mapping[str, Any]) -> Any:
    """Draw figure 8: the time of all methods by batch size."""
    figure = new_figure((6.4, 4.2))
    axes = figure.add_subplot()
    context = results["profile"]["context"]
    for method, colour in zip(METHODS, _COLOURS, strict=True):
        attention = _find_attention(results) if method == AP_OOD else {}
        _draw_line(axes, find(results, method, context=context, **attention), "batch", colour, method)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    # On a logarithmic axis, a deviation as large as its mean would reach down without end.
    least = min((found["mean_ms"] for method in METHODS for found in find(results, method)), default=1.0)
    axes.set(yscale="log", ylim=(least / 2, None), xlabel="sequences in a batch", ylabel="ms")
    _make_title(axes, f"Scoring sequences of {context} tokens")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _draw_heat_map(results: Mapping[str, Any]) -> Any:
    """Draw figure 9: the time of AP-OOD by numbers of heads and queries."""
    heads, queries = results["profile"]["head_counts"], results["profile"]["query_counts"]
    cells = [
        HeatCell({"heads M": found["heads"], "queries T": found["queries"]}, found["mean_ms"])
        for found in find(results, AP_OOD, **_get_usual_sizes(results))
        if found["heads"] in heads and found["queries"] in queries
    ]
    return draw_heatmap(cells, title="AP-OOD, milliseconds per batch", label="ms", higher_is_better=False)


def _draw_model(results: Mapping[str, Any]) -> Any:
    """Draw figure 10: the time of the model by batch size and context length."""
    parts = [part for part in (ENCODER, GENERATION) if find(results, part)]
    usual = _get_usual_sizes(results)
    figure = new_figure((9.0, 3.0 * len(parts)))
    panels = figure.subplots(len(parts), 2, squeeze=False)
    for row, part in zip(panels, parts, strict=True):
        label = "encoder" if part == ENCODER else f"generation of {results['profile']['new_tokens']} tokens"
        for axes, (grows, fixed) in zip(row, (("batch", "context"), ("context", "batch")), strict=True):
            _draw_line(axes, find(results, part, **{fixed: usual[fixed]}), grows, _COLOURS[0], label)
            axes.set(xlabel="sequences in a batch" if grows == "batch" else "tokens per sequence", ylabel="ms")
            axes.set(xlim=(0, None), ylim=(0, None))
            _make_title(axes, label.capitalize())
    return figure


def _get_usual_sizes(results: Mapping[str, Any]) -> dict[str, int]:
    return {name: results["profile"][name] for name in ("batch", "context")}


def _find_attention(results: Mapping[str, Any]) -> dict[str, int]:
    return {name: results["profile"][name] for name in ("heads", "queries")}


def _get_first_mean(found: Sequence[Measurement]) -> float:
    return float(found[0]["mean_ms"]) if found else float("nan")


def _draw_line(axes: Any, found: Sequence[Measurement], by: str, colour: str, label: str) -> None:
    rows = sorted(found, key=lambda each: int(each[by]))
    sizes, means, deviations = ([row[name] for row in rows] for name in (by, "mean_ms", "deviation_ms"))
    axes.errorbar(sizes, means, yerr=deviations, color=colour, marker="o", markersize=4, capsize=3, label=label)


def _make_title(axes: Any, text: str) -> None:
    axes.set_title(escape_dollars(text), loc="left", fontsize=11, color=INK)
    axes.tick_params(labelsize=8, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
