"""`apood evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import open_store, parse_named_stores
from apood.cli.options import CacheFolder, EncoderFolder, NoVerify, TextField
from apood.cli.output import echo, print_json, print_table
from apood.cli.stores import StoreFinder
from apood.support.cloud import parse_place
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.detectors.contract.base import Detector
    from apood.evaluation.result import ResultRow

__all__ = ["evaluate"]

_ACCEPTED = ""  # the key of the accepted share of ID; no OOD set has an empty name


def evaluate(
    detector_folders: Annotated[list[str], typer.Argument(metavar="DETECTOR", help="Folders of detectors.")],
    id_store: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="STORE_OR_TEXTS",
            help="Token store of in-distribution sequences that no fit has seen, or such texts.",
        ),
    ],
    ood_stores: Annotated[
        list[str],
        typer.Option("--ood", metavar="NAME=STORE_OR_TEXTS", help="Name and sequences of an OOD set; may be repeated."),
    ],
    model: EncoderFolder = None,
    field: TextField = None,
    cache: CacheFolder = None,
    no_verify: NoVerify = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows with all metrics and their intervals.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Measure how well detectors separate in-distribution from out-of-distribution sequences.

    The table has AUROC and FPR95 in percent for each detector and OOD set, and their mean over the sets; --json adds
    AUPR. For a calibrated detector, a line below says which share of each set is accepted or refused at its threshold.
    """
    if as_json and markdown:
        raise InputError("Choose one of --json and --markdown.")
    named = parse_named_stores(ood_stores)
    from apood.data.inputs import refuse_repeated_stdin
    from apood.evaluation.health import describe_passing
    from apood.evaluation.result import compute_mean_row, compute_rows
    from apood.pipeline.checks import refuse_same_data, warn_of_misuse
    from apood.pipeline.facts import load_detector_and_facts

    refuse_repeated_stdin([id_store, *named.values()] * len(detector_folders))  # each detector reads all sets
    loaded = [load_detector_and_facts(folder) for folder in detector_folders]
    labels = _choose_labels([detector for detector, _ in loaded], detector_folders)
    rows: list[ResultRow] = []
    decisions: dict[str, dict[str, float]] = {}
    advice: list[str] = []
    for label, (detector, facts) in zip(labels, loaded, strict=True):
        stores = StoreFinder.of_detector(detector, model, cache, field)
        id_source, *sources = (
            open_store(stores.find(given), detector, verify=not no_verify) for given in (id_store, *named.values())
        )
        stores.refuse_unused_options()
        refuse_same_data({"ID": id_source} | {f"OOD {name}": s for name, s in zip(named, sources, strict=True)})
        id_scores = detector.score_samples(id_source)
        scores = {name: detector.score_samples(source) for name, source in zip(named, sources, strict=True)}
        warn_of_misuse(id_source, facts, "ID")
        own = compute_rows(label, id_scores, scores)
        rows += [*own, compute_mean_row(own)]
        if hasattr(detector, "threshold_"):
            accepts = detector.calibration.accepts
            refused = {name: 100 * float((~accepts(some)).mean()) for name, some in scores.items()}
            decisions[label] = {_ACCEPTED: 100 * float(accepts(id_scores).mean())} | refused
            advice += [
                f"{label}: {sentence}"
                for sentence in describe_passing(
                    {name: share / 100 for name, share in refused.items()}, detector.accept_
                )
            ]
    _show(rows, decisions, as_json=as_json, markdown=markdown)
    for sentence in advice:
        echo(sentence, err=True)


def _choose_labels(detectors: "Sequence[Detector]", folders: Sequence[str]) -> list[str]:
    """Return labels for the results: the shortest kind of name that distinguishes all detectors."""
    places = [parse_place(folder) for folder in folders]
    ends = [place.resolve().name if isinstance(place, Path) else place.name for place in places]
    for names in ([detector.name for detector in detectors], ends, [str(place) for place in places]):
        if len(set(names)) == len(names):
            return names
    raise InputError("A detector is given twice.")


def _show(
    rows: "list[ResultRow]", decisions: Mapping[str, Mapping[str, float]], *, as_json: bool, markdown: bool
) -> None:
    """Print the metrics, and the percentages of decisions by the labels of the detectors that make any."""
    from apood.report.grid import make_grid
    from apood.report.tables import TerminalTable, format_markdown

    if as_json:
        own = [decisions.get(row["method"], {}) for row in rows]
        print_json(
            [
                {**row, "id_accepted": shares.get(_ACCEPTED), "ood_refused": shares.get(row["dataset"])}
                for row, shares in zip(rows, own, strict=True)
            ]
        )
        return
    grid = make_grid(rows)
    grid = replace(grid, notes=[*grid.notes, *(_describe_decisions(*own) for own in decisions.items())])
    if markdown:
        echo(format_markdown(grid), nl=False)
    else:
        print_table(TerminalTable(grid), highlight=True)


def _describe_decisions(label: str, shares: Mapping[str, float]) -> str:
    refused = ", ".join(f"{share:.1f}% of {name}" for name, share in shares.items() if name != _ACCEPTED)
    return f"At the threshold of {label}: {shares[_ACCEPTED]:.1f}% of ID accepted; {refused} refused."
