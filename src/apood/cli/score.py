"""`apood score`."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.output import check_rows_file, write_rows
from apood.cli.stores import encoder_of, open_store, texts_of
from apood.support.errors import DataWarning, InputError

if TYPE_CHECKING:
    from apood.detectors.base import Detector, Scores
    from apood.encoders.text import TextEncoder

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
        sequences = open_store(Path(inputs[0]), detector)
        if len(sequences) == 0:
            raise InputError(f"The token store {inputs[0]} holds no sequences to score.")
        scores = detector.score_samples(sequences)
    else:
        texts = texts_of(inputs, field)
        scores = _text_scores(texts, encoder_of(detector, model), detector)
    columns = _columns(detector, scores)
    write_rows(columns, file, as_json=as_json)
    if file is not None:
        outside = f", {columns['decision'].count('OOD'):,} of them OOD" if "decision" in columns else ""
        typer.echo(f"Scored {len(scores):,} sequences{outside}; written to {file}.")


def _text_scores(texts: Iterable[str], encoder: "TextEncoder", detector: "Detector") -> "Scores":
    """The scores of texts, of which only one window's tokens are held at a time, with one warning for all windows."""
    import numpy as np

    from apood.encoders.embed import encoded_windows
    from apood.support.progress import bar

    scores: list[Scores] = []
    empty = 0
    with warnings.catch_warnings(), bar(None, "encoding", unit="tok") as progress:
        warnings.simplefilter("ignore", DataWarning)
        for window in encoded_windows(texts, encoder):
            scores.append(detector.score_samples(window))
            empty += int((window.lengths == 0).sum())
            progress.update(len(window.values))
    joined = np.concatenate(scores)
    if empty:
        warnings.warn(
            f"{empty} of {len(joined)} sequences have no tokens; their score is -inf and their decision OOD.",
            DataWarning,
            stacklevel=1,
        )
    return joined


def _columns(detector: "Detector", scores: "Scores") -> dict[str, list[Any]]:
    """From one pass over the tokens, what the detector's `score_samples`, `p_values` and `predict` give."""
    import numpy as np

    from apood.decisions.conformal import conformal_p_values

    columns = {"index": list(range(len(scores))), "score": scores.tolist()}
    if hasattr(detector, "threshold_"):
        columns["p_value"] = conformal_p_values(detector.calibration_scores_, scores).tolist()
        columns["decision"] = np.where(detector.decide(scores) > 0, "ID", "OOD").tolist()
    return columns
