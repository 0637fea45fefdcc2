"""The commands with --engine ray, whose workers are this process."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest
from scaled import run_commands_here, run_here
from typer.testing import CliRunner

from apood.cli.app import app
from apood.data.parts import Part
from apood.scale.embedding import EmbedWorker
from apood.scale.engine import Cluster
from apood.scale.job import Job
from apood.scale.sampling import DrawWorker
from apood.scale.shards import Counts
from apood.scale.units import Unit
from apood.scale.worker import Worker


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return run_commands_here(monkeypatch)


def interrupt() -> None:
    raise KeyboardInterrupt


def run(*command: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, command), "--engine", "ray"])
    assert result.exit_code == code, result.output
    return result.output


def fit(root: Path, out: Path, *options: object, texts: Path | None = None, code: int = 0) -> str:
    command = ["fit", texts or root / "corpus", "--model", root / "bert", "--out", out, "--method", "mahalanobis"]
    return run(*command, *options, code=code)


@pytest.mark.usefixtures("jobs")
def test_a_fit_says_why_it_skipped_documents(root: Path, tmp_path: Path):
    lines = fit(root, tmp_path / "fitted", "--sample", 100).splitlines()
    assert lines[0] == f"Skipped: Field 'text' in line 8 of {str(root / 'corpus' / '0.jsonl')!r} is empty."
    assert all(line.startswith("Skipped: ") for line in lines[1:5]) and lines[5] == "Skipped: 8 more records."
    assert '"bad": 13' in fit(root, tmp_path / "other", "--sample", 100, "--json")


@pytest.mark.usefixtures("jobs")
def test_an_embed_says_why_it_skipped_documents(root: Path, tmp_path: Path):
    texts, out = tmp_path / "a.jsonl", tmp_path / "store"
    texts.write_text('{"text": "word1"}\n{"text": ""}\nnot JSON\n')
    output = run("embed", texts, "--model", root / "bert", "--out", out, "--json")
    assert output.startswith(
        f"Skipped: Field 'text' in line 2 of {str(texts)!r} is empty.\nSkipped: Line 3 of {str(texts)!r} is not valid"
    )
    assert not (tmp_path / "store.parts").exists()


def score(root: Path, texts: Path, out: Path, *options: object, code: int = 0) -> str:
    return run("score", root / "detector", texts, "--out", out, *options, code=code)


@pytest.mark.usefixtures("jobs")
def test_a_first_record_that_is_bad_does_not_end_the_command(root: Path, tmp_path: Path):
    texts = tmp_path / "a.jsonl"
    texts.write_text('{"id": 0}\n' + '{"id": 1, "text": "word1"}\n' * 120)
    output = score(root, texts, tmp_path / "out")
    assert "1 document could not be used, and is a row with the error.\nScored 120 inputs" in output
    texts.write_text('{"id": 0}\n' * 120 + '{"id": 1, "text": "word1"}\n')
    assert "has no field 'text': there are 'id'; name it with --field." in score(root, texts, tmp_path / "x", code=2)


@pytest.mark.usefixtures("jobs")
def test_a_field_that_all_records_lack_is_named_with_its_options(root: Path, tmp_path: Path):
    texts = tmp_path / "a.jsonl"
    texts.write_text('{"id": 0, "text": "word1"}\n{"id": 1, "text": 5}\n' * 10 + '{"id": 2, "text": "word1"}\n')
    wrong = f"Error: Line 1 of {str(texts)!r} has no field 'nope': there are 'id', 'text'; name it with"
    out = tmp_path / "out"
    assert score(root, texts, out, "--keep", "nope", code=2) == f"{wrong} --field and --keep.\n"
    assert score(root, texts, out, "--field", "nope", code=2) == f"{wrong} --field.\n"
    assert not out.exists()


@pytest.mark.usefixtures("jobs")
def test_rows_of_bad_records_have_the_kept_fields(root: Path, tmp_path: Path):
    import pyarrow.parquet

    texts = tmp_path / "a.jsonl"
    lines = [{"id": 1, "text": "word1"}, {"id": 2, "text": 5}, {"id": 3}, {"text": "word1"}]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    score(root, texts, tmp_path / "out", "--keep", "id")
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert [(row["id"], row["error"] is None) for row in rows] == [
        ("1", True),
        ("2", False),
        ("3", False),
        (None, False),
    ]


@pytest.mark.usefixtures("jobs")
def test_a_score_says_what_was_not_scored_whole(root: Path, tmp_path: Path):
    texts = tmp_path / "a.txt"
    texts.write_text("word1\n\n" + "word1 " * 100 + "\n")
    output = score(root, texts, tmp_path / "out")
    assert "1 of 3 inputs are empty or have no tokens; their score is -inf and their decision OOD.\n" in output
    assert "\n1 input had several windows, and the worst one decided.\nScored 3 inputs" in output


@pytest.mark.usefixtures("jobs")
def test_what_is_for_the_plain_commands_is_refused(root: Path, tmp_path: Path):
    texts, out = root / "corpus", tmp_path / "out"
    assert "--no-verify is for --engine plain" in score(root, texts, out, "--no-verify", code=2)
    for option in (["--no-verify"], ["--checkpoint-seconds", 0]):
        assert f"{option[0]} is for --engine plain" in fit(root, out, "--sample", 100, *option, code=2)


@pytest.mark.usefixtures("jobs")
def test_a_file_is_not_a_folder_for_results(root: Path, tmp_path: Path):
    (tmp_path / "out").touch()
    message = f"Error: {tmp_path / 'out'} is a file: choose the name of a new folder.\n"
    assert score(root, root / "corpus", tmp_path / "out", code=2) == message
    embed = ["embed", root / "corpus", "--model", root / "bert", "--out", tmp_path / "out"]
    assert run(*embed, code=2) == message


@pytest.mark.usefixtures("jobs")
def test_another_command_is_told_what_differs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):

    def interrupt_encoding(job: Job, own: Worker) -> None:
        if own.encodes:
            job.begin()
            interrupt()
        run_here(job, own)

    monkeypatch.setattr("scaled.run_here", interrupt_encoding)
    texts, out = root / "corpus", tmp_path / "out"
    holds = "holds the work of another command, which has"
    score(root, texts, out, "--keep", "id", code=130)
    output = score(root, texts, out, "--keep", "id", "--keep", "text", "--field", "id", code=2)
    assert output == (
        f"Error: {out} {holds} no --field and --keep id, and this one has --field id and --keep id --keep text: "
        f"continue it as it was begun, delete {out} to begin anew, or choose another --out.\n"
    )
    embed = ["embed", texts, "--model", root / "bert", "--out", tmp_path / "store"]
    run(*embed, "--no-special-tokens", code=130)
    output = run(*embed, "--dtype", "float32", "--special-tokens", code=2)
    assert f"{holds} --dtype float16 and --no-special-tokens, and this one has --dtype float32 and --special" in output
    assert f"delete {tmp_path / 'store.parts'} to begin anew" in output
    shutil.copytree(root / "bert", tmp_path / "bert")
    output = run(*embed[:3], tmp_path / "bert", *embed[4:], "--no-special-tokens", code=2)
    assert f"{holds} --model {root / 'bert'} (" in output
    assert f"), and this one has --model {tmp_path / 'bert'} (" in output
    fit(root, tmp_path / "fitted", "--sample", 100, code=130)
    output = fit(root, tmp_path / "fitted", "--sample", 60, code=2)
    assert f"{holds} --sample 100, and this one has --sample 60: " in output
    assert f"Error: {tmp_path / 'fitted.scale'} holds" in output
    output = fit(root, tmp_path / "fitted", "--sample", 100, "--set", "normalize=tokens", code=2)
    assert f"{holds} --method and --set as in Mahalanobis(), and this one has --method and --set as in" in output


@pytest.mark.usefixtures("jobs")
def test_tokens_of_two_models_do_not_become_one_store(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine of the cluster may have another model of the same name and the same D."""
    save, saved = EmbedWorker.save_more, iter(range(10**6))

    def save_as_other(worker: EmbedWorker, unit: Unit) -> None:
        if next(saved) == 3:
            worker.encoder.identity = {**worker.encoder.identity, "fingerprint": "other"}
        save(worker, unit)

    monkeypatch.setattr(EmbedWorker, "save_more", save_as_other)
    output = run("embed", root / "corpus", "--model", root / "bert", "--out", tmp_path / "store", code=2)
    assert "cannot be merged, because their encoder differs: fingerprint" in output
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("jobs")
def test_an_embed_that_was_stopped_when_it_was_done_says_what_is_left(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    command = ["embed", root / "corpus" / "0.jsonl", "--model", root / "bert", "--out", tmp_path / "store"]
    with monkeypatch.context() as patch:
        patch.setattr("apood.cli.engine._tidy", lambda _: None)
        run(*command)
    output = run(*command, code=2)
    left = f"what it was made of is left in {tmp_path / 'store.parts'}: delete the latter."
    assert output == f"Error: {tmp_path / 'store'} is there already, and {left}\n"


def test_workers_of_a_fit_are_told_the_model(root: Path, tmp_path: Path, jobs: list[Job]):
    """They do not open a model that only the detector names, unless it is on their machine already."""
    fit(root, tmp_path / "fitted", "--sample", 100)
    assert [job.settings.model for job in jobs] == [str(root / "bert")]


@pytest.mark.usefixtures("jobs")
def test_a_sample_that_is_too_large_leaves_nothing_behind(root: Path, tmp_path: Path):
    texts, out = tmp_path / "a.txt", tmp_path / "fitted"
    texts.write_text("".join(f"word{n % 9} word{n % 7}\n" for n in range(50)))
    output = fit(root, out, "--sample", 40, texts=texts, code=2)
    assert output == (
        "Error: Of 50 texts, 19 must be held out to set the threshold, so that there are not enough for a sample of "
        "40: give more texts, or --sample 31 or less.\n"
    )
    assert not (tmp_path / "fitted.scale").exists()
    output = fit(root, out, "--sample", 31, texts=texts)
    assert "a sample of 31 texts" in output and "with 19 others" in output
    texts.write_text("word1\n" * 19)
    assert fit(root, tmp_path / "other", "--sample", 5, texts=texts, code=2).endswith(
        "a sample of 5: give more texts.\n"
    )


def test_a_sample_of_another_command_is_drawn_again(root: Path, tmp_path: Path, jobs: list[Job]):
    """As after a kill between the sample and the plan."""
    begin = Job.begin

    def interrupt(job: Job) -> list[int]:
        if job.place.name == "measured":
            raise KeyboardInterrupt
        return begin(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "begin", interrupt)
        assert fit(root, tmp_path / "fitted", "--sample", 60, code=130)
    assert (tmp_path / "fitted.scale" / "sample.parquet").exists() and not jobs
    assert "Trained mahalanobis on a sample of 100 texts" in fit(root, tmp_path / "fitted", "--sample", 100)


@pytest.mark.usefixtures("jobs")
def test_an_interrupted_draw_goes_on_with_the_other_parts(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, out, process = fit(root, tmp_path / "whole", "--sample", 100), tmp_path / "fitted", DrawWorker.process
    done: list[int] = []

    def process_two(worker: DrawWorker, number: int, part: Part) -> Counts:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(number)
        return process(worker, number, part)

    with monkeypatch.context() as patch:
        patch.setattr(DrawWorker, "process", process_two)
        output = fit(root, out, "--sample", 100, code=130)
    assert output == f"Interrupted: what is done is in {out}.scale; run the same command again to continue.\n"
    with monkeypatch.context() as patch:
        patch.setattr(
            DrawWorker, "process", lambda worker, number, part: done.append(number) or process(worker, number, part)
        )
        assert fit(root, out, "--sample", 100) == whole.replace("whole", "fitted")
    assert done == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("jobs")
def test_an_interruption_before_anything_is_done_says_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(_: Job) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "begin", interrupt)
    for command in (
        ["fit", root / "corpus", "--model", root / "bert", "--out", tmp_path / "fitted", "--sample", "100"],
        ["score", root / "detector", root / "corpus", "--out", tmp_path / "scores"],
        ["embed", root / "corpus", "--model", root / "bert", "--out", tmp_path / "store"],
    ):
        assert run(*command, code=130) == "Interrupted: nothing was done yet; run the same command again.\n"
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"])


@pytest.mark.usefixtures("jobs")
def test_a_sample_that_is_smaller_than_asked_is_a_warning(root: Path, tmp_path: Path):
    output = fit(root, tmp_path / "fitted", "--sample", 1000)
    assert (
        "Warning: There are only 239 texts: 191 of them are the sample, and not 1,000, and 48 are held out to set the "
        "threshold.\n"
    ) in output
    assert "There are only" not in fit(root, tmp_path / "other", "--sample", 191)


@pytest.mark.usefixtures("jobs")
def test_too_small_a_sample_asks_for_a_larger_one(root: Path, tmp_path: Path):
    output = fit(root, tmp_path / "fitted", "--sample", 2)
    assert "There are fewer ID sequences (2)" in output
    assert "give more texts or a larger --sample, or use knn" in output and "add sequences" not in output


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, int]]:
    """Kind, GPUs and number of the workers that commands start on a cluster of 2 GPUs and 8 processors."""
    started: list[tuple[str, bool, int]] = []

    def run_workers(worker, settings, parts, chosen, *, cluster: Cluster, workers: int):
        started.append((worker.__name__, cluster.uses_gpus, workers))
        own = worker(settings)
        return (own.process(number, parts[number]) for number in chosen)

    monkeypatch.setattr("apood.scale.engine.connect", lambda _: nullcontext())
    monkeypatch.setattr("apood.scale.engine.find_resources", lambda: Cluster([{"CPU": 8.0, "GPU": 2.0}], True))
    monkeypatch.setattr(Cluster, "list_notices", lambda *_: iter(()))
    monkeypatch.setattr("apood.scale.engine.run_workers", run_workers)
    return started


