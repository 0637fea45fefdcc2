"""Table 11 of the paper with ours beside it, as Markdown and LaTeX, and all that the runtime experiment writes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from apood.experiments.paper.outputs import made_with
from apood.experiments.runtime_figures import draw_figures, find
from apood.experiments.runtime_profiles import AP_OOD, ENCODER, GENERATION, MAHALANOBIS
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.latex import latex_table
from apood.report.tables import markdown_table
from apood.support.errors import InputError
from apood.support.files import atomic_file, read_json

__all__ = ["PAPER", "read_manifest", "read_results", "table_of", "write_report"]


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
"""On an A100 with 40 GB: 32 sequences of 512 tokens, M = 256, T = 4."""

_PAPER_COLUMN = "paper: PEGASUS large, A100"
_TITLE = "# runtime: what detectors cost beside the model (table 11)"
_SHARE = "AP-OOD of encoder and detector"


def table_of(results: Mapping[str, Any]) -> Grid:
    """Table 11: milliseconds a batch, and the share that the paper complains of."""
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
        cells |= {(what, column): (_shown(time),) for what, time in times.items()}
        if {AP_OOD, ENCODER} <= times.keys():
            share = times[AP_OOD].mean / (times[AP_OOD].mean + times[ENCODER].mean)
            cells[_SHARE, column] = (Figure(f"{100 * share:.1f}%"),)
    legend = (
        f"Milliseconds a batch, mean ± standard deviation of {profile['measured']} batches. Here: {profile['batch']} "
        f"sequences of {profile['context']} tokens, M = {profile['heads']}, T = {profile['queries']}, outputs of "
        f"{profile['new_tokens']} tokens (beams: {profile['beams']}); paper: 32 of 512, M = 256, T = 4, outputs of "
        "unknown length."
    )
    return Grid([Block(None, [*PAPER, _SHARE])], [_PAPER_COLUMN, ours], cells, legend)


def write_report(results: Mapping[str, Any], manifest: Mapping[str, Any], out: Path) -> list[Path]:
    """Writes `table11.md`, `table11.tex` and the figures to the folder, and returns their paths."""
    table = table_of(results)
    written = []
    markdown = "\n\n".join([_TITLE, made_with(manifest), markdown_table(table)])
    for name, text in (("table11.md", markdown), ("table11.tex", latex_table(table))):
        with atomic_file(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(out / name)
    return written + draw_figures(results, out)


def read_results(path: Path) -> dict[str, Any]:
    """What an earlier run measured."""
    return _read(path, table_of)


def read_manifest(path: Path) -> dict[str, Any]:
    """Where that comes from."""
    return _read(path, made_with)


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


def _shown(time: Time) -> Figure:
    return Figure(f"{_number(time.mean)} ±{_number(time.deviation)}")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
