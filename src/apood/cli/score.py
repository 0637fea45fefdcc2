"""`apood score`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.output import check_rows_file, write_rows
from apood.cli.stores import encoder_of, open_store, texts_of, tokens_of

if TYPE_CHECKING:
    from apood.detectors.base import Detector, Scores

__all__ = ["score"]


def score(
    detector_folder: Annotated[Path, typer.Argument(metavar="DETECTOR", help="Folder that `apood fit` wrote.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE_OR_TEXT", help="A token store; or texts as `apood embed` takes them, - is standard input."
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="A .jsonl, .csv or .parquet file; - is standard output.")
    ] = "-",
    field: Annotated[str, typer.Option(metavar="NAME", help="Field or column that holds the text.")] = "text",
    model: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where the detector's encoder lies now.", show_default="where it lay"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines also on a terminal.")] = False,
) -> None:
    """Scores sequences: the higher the score, the more in-distribution.

    One row a sequence: index, score and, once the detector is calibrated, p_value and decision (ID or OOD).
    Texts are embedded with the encoder of the detector. A sequence without tokens has the score -inf (null in JSON).
    """
    from apood.detectors.artefact import load

    file = None if out == "-" else Path(out)
    if file is not None:
        check_rows_file(file)
    detector = load(detector_folder)
    if len(inputs) == 1 and Path(inputs[0]).is_dir():
        scores = detector.score_samples(open_store(Path(inputs[0]), detector))
    else:
        texts = texts_of(inputs, field)
        with tokens_of(texts, encoder_of(detector, model), detector) as tokens:
            scores = detector.score_samples(tokens)
    columns = _columns(detector, scores)
    write_rows(columns, file, as_json=as_json)
    if file is not None:
        outside = f", {columns['decision'].count('OOD'):,} of them OOD" if "decision" in columns else ""
        typer.echo(f"Scored {len(scores):,} sequences{outside}; written to {file}.")


def _columns(detector: "Detector", scores: "Scores") -> dict[str, list[Any]]:
    """From one pass over the tokens, what the detector's `score_samples`, `p_values` and `predict` give."""
    import numpy as np

    from apood.decisions.conformal import conformal_p_values

    columns = {"index": list(range(len(scores))), "score": scores.tolist()}
    if hasattr(detector, "threshold_"):
        columns["p_value"] = conformal_p_values(detector.calibration_scores_, scores).tolist()
        columns["decision"] = np.where(detector.decide(scores) > 0, "ID", "OOD").tolist()
    return columns
