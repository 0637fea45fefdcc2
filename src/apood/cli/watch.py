"""`apood watch`."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apood.cli.arguments import report_skipped
from apood.cli.options import SkipBadRows
from apood.cli.output import advise_on_interrupt, echo, write_rows
from apood.support.checks import format_count
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.decisions.conformal import Scores
    from apood.decisions.drift import DriftAlarm

__all__ = ["watch"]

_ALARM = 3  # exit code; 1 would also be that of a Python that cannot start
_LEVEL = 0.01
_PORTION = 4096  # scores of a file that are taken at once
_LARGEST = 700.0  # logarithm of a number that can be printed


def watch(
    detector_folder: Annotated[str, typer.Argument(metavar="DETECTOR", help="Calibrated detector of the scores.")],
    scores: Annotated[
        str,
        typer.Argument(
            metavar="SCORES",
            help="Scores in the order of the inputs: rows of `apood score` (.jsonl or .csv), or one number per line; "
            "- is standard input.",
        ),
    ],
    false_alarm: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Probability that the alarm ever goes off without drift.",
            show_default="0.01, or that of the state",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to continue from, if it exists, and to write the new state to."),
    ] = None,
    every: Annotated[int, typer.Option(metavar="N", min=1, help="Print the state after every N inputs.")] = 10_000,
    skip_bad: SkipBadRows = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the states as JSON lines.")] = False,
) -> None:
    """Watch a stream of scores for drift towards lower ones, and say when the alarm goes off.

    Without drift, the alarm goes off with probability at most --false-alarm, however long the stream is. The exit
    code is 3 if the alarm has gone off, now or in an earlier part of the stream, and 0 if not.

    A pipe is watched row by row. With --state, the next call continues the stream with new rows. The state is written
    at the end, with every printed state, and after Ctrl-C or an error, and has all rows that were read by then.
    """
    from apood.data.record import BadRecordError, Skipped, keep_good
    from apood.data.score_rows import read_scores
    from apood.detectors.contract.artefact import load_detector
    from apood.support.files import reserve_path

    calibration = load_detector(detector_folder).calibration.scores
    skipped = Skipped() if skip_bad else None
    with nullcontext() if state is None else reserve_path(state):
        watcher = _Watcher(_open_alarm(calibration, false_alarm, state), state, every, scores == "-", as_json=as_json)
        try:
            with advise_on_interrupt(watcher.advise):
                for record in keep_good(read_scores(scores), skipped):
                    watcher.add(record.item)
        except BadRecordError as error:
            raise InputError(f"{error} {watcher.advise()} Or skip such rows with --skip-bad.") from error
        finally:
            watcher.save()
        watcher.finish()
    if skipped is not None:
        report_skipped(skipped.count, skipped.first)
    if watcher.alarm.state.alarm_at is not None:
        raise typer.Exit(_ALARM)


class _Watcher:
    """An alarm that prints its states and keeps them in a file.

    Args:
        alarm: the alarm.
        file: where its state is kept, or None.
        every: the number of inputs between two printed states.
        at_once: whether every score counts at once; else they wait for others, which is faster.
        as_json: whether states are printed as JSON.
    """

    def __init__(self, alarm: "DriftAlarm", file: Path | None, every: int, at_once: bool, *, as_json: bool) -> None:
        self.alarm = alarm
        self._file, self._every, self._as_json = file, every, as_json
        self._size = 1 if at_once else _PORTION
        self._start = alarm.state.inputs
        self._waiting: list[float] = []
        self._shown: int | None = None  # the number of inputs when the state was last printed

    def add(self, score: float) -> None:
        """Take the next score, and print what is new."""
        self._waiting.append(score)
        is_due = (self.alarm.state.inputs + len(self._waiting)) % self._every == 0
        if is_due or len(self._waiting) == self._size:
            self._update()
        if is_due:
            self.save()
            self.show()

    def _update(self) -> None:
        before = self.alarm.state.alarm_at
        after = self.alarm.update(self._waiting).alarm_at
        self._waiting = []
        if after is None or before is not None:
            return
        if self._as_json:
            self.show()
        else:
            echo(
                f"Alarm after {format_count(after, 'input')}: the scores have drifted towards lower ones, probably "
                f"since about input {self.alarm.state.since:,}. Without drift, the probability that the "
                f"alarm ever goes off is at most {self.alarm.false_alarm:g}."
            )

    def save(self) -> None:
        """Take the scores that wait, and write the state to its file, if it is new."""
        from apood.support.files import write_json

        self._update()
        if self._file is not None and self.alarm.state.inputs > self._start:
            write_json(self._file, self.alarm.to_json())

    def show(self) -> None:
        """Print the state."""
        state = self.alarm.state
        self._shown = state.inputs
        if self._as_json:
            row = {**self.alarm.gauges(), "alarm_at": state.alarm_at, "since": state.since}
            write_rows([row], None, as_json=True)
            return
        alarm = "no alarm" if state.alarm_at is None else f"alarm after {state.alarm_at:,}"
        evidence = f"evidence {_format_evidence(state.log_evidence)}, highest {_format_evidence(state.highest)}"
        echo(f"{format_count(state.inputs, 'input')}: {alarm}; {evidence}, alarm at {1 / self.alarm.false_alarm:.6g}.")

    def finish(self) -> None:
        """Print the last state, if it is not there yet."""
        if self._shown != self.alarm.state.inputs:
            self.show()

    def advise(self) -> str:
        """Return a sentence that says which rows were read, and where they are kept."""
        count = self.alarm.state.inputs + len(self._waiting) - self._start
        rows = format_count(count, "row")
        if count == 0:
            return f"{rows} had been read."
        if self._file is None:
            return f"{rows} had been read, and nothing is kept without --state."
        return f"{rows} had been read and are part of {self._file}: continue with the rows after them."


def _open_alarm(calibration: "Scores", false_alarm: float | None, file: Path | None) -> "DriftAlarm":
    """Return the alarm of the state file, or a new one."""
    from apood.decisions.drift import DriftAlarm
    from apood.support.files import read_json, refuse_unwritable

    if file is not None:
        refuse_unwritable(file)
        if file.is_dir():
            raise InputError(f"{file} is a folder: give the name of a file.")
    if file is None or not file.exists():
        return DriftAlarm(calibration, _LEVEL if false_alarm is None else false_alarm)
    try:
        alarm = DriftAlarm.resume(calibration, read_json(file))
    except ValueError as error:
        raise InputError(f"The state {file} cannot be used: {error}") from error
    if false_alarm not in (None, alarm.false_alarm):
        raise InputError(f"The state {file} was begun with --false-alarm {alarm.false_alarm:g}, got {false_alarm:g}.")
    return alarm


def _format_evidence(logarithm: float) -> str:
    return f"{math.exp(min(logarithm, _LARGEST)):.3g}"
