"""`apood evaluate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import NoVerify, open_store, parse_named_stores
from apood.cli.output import echo, print_json, print_table
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.detectors.contract.base import Detector
    from apood.evaluation.result import ResultRow

__all__ = ["evaluate"]


def evaluate(
    detector_folders: Annotated[list[Path], typer.Argument(metavar="DETECTOR", help="Folders of detectors.")],
    id_store: Annotated[
        Path,
        typer.Option("--id", metavar="STORE", help="Token store of in-distribution sequences that no fit has seen."),
    ],
    ood_stores: Annotated[
        list[str],
        typer.Option("--ood", metavar="NAME=STORE", help="Name and token store of an OOD set; may be repeated."),
    ],
    no_verify: NoVerify = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows with all metrics and their intervals.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Measure how well detectors separate in-distribution from out-of-distribution sequences.

    The table has AUROC and FPR95 in percent for each detector and OOD set, and their mean over the sets; --json adds
    AUPR.
    """
    if as_json and markdown:
        raise InputError("Choose one of --json and --markdown.")
    named = parse_named_stores(ood_stores)
    from apood.detectors.contract.artefact import load
    from apood.evaluation.result import compute_mean_row, compute_rows
    from apood.pipeline.checks import refuse_same_data

    detectors = [load(folder) for folder in detector_folders]
    labels = _choose_labels(detectors, detector_folders)
    rows: list[ResultRow] = []
    for label, detector in zip(labels, detectors, strict=True):
        sources = {name: open_store(folder, detector, verify=not no_verify) for name, folder in named.items()}
        id_source = open_store(id_store, detector, verify=not no_verify)
        refuse_same_data({"ID": id_source} | {f"OOD {name}": source for name, source in sources.items()})
        id_scores = detector.score_samples(id_source)
        own = compute_rows(label, id_scores, {name: detector.score_samples(source) for name, source in sources.items()})
        rows += [*own, compute_mean_row(own)]
    _show(rows, as_json=as_json, markdown=markdown)


def _choose_labels(detectors: "Sequence[Detector]", folders: Sequence[Path]) -> list[str]:
    """Return labels for the results: the shortest kind of name that distinguishes all detectors."""
    for names in ([d.name for d in detectors], [f.resolve().name for f in folders], [str(f) for f in folders]):
        if len(set(names)) == len(names):
            return names
    raise InputError("A detector is given twice.")


def _show(rows: "list[ResultRow]", *, as_json: bool, markdown: bool) -> None:
    from apood.report.grid import make_grid
    from apood.report.tables import TerminalTable, format_markdown

    if as_json:
        print_json(rows)
    elif markdown:
        echo(format_markdown(make_grid(rows)), nl=False)
    else:
        print_table(TerminalTable(make_grid(rows)), highlight=True)
