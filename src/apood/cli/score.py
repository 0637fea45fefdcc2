"""`apood score`."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import (
    are_sounds,
    check_input_kind,
    open_detector_encoder,
    open_store,
    read_sound_records,
    read_text_records,
    report_skipped,
)
from apood.cli.output import check_rows_file, echo, write_rows
from apood.support.checks import format_count
from apood.support.errors import DataWarning, InputError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record, Skipped
    from apood.detectors.contract.base import Detector, Scores
    from apood.encoders.base.encoder import Encoder

__all__ = ["score"]


def score(
    detector_folder: Annotated[Path, typer.Argument(metavar="DETECTOR", help="Folder that `apood fit` wrote.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE_OR_INPUT",
            help="A token store, or texts or sounds as for `apood embed`; - is standard input.",
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="File to write: .jsonl, .csv or .parquet; - is standard output.")
    ] = "-",
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field or column of the text, called text by default.")
    ] = None,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column of the target, for an encoder of mode reference."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the encoder, if it has moved.",
            show_default="where `apood embed` found it",
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip records that cannot be used.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines even on a terminal.")] = False,
) -> None:
    """Score sequences, and decide which are out-of-distribution. A higher score is more in-distribution.

    Each sequence gives one row: its index, its score and, if the detector is calibrated, its p-value and decision
    (ID or OOD).

    Texts and sounds are embedded with the encoder of the detector. An empty input has the score -inf (null in JSON) and
    the decision OOD.
    """
    from apood.detectors.contract.artefact import load

    file = None if out == "-" else Path(out)
    if file is not None:
        check_rows_file(file, force=force)
    detector = load(detector_folder)
    if len(inputs) == 1 and _is_store(inputs[0]):
        sequences = open_store(Path(inputs[0]), detector)
        if len(sequences) == 0:
            raise InputError(f"The token store {inputs[0]} has no sequences.")
        scores = detector.score_samples(sequences)
        indices = list(range(len(scores)))
    else:
        scores, indices = _score_inputs(inputs, detector, model, field, target_field, skip_bad)
    columns = _make_columns(detector, scores, indices)
    write_rows(columns, file, as_json=as_json)
    if file is not None:
        ood = f", {columns['decision'].count('OOD'):,} of them OOD" if "decision" in columns else ""
        echo(f"Scored {format_count(len(scores), 'sequence')}{ood}; written to {file}.")


def _is_store(name: str) -> bool:
    """Return whether the name is that of a token store: a folder that is not a folder of sounds."""
    from apood.tokens.store import INDEX_FILE

    path = Path(name)
    if not path.is_dir() or (path / INDEX_FILE).exists():
        return path.is_dir()
    if are_sounds([name]):
        return False
    raise InputError(
        f"{name!r} is neither a token store (it has no index.json) nor a folder of sounds (no .wav or .flac)."
    )


def _score_inputs(
    inputs: list[str],
    detector: "Detector",
    model: str | None,
    field: str | None,
    target_field: str | None,
    skip_bad: bool,
) -> "tuple[Scores, list[int]]":
    """Return the scores of texts or sounds, and the indices of their records."""
    from apood.data.record import BadRecordError, Skipped
    from apood.encoders.audio.encoder import AudioEncoder

    records: Iterable[Record | BadRecord] = ()
    indices: list[int] = []
    empty: list[bool] = []
    skipped = Skipped() if skip_bad else None
    try:
        if not are_sounds(inputs):
            # Unlike `apood embed`, scoring accepts empty texts: every input gets a row.
            pairs = (detector.encoder_ or {}).get("mode") == "reference"
            records = read_text_records(
                inputs, field=field, target_field=target_field, pairs=pairs, allow_empty=True, skip_bad=skip_bad
            )
        encoder = open_detector_encoder(detector, model)
        name = str(encoder.identity["model"])
        check_input_kind(inputs, name, takes_sounds=isinstance(encoder, AudioEncoder))
        if isinstance(encoder, AudioEncoder):
            records = read_sound_records(inputs, encoder, skip_bad=skip_bad)
        scores = _score_records(_note_indices(records, indices, empty), empty, encoder, detector, skipped)
    except BadRecordError as error:
        raise InputError(f"{str(error).rstrip('.')}; skip such records with --skip-bad.") from error
    if skipped is not None:
        report_skipped(skipped.count, skipped.first)
    return scores, indices


def _note_indices(
    records: "Iterable[Record | BadRecord]", indices: list[int], empty: list[bool]
) -> "Iterator[Record | BadRecord]":
    """Yield the same records. Note the index of each good record, and whether its text is empty."""
    from apood.data.record import Record

    for number, record in enumerate(records):
        if isinstance(record, Record):
            indices.append(number)
            empty.append(_is_empty(record.item))
        yield record


def _is_empty(item: Any) -> bool:
    """Return whether a text, or one text of a pair, has nothing but white space."""
    texts = (item,) if isinstance(item, str) else item if isinstance(item, tuple) else ()
    return any(not text.strip() for text in texts)


def _score_records(
    records: "Iterable[Record | BadRecord]",
    empty: list[bool],
    encoder: "Encoder",
    detector: "Detector",
    skipped: "Skipped | None",
) -> "Scores":
    """Return the scores of records, encoded and scored window by window, with one warning for all empty ones."""
    import numpy as np

    from apood.detectors.contract.data_checks import find_nonempty
    from apood.encoders.embed import encode_windows
    from apood.support.progress import progress_bar

    scores: list[Scores] = []
    scored: list[bool] = []
    with (
        warnings.catch_warnings(),
        closing(encode_windows(records, encoder, skipped)) as windows,
        progress_bar(None, "encoding", unit="tok") as progress,
    ):
        warnings.simplefilter("ignore", DataWarning)
        for window in windows:
            scores.append(detector.score_samples(window.batch))
            scored += find_nonempty(window.batch, detector.requires).tolist()
            progress.update(len(window.batch.values))
    if not scores:
        raise InputError("There is nothing to score: no record can be used.")
    joined = np.concatenate(scores)
    # An empty text is OOD, even if the tokenizer adds special tokens to it.
    ood = np.array(empty) | ~np.array(scored)
    joined[ood] = -np.inf
    if ood.any():
        warnings.warn(
            f"{ood.sum()} of {len(joined)} sequences are empty or have no "
            f"{' or '.join(sorted(detector.requires))}; "
            "their score is -inf and their decision OOD.",
            DataWarning,
            stacklevel=1,
        )
    return joined


def _make_columns(detector: "Detector", scores: "Scores", indices: Iterable[int]) -> dict[str, list[Any]]:
    """Return the columns to write, with p-values and decisions from the scores, so that tokens are read only once."""
    import numpy as np

    columns = {"index": list(indices), "score": scores.tolist()}
    if hasattr(detector, "threshold_"):
        calibration = detector.calibration
        columns["p_value"] = calibration.p_values(scores).tolist()
        columns["decision"] = np.where(calibration.accepts(scores), "ID", "OOD").tolist()
    return columns