@pytest.mark.parametrize(("options", "drawing", "measuring"), [((), 8, 2), (("--workers", 1), 1, 1)])
def test_workers_that_do_not_encode_need_no_gpu(
    root: Path, tmp_path: Path, gpus, monkeypatch: pytest.MonkeyPatch, options, drawing: int, measuring: int
):
    monkeypatch.setattr("apood.scale.measuring._GROUP", 4)
    fit(root, tmp_path / "fitted", "--sample", 100, *options)
    merging = ("MergeWorker", False, drawing)
    assert gpus == [("DrawWorker", False, drawing), ("MeasureWorker", True, measuring), merging]


def test_a_start_that_fails_does_not_occupy_the_folder(root: Path, tmp_path: Path, gpus):
    texts, score = root / "corpus", ["score", root / "detector", root / "corpus", "--out", tmp_path / "scores"]
    embed = ["embed", texts, "--model", root / "bert", "--out", tmp_path / "store"]
    too_many = "Error: --workers 3 needs as many GPUs with a processor on their machine, and the cluster has 2.\n"
    for command in (score, embed):
        assert run(*command, "--workers", 3, code=2) == too_many
    assert fit(root, tmp_path / "fitted", "--sample", 100, "--workers", 3, code=2) == too_many
    assert "There is no folder" in run(*score, "--model", tmp_path / "none", code=2)
    assert not list(tmp_path.iterdir()) and not gpus
    assert "Scored 240 inputs" in run(*score, "--keep", "id", "--workers", 2)


