"""`apood score`."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apood.cli.arguments import (
    advise_to_skip,
    are_sounds,
    check_input_kind,
    count_lines,
    open_store,
    read_sound_records,
    read_text_records,
    reads_pairs,
    report_skipped,
    report_windows,
)
from apood.cli.engine import (
    Address,
    DryRunRay,
    Engine,
    OnRay,
    Workers,
    refuse_other_options,
    score_on_ray,
)
from apood.cli.options import AsJsonLines, EncoderFolder, NoVerify, SkipBad, TextField
from apood.cli.output import check_rows_file, echo, write_rows
from apood.cli.stores import are_texts
from apood.support.checks import format_count
from apood.support.cloud import CloudAddress, Place, parse_place
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.data.record import BadRecord, Record
    from apood.detectors.contract.base import Detector
    from apood.pipeline.seen import Seen
    from apood.tokens.store import TokenStore

__all__ = ["score"]

_LOOKED_AT = ("tokens", "windows", "truncated", "note")
_COLUMNS = ("index", "score", "p_value", "decision", *_LOOKED_AT, "place", "error")


def score(
    detector_folder: Annotated[str, typer.Argument(metavar="DETECTOR", help="Folder of a detector.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE_OR_INPUT",
            help="A token store, or texts or sounds as for `apood embed`; - is standard input.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File to write: .jsonl, .csv or .parquet; - is standard output. With --engine ray, a folder.",
        ),
    ] = "-",
    field: TextField = None,
    target_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field or column of the target, for an encoder of mode reference."),
    ] = None,
    model: EncoderFolder = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Field or column of the input to keep in the rows; may be repeated."),
    ] = None,
    skip_bad: SkipBad = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    no_verify: NoVerify = False,
    engine: Engine = "plain",
    address: Address = None,
    workers: Workers = None,
    dry_run: DryRunRay = False,
    as_json: AsJsonLines = False,
) -> None:
    """Score sequences, and decide which are out-of-distribution. A higher score is more in-distribution.

    Each text, sound or sequence gives one row: its index, its score and, if the detector is calibrated, its p-value and
    decision (ID or OOD). The columns tokens, windows and truncated say what was scored: a long text is scored in
    windows, and its score is that of the worst one. The column note says what is unusual about a text: that it is
    shorter or longer than 99% of what the detector learnt from, or why it could not be scored.

    Texts and sounds are embedded with the encoder of the detector, and long texts are treated as in its fit. An empty
    input has the score -inf (null in JSON) and the decision OOD. So has a text that is too long. Rows of standard
    input are written one by one, as inputs arrive.

    With --engine ray, workers of a cluster score the texts, and the rows are Parquet files in a folder. A record that
    cannot be used is a row with its error. After an interruption, the same command continues.
    """
    from apood.pipeline.facts import load_detector_and_facts

    on_cluster = {"address": address, "workers": workers, "dry_run": dry_run}
    refuse_other_options(engine, plain={"force": force, "no_verify": no_verify}, ray=on_cluster)
    if taken := [name for name in keep or [] if name in _COLUMNS]:
        raise InputError(f"--keep {taken[0]} cannot be kept: a column of the rows has that name.")
    if engine == "ray":
        fields = {"field": field, "target_field": target_field, "keep": tuple(keep or [])}
        score_on_ray(detector_folder, inputs, out, fields, model, OnRay(address, workers, dry_run, as_json))
        return
    file = None if out == "-" else parse_place(out)
    if file is not None:
        check_rows_file(file, force=force)
    detector, facts = load_detector_and_facts(detector_folder)
    seen = facts.training
    tally = _Tally()
    if len(inputs) == 1 and _is_store(inputs[0]):
        of_texts = {
            "--keep": keep,
            "--field": field,
            "--target-field": target_field,
            "--model": model,
            "--skip-bad": skip_bad,
        }
        if unused := [option for option, value in of_texts.items() if value]:
            raise InputError(f"{unused[0]} is for texts and sounds, and {inputs[0]!r} is a token store: leave it out.")
        rows = _judge_store(open_store(inputs[0], detector, verify=not no_verify), detector, seen)
    else:
        rows = _judge_inputs(inputs, detector, seen, model, field, target_field, keep or [], skip_bad, tally)
    with closing(rows):
        counted = map(tally.count, rows)
        # Whoever reads a pipe waits for each row. Of a file there are all rows or, after an error, none.
        write_rows(counted if "-" in inputs else list(counted), file, as_json=as_json)
    tally.report(file)


@dataclass
class _Tally:
    """Counts of the rows that were written.

    Attributes:
        rows: the number of rows.
        ood: the number of decisions OOD; None if there are no decisions.
        long: the number of inputs with several windows.
        cut: the number of inputs of which only the beginning was scored.
        limit: the number of tokens that they were cut at.
    """

    rows: int = 0
    ood: int | None = None
    long: int = 0
    cut: int = 0
    limit: int = 0

    def count(self, row: dict[str, Any]) -> dict[str, Any]:
        """Count a row, and return it."""
        self.rows += 1
        if "decision" in row:
            self.ood = (self.ood or 0) + (row["decision"] == "OOD")
        self.long += row["windows"] > 1
        self.cut += bool(row["truncated"])
        return row

    def report(self, file: Place | None) -> None:
        """Print how many inputs were long or cut and, if the rows are in a file, how many there are."""
        report_windows(self.long, self.cut, self.limit)
        if file is not None:
            ood = "" if self.ood is None else f", {self.ood:,} of them OOD"
            echo(f"Scored {format_count(self.rows, 'input')}{ood}; written to {file}.")


def _is_store(name: str) -> bool:
    """Return whether the name is that of a token store: a folder that is not a folder of sounds."""
    from apood.tokens.store import INDEX_FILE

    path = parse_place(name)
    if isinstance(path, CloudAddress):
        return not are_texts(name) and not are_sounds([name])
    if not path.is_dir() or (path / INDEX_FILE).exists():
        return path.is_dir()
    if are_sounds([name]):
        return False
    neither = f"{name!r} is neither a token store (it has no index.json) nor a folder of sounds (no .wav or .flac)"
    raise InputError(f"{neither}{_advise_on_texts(path)}.")


def _advise_on_texts(folder: Path) -> str:
    """Return how the texts in a folder are given, as the end of a sentence; nothing if it has none."""
    from apood.data.inputs import find_files
    from apood.data.text_files import TEXT_ENDINGS
    from apood.data.whole_files import ENDINGS

    found = find_files(str(folder), TEXT_ENDINGS)
    ways = [f"{str(folder / '**' / f'*{found[0].suffix}')!r} for the texts in its files"] if found else []
    if find_files(str(folder), ENDINGS):
        ways.append(f"{f'files:{folder}'!r} if each file is one text")
    return f": give {', or '.join(ways)}" if ways else ""


def _judge_store(sequences: "TokenStore", detector: "Detector", seen: "Seen | None") -> Generator[dict[str, Any]]:
    """Yield the rows of a token store, which does not say which of its texts were cut."""
    import numpy as np

    from apood.pipeline.seen import count_tokens
    from apood.tokens.documents import find_documents

    if len(sequences) == 0:
        raise InputError(f"The token store {sequences.folder} has no sequences.")
    scores, tokens = detector.score_samples(sequences), count_tokens(sequences).tolist()
    columns: dict[str, list[Any]] = {"index": list(range(len(scores))), "score": scores.tolist()}
    if hasattr(detector, "threshold_"):  # decisions follow from the scores, so that tokens are read only once
        calibration = detector.calibration
        columns["p_value"] = calibration.p_values(scores).tolist()
        columns["decision"] = np.where(calibration.accepts(scores), "ID", "OOD").tolist()
    windows = np.diff(find_documents(sequences), append=len(sequences)).tolist()
    notes = [None if seen is None else seen.describe_length(count) for count in tokens]
    columns |= dict(zip(_LOOKED_AT, (tokens, windows, [None] * len(scores), notes), strict=True))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _judge_inputs(
    inputs: list[str],
    detector: "Detector",
    seen: "Seen | None",
    model: str | None,
    field: str | None,
    target_field: str | None,
    keep: list[str],
    skip_bad: bool,
    tally: _Tally,
) -> Generator[dict[str, Any]]:
    """Yield the rows of texts or sounds."""
    from apood.data.record import Skipped
    from apood.data.text_files import stdin_is_ready
    from apood.encoders.audio.encoder import AudioEncoder
    from apood.pipeline.judging import judge_records
    from apood.pipeline.opening import open_encoder_of

    records: Iterable[Record | BadRecord] = ()
    skipped = Skipped() if skip_bad else None
    with advise_to_skip():
        if not are_sounds(inputs):
            # Unlike `apood embed`, scoring accepts empty texts: every input gets a row.
            pairs = reads_pairs(detector, target_field)
            records = read_text_records(
                inputs,
                field=field,
                target_field=target_field,
                pairs=pairs,
                allow_empty=True,
                skip_bad=skip_bad,
                keep=keep,
            )
        else:
            of_fields = {"--keep": keep, "--field": field, "--target-field": target_field}
            if unused := [option for option, value in of_fields.items() if value]:
                raise InputError(f"{unused[0]} is for files with fields: sounds have none.")
        encoder = open_encoder_of(detector, model)
        check_input_kind(inputs, str(encoder.identity["model"]), takes_sounds=isinstance(encoder, AudioEncoder))
        if isinstance(encoder, AudioEncoder):
            records = read_sound_records(inputs, encoder, skip_bad=skip_bad)
        tally.limit = int(encoder.identity["max_tokens"] or 0)
        judged = judge_records(
            _number(records),
            encoder,
            detector,
            seen=seen,
            skipped=skipped,
            total=count_lines(inputs),
            ready=stdin_is_ready if "-" in inputs else lambda: True,
        )
        with closing(judged):
            for record, (score, p_value, accepted, *looked_at) in judged:
                decided = {} if accepted is None else {"p_value": p_value, "decision": "ID" if accepted else "OOD"}
                yield {**record.kept, "score": score} | decided | dict(zip(_LOOKED_AT, looked_at, strict=True))
    if not tally.rows:
        raise InputError("There is nothing to score: no record can be used.")
    if skipped is not None:
        report_skipped(skipped.count, skipped.first)


def _number(records: "Iterable[Record | BadRecord]") -> "Iterator[Record | BadRecord]":
    """Yield the same records. Good ones keep their number among all of them as `index`, before their other fields."""
    from apood.data.record import Record

    for number, record in enumerate(records):
        yield replace(record, kept={"index": number, **record.kept}) if isinstance(record, Record) else record
