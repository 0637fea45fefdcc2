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
from apood.cli.output import check_rows_file, write_rows
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
            help="A token store; or texts or sounds as `apood embed` takes them, - is standard input.",
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="A .jsonl, .csv or .parquet file; - is standard output.")
    ] = "-",
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field or column that holds the text.", show_default="text")
    ] = None,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column that holds the target, for an encoder of mode reference."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where the detector's encoder lies now.", show_default="where it lay"),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Give no row to records that cannot be used.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is already there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines also on a terminal.")] = False,
) -> None:
    """Scores sequences: the higher the score, the more in-distribution.

    One row a sequence: index, score and, once the detector is calibrated, p_value and decision (ID or OOD). Texts and
    sounds are embedded with the encoder of the detector. What has no tokens has the score -inf (null in JSON).
    """
    from apood.detectors.contract.artefact import load

    file = None if out == "-" else Path(out)
    if file is not None:
        check_rows_file(file, force=force)
    detector = load(detector_folder)
    if len(inputs) == 1 and _is_store(inputs[0]):
        sequences = open_store(Path(inputs[0]), detector)
        if len(sequences) == 0:
            raise InputError(f"The token store {inputs[0]} holds no sequences to score.")
        scores = detector.score_samples(sequences)
        places = list(range(len(scores)))
    else:
        scores, places = _raw_scores(inputs, detector, model, field, target_field, skip_bad)
    columns = _columns(detector, scores, places)
    write_rows(columns, file, as_json=as_json)
    if file is not None:
        outside = f", {columns['decision'].count('OOD'):,} of them OOD" if "decision" in columns else ""
        typer.echo(f"Scored {format_count(len(scores), 'sequence')}{outside}; written to {file}.")


def _is_store(name: str) -> bool:
    """A folder is a store, unless sounds lie in it."""
    from apood.tokens.store import INDEX_FILE

    path = Path(name)
    if not path.is_dir() or (path / INDEX_FILE).exists():
        return path.is_dir()
    if are_sounds([name]):
        return False
    raise InputError(f"{name!r} is no token store (no index.json), nor a folder of sounds (no .wav or .flac in it).")


def _raw_scores(
    inputs: list[str],
    detector: "Detector",
    model: str | None,
    field: str | None,
    target_field: str | None,
    skip_bad: bool,
) -> "tuple[Scores, list[int]]":
    """The scores of texts or sounds, and which of the records they belong to."""
    from apood.data.record import BadRecordError, Skipped
    from apood.encoders.audio.encoder import AudioEncoder

    records: Iterable[Record | BadRecord] = ()
    places: list[int] = []
    empty: list[bool] = []
    skipped = Skipped() if skip_bad else None
    try:
        if not are_sounds(inputs):
            # An empty text is an input like others: whoever asks for a score gets one.
            pairs = (detector.encoder_ or {}).get("mode") == "reference"
            records = read_text_records(
                inputs, field=field, target_field=target_field, pairs=pairs, allow_empty=True, skip_bad=skip_bad
            )
        encoder = open_detector_encoder(detector, model)
        name = str(encoder.identity["model"])
        check_input_kind(inputs, name, takes_sounds=isinstance(encoder, AudioEncoder))
        if isinstance(encoder, AudioEncoder):
            records = read_sound_records(inputs, encoder, skip_bad=skip_bad)
        scores = _encoded_scores(_noted(records, places, empty), empty, encoder, detector, skipped)
    except BadRecordError as error:
        raise InputError(f"{str(error).rstrip('.')}; --skip-bad gives such records no row.") from error
    if skipped is not None:
        report_skipped(skipped.count, skipped.first)
    return scores, places


def _noted(
    records: "Iterable[Record | BadRecord]", places: list[int], empty: list[bool]
) -> "Iterator[Record | BadRecord]":
    """The same records; `places` gets the numbers of those that are not bad, `empty` whether they are empty texts."""
    from apood.data.record import Record

    for number, record in enumerate(records):
        if isinstance(record, Record):
            places.append(number)
            empty.append(_is_empty(record.item))
        yield record


def _is_empty(item: Any) -> bool:
    """Whether a text has nothing but white space, or one of a pair."""
    texts = (item,) if isinstance(item, str) else item if isinstance(item, tuple) else ()
    return any(not text.strip() for text in texts)


def _encoded_scores(
    records: "Iterable[Record | BadRecord]",
    empty: list[bool],
    encoder: "Encoder",
    detector: "Detector",
    skipped: "Skipped | None",
) -> "Scores":
    """The scores of records, of which only a few windows are held at a time, with one warning for all windows."""
    import numpy as np

    from apood.detectors.contract.base import find_nonempty
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
        raise InputError("There is nothing to score: every record is bad.")
    joined = np.concatenate(scores)
    # An empty text is OOD, whatever the model makes of the special tokens that its tokenizer adds.
    outside = np.array(empty) | ~np.array(scored)
    joined[outside] = -np.inf
    if outside.any():
        warnings.warn(
            f"{outside.sum()} of {len(joined)} sequences are empty or have no "
            f"{' or '.join(sorted(detector.requires))}; "
            "their score is -inf and their decision OOD.",
            DataWarning,
            stacklevel=1,
        )
    return joined


def _columns(detector: "Detector", scores: "Scores", places: Iterable[int]) -> dict[str, list[Any]]:
    """From one pass over the tokens, what the detector's `score_samples`, `p_values` and `predict` give."""
    import numpy as np

    from apood.decisions.conformal import conformal_p_values

    columns = {"index": list(places), "score": scores.tolist()}
    if hasattr(detector, "threshold_"):
        columns["p_value"] = conformal_p_values(detector.calibration_scores_, scores).tolist()
        columns["decision"] = np.where(detector.decide(scores) > 0, "ID", "OOD").tolist()
    return columns
