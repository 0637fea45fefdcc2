"""`apood watch`: a stream of scores, its alarm, and its state."""

import json
import signal

import numpy as np
import pytest
from processes import Program
from typer.testing import CliRunner

import apood as package
from apood.cli.app import app


@pytest.fixture(scope="session")
def streams(calibrated):
    """Scores without drift, and scores that become lower after 300 inputs."""
    known = package.load(calibrated).calibration.scores
    rng = np.random.default_rng(1)
    clean = rng.choice(known, size=600)
    lower = np.concatenate([clean[:300], clean[300:] - 3 * known.std()])
    return {"clean": clean.tolist(), "lower": lower.tolist()}


@pytest.fixture
def write(streams, tmp_path):
    """A function that writes a stream as JSON lines, and returns the file."""

    def write_stream(name, start=0, stop=None):
        file = tmp_path / f"{name}-{start}.jsonl"
        file.write_text("".join(json.dumps({"score": score}) + "\n" for score in streams[name][start:stop]))
        return file

    return write_stream


def run(*arguments, **options):
    return CliRunner().invoke(app, ["watch", *map(str, arguments)], **options)


def test_without_drift_there_is_no_alarm(apood, calibrated, write):
    assert apood("watch", calibrated, write("clean"), "--every", 300).stdout.count("\n") == 2
    result = apood("watch", calibrated, write("clean"), "--every", 250)
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["250 inputs", "500 inputs", "600 inputs"]
    assert all("no alarm; evidence" in line and line.endswith("alarm at 100.") for line in lines)
    assert not result.stderr


def test_an_alarm_is_said_once_and_is_the_exit_code(calibrated, write):
    result = run(calibrated, write("lower"), "--every", 1000)
    assert result.exit_code == 3
    alarm, last = result.stdout.splitlines()
    after = int(alarm.removeprefix("Alarm after ").split(" inputs: ")[0])
    assert 300 < after < 400
    since = int(alarm.partition("probably since about input ")[2].partition(".")[0])
    assert abs(since - 300) < 20
    assert alarm.endswith("Without drift, the probability that the alarm ever goes off is at most 0.01.")
    assert last.startswith(f"600 inputs: alarm after {after}; evidence ")


def test_a_lower_probability_of_false_alarms_takes_longer(calibrated, write):
    found = [json.loads(run(calibrated, write("lower"), "--json", *more).stdout.splitlines()[0]) for more in (
        ["--false-alarm", "0.1"], ["--false-alarm", "0.0001"]
    )]  # fmt: skip
    assert 300 < found[0]["alarm_at"] < found[1]["alarm_at"]
    assert [own["log10_evidence_of_alarm"] for own in found] == [1, 4]


def test_a_state_continues_the_stream(calibrated, write, tmp_path):
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    assert run(calibrated, write("lower"), "--state", whole, "--false-alarm", "0.02").exit_code == 3
    assert run(calibrated, write("lower", 0, 217), "--state", parts, "--false-alarm", "0.02").exit_code == 0
    assert run(calibrated, write("lower", 217), "--state", parts).exit_code == 3
    assert json.loads(parts.read_text()) == json.loads(whole.read_text())
    # later parts remember the alarm
    result = run(calibrated, "-", "--state", parts, input="")
    assert result.exit_code == 3 and result.stdout.startswith("600 inputs: alarm after ")


def test_all_formats_give_the_same(apood, calibrated, streams, tmp_path):
    scores = [*streams["clean"][:50], None]
    texts = {
        "rows.jsonl": "".join(json.dumps({"index": 0, "score": score, "decision": "ID"}) + "\n\n" for score in scores),
        "rows.csv": "index,score,reason\n" + "".join(f'0,{"" if s is None else s},"a, b"\n' for s in scores),
        "plain.txt": "".join(f"{'-inf' if score is None else score}\n" for score in scores),
    }
    printed = set()
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        printed.add(apood("watch", calibrated, tmp_path / name, "--json").stdout)
        printed.add(apood("watch", calibrated, "-", "--json", input=text).stdout)
    assert len(printed) == 1 and '"inputs": 51' in printed.pop()


def test_rows_of_apood_score_are_watched(apood, calibrated, stores, tmp_path):
    for ending in (".csv", ".jsonl"):
        rows = tmp_path / f"scores{ending}"
        apood("score", calibrated, stores / "test", "--out", rows)
        assert apood("watch", calibrated, rows).stdout.startswith("40 inputs: no alarm; ")


def test_a_pipe_is_watched_row_by_row(calibrated, streams, tmp_path):
    """The alarm is said while the writer of the pipe still has it open, and the state survives an interruption."""
    with Program("watch", calibrated, "-", "--state", tmp_path / "state.json") as program:
        program.stdin.writelines(f"{score}\n" for score in streams["lower"][:500])
        program.stdin.flush()
        assert program.stdout.readline().startswith("Alarm after 3")
        program.signal(signal.SIGTERM)
        ending = program.end()
    assert ending.code == 130 and ending.stderr.startswith("Interrupted: ")
    assert 300 < json.loads((tmp_path / "state.json").read_text())["alarm_at"] < 400


def test_a_row_that_cannot_be_used(apood, refused, calibrated, tmp_path):
    rows, state = tmp_path / "rows.jsonl", tmp_path / "state.json"
    rows.write_text('{"score": 1}\n{"score": 2}\n{"score": "high"}\n{"score": 3}\n', encoding="utf-8")
    message = refused("watch", calibrated, rows, "--state", state)
    assert message.startswith(f"Line 3 of '{rows}' must have a number as its score, got 'high'. 2 rows had been read")
    assert json.loads(state.read_text())["inputs"] == 2
    result = apood("watch", calibrated, rows, "--skip-bad")
    assert result.stdout.startswith("3 inputs: ") and "Skipped: Line 3 of" in result.stderr
    rows.write_text('{"score": "high"}\n', encoding="utf-8")
    message = refused("watch", calibrated, rows, "--state", tmp_path / "new.json")
    assert "got 'high'. 0 rows had been read. Or skip" in message and not (tmp_path / "new.json").exists()


def test_what_cannot_be_watched_is_refused(refused, apood, calibrated, fitted, stores, write, tmp_path):
    rows, state = write("clean"), tmp_path / "state.json"
    assert "has no threshold yet" in refused("watch", fitted, rows)
    assert "'no.jsonl' does not exist" in refused("watch", calibrated, "no.jsonl")
    assert "is not a regular file" in refused("watch", calibrated, tmp_path)
    (tmp_path / "scores.parquet").touch()
    assert "give JSON lines, CSV, or one score per line" in refused("watch", calibrated, tmp_path / "scores.parquet")
    assert "false_alarm must be a number strictly between 0 and 1" in refused(
        "watch", calibrated, rows, "--false-alarm", 2
    )
    apood("watch", calibrated, rows, "--state", state)
    assert "was begun with --false-alarm 0.01, got 0.05" in refused(
        "watch", calibrated, rows, "--state", state, "--false-alarm", 0.05
    )
    package.load(calibrated).calibrate(package.TokenStore(stores / "test")).save(tmp_path / "other")
    assert "belongs to another calibration" in refused("watch", tmp_path / "other", rows, "--state", state)
    state.write_text("{", encoding="utf-8")
    assert f"The state {state} cannot be used: " in refused("watch", calibrated, rows, "--state", state)
    assert "is a folder: give the name of a file" in refused("watch", calibrated, rows, "--state", tmp_path)
