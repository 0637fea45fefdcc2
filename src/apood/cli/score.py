"""`apood score`."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import (
    NoVerify,
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
    from apood.tokens.source import TokenSource

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
    no_verify: NoVerify = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines even on a terminal.")] = False,
) -> None:
    """Score sequences, and decide which are out-of-distribution. A higher score is more in-distribution.

    Each text, sound or sequence gives one row: its index, its score and, if the detector is calibrated, its p-value and
    decision (ID or OOD). The columns tokens and windows say what was scored: a long text is scored in windows, and its
    score is that of the worst one.

    Texts and sounds are embedded with the encoder of the detector, which also says what becomes of long texts. An empty
    input has the score -inf (null in JSON) and the decision OOD. So has a text that is too long; the column reason then
    says why.
    """
    from apood.detectors.contract.artefact import load

    file = None if out == "-" else Path(out)
    if file is not None:
        check_rows_file(file, force=force)
    detector = load(detector_folder)
    if len(inputs) == 1 and _is_store(inputs[0]):
        sequences = open_store(Path(inputs[0]), detector, verify=not no_verify)
        if len(sequences) == 0:
            raise InputError(f"The token store {inputs[0]} has no sequences.")
        found = _Scored.of_documents(sequences, detector.score_samples(sequences))
    else:
        found = _score_inputs(inputs, detector, model, field, target_field, skip_bad)
    columns = _make_columns(detector, found)
    write_rows(columns, file, as_json=as_json)
    if found.long:
        echo(f"{format_count(found.long, 'input')} had several windows, and the worst one decided.", err=True)
    if found.cut:
        echo(
            f"{format_count(found.cut, 'input')} had more than {found.limit:,} tokens: only the beginning was scored.",
            err=True,
        )
    if file is not None:
        ood = f", {columns['decision'].count('OOD'):,} of them OOD" if "decision" in columns else ""
        echo(f"Scored {format_count(len(found.scores), 'input')}{ood}; written to {file}.")


@dataclass
class _Scored:
    """The scores of inputs, one after the other, and what they were computed from.

    Attributes:
        scores: the score of each input.
        tokens: the number of tokens that were scored, in all windows.
        windows: the number of windows, 0 if nothing was scored.
        indices: the indices of the records of the inputs.
        reasons: why an input was refused before it was scored, else None; empty for a store.
        cut: the number of inputs of which only the beginning was scored.
        limit: the number of tokens that they were cut at.
    """

    scores: list[float]
    tokens: list[int]
    windows: list[int]
    indices: list[int]
    reasons: list[str | None]
    cut: int = 0
    limit: int = 0

    @classmethod
    def of_documents(cls, source: "TokenSource", scores: "Scores") -> "_Scored":
        """Return the scores of the documents of a source."""
        import numpy as np

        from apood.tokens.documents import find_documents

        starts = find_documents(source)
        tokens = np.add.reduceat(source.lengths.numpy(), starts) if len(starts) else starts
        windows = np.diff(starts, append=len(source))
        return cls(scores.tolist(), tokens.tolist(), windows.tolist(), list(range(len(scores))), [])

    @property
    def long(self) -> int:
        """The number of inputs with several windows."""
        return sum(count > 1 for count in self.windows)


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
) -> _Scored:
    """Return the scores of texts or sounds."""
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
        found = _score_records(_note_indices(records, indices, empty), empty, encoder, detector, skipped)
        found.indices = indices
    except BadRecordError as error:
        raise InputError(f"{str(error).rstrip('.')}; skip such records with --skip-bad.") from error
    if skipped is not None:
        report_skipped(skipped.count, skipped.first)
    return found


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
) -> _Scored:
    """Return the scores of records, encoded and scored portion by portion, with one warning for all empty ones."""
    import numpy as np

    from apood.detectors.contract.data_checks import find_nonempty
    from apood.encoders.embed import encode_portions
    from apood.support.progress import progress_bar
    from apood.tokens.documents import find_documents

    found, scorable = _Scored([], [], [], [], []), list[bool]()
    with (
        warnings.catch_warnings(),
        closing(encode_portions(records, encoder, skipped)) as portions,
        progress_bar(None, "encoding", unit="tok") as progress,
    ):
        warnings.simplefilter("ignore", DataWarning)
        for portion in portions:
            batch = portion.batch
            nonempty = find_nonempty(batch, detector.requires).numpy()
            starts = find_documents(batch)
            scored = _Scored.of_documents(batch, detector.score_samples(batch))
            whole = np.logical_and.reduceat(nonempty, starts).tolist() if len(starts) else []
            rows = iter(zip(scored.scores, scored.tokens, scored.windows, whole, strict=True))
            for place in range(portion.records):
                refused = portion.refused.get(place)
                score, tokens, windows, scores_it = (-np.inf, 0, 0, True) if refused is not None else next(rows)
                found.scores.append(score)
                found.tokens.append(tokens)
                found.windows.append(windows)
                found.reasons.append(None if refused is None else refused.reason)
                scorable.append(scores_it)
            found.cut += portion.truncated
            progress.update(len(batch.values))
    found.limit = int(encoder.identity["max_tokens"] or 0)
    if not found.scores:
        raise InputError("There is nothing to score: no record can be used.")
    # An empty text is OOD, even if the tokenizer adds special tokens to it.
    ood = np.array(empty) | ~np.array(scorable)
    found.scores = np.where(ood, -np.inf, found.scores).tolist()
    if ood.any():
        warnings.warn(
            f"{ood.sum()} of {len(ood)} inputs are empty or have no {' or '.join(sorted(detector.requires))}; "
            "their score is -inf and their decision OOD.",
            DataWarning,
            stacklevel=1,
        )
    if refusals := [reason for reason in found.reasons if reason is not None]:
        warnings.warn(
            f"{len(refusals)} of {len(ood)} texts are too long to be scored; their score is -inf and their decision "
            f"OOD. The first: {refusals[0]}",
            DataWarning,
            stacklevel=1,
        )
    return found


def _make_columns(detector: "Detector", found: _Scored) -> dict[str, list[Any]]:
    """Return the columns to write, with p-values and decisions from the scores, so that tokens are read only once."""
    import numpy as np

    scores = np.array(found.scores)
    columns: dict[str, list[Any]] = {"index": found.indices, "score": found.scores}
    if hasattr(detector, "threshold_"):
        calibration = detector.calibration
        columns["p_value"] = calibration.p_values(scores).tolist()
        columns["decision"] = np.where(calibration.accepts(scores), "ID", "OOD").tolist()
    columns |= {"tokens": found.tokens, "windows": found.windows}
    return columns | ({"reason": found.reasons} if any(found.reasons) else {})