def test_a_job_of_which_nothing_is_left_needs_no_cluster(root: Path, tmp_path: Path, gpus):
    command = ["score", root / "detector", root / "corpus", "--out", tmp_path / "scores"]
    first = run(*command)
    assert run(*command, "--workers", 3) == first and len(gpus) == 1


def test_a_dry_run_counts_the_workers_of_the_cluster(root: Path, tmp_path: Path, gpus, monkeypatch: pytest.MonkeyPatch):
    command = ["score", root / "detector", root / "corpus", "--out", tmp_path / "scores", "--dry-run", "--json"]
    assert json.loads(run(*command, "--address", "10.0.0.1:6379"))["workers"] == 2
    assert "the cluster has 2" in run(*command, "--address", "10.0.0.1:6379", "--workers", 3, code=2)
    assert json.loads(run(*command, "--workers", 3))["workers"] == 3  # of a cluster that there is not yet
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert json.loads(run(*command))["workers"] == 2
    assert not gpus


def test_a_dry_run_refuses_a_wrong_address(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    command = ["score", root / "detector", root / "corpus", "--out", tmp_path / "scores", "--dry-run"]
    assert "--address takes host:port" in run(*command, "--address", "nowhere", code=2)


def test_a_dry_run_of_a_fit_counts_the_pass_over_everything_if_there_is_one(root: Path, tmp_path: Path):
    command = ["fit", root / "corpus", "--model", root / "bert", "--out", tmp_path / "fitted", "--sample", 100]
    output = run(*command, "--dry-run", "--method", "deep-svdd")
    assert re.search(r"tokens +– *\nwritten +– *\nworkers .*\nseconds +–", output)
    assert output.endswith("Not counted: drawing the sample, embedding it and training on it.\n")
    output = run(*command, "--dry-run", "--method", "mahalanobis")
    assert re.search(r"tokens +[1-9].*\nwritten +– *\nworkers .*\nseconds +under 1", output)
    assert output.endswith("training on it, and statistics: their files and merging them.\n")
