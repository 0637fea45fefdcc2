"""`apood train translator` as people run it."""

import json
import random
import signal
import time

import pytest
import torch
from processes import Program

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
TINY = ("--size", "tiny", "--vocabulary", "24", "--context", "32", "--batch-tokens", "256", "--beams", "2")
FIELDS = ("--source-field", "en", "--target-field", "fr")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pairs(tmp_path):
    dice = random.Random(0)
    rows = [" ".join(dice.choices(WORDS, k=dice.randint(1, 5))) for _ in range(120)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"en": row, "fr": row[::-1]}) + "\n" for row in rows), encoding="utf-8")
    return path


def command(pairs, out, *more):
    return ("train", "translator", pairs, "--out", out, *FIELDS, *TINY, *more)


def test_a_translator_is_trained_and_used(apood, pairs, tmp_path):
    result = apood(*command(pairs, tmp_path / "model", "--steps", 5, "--json"))
    facts = json.loads(result.stdout)
    assert facts["model"] == str(tmp_path / "model") and facts["skipped"] == 0
    assert facts["pairs"] == {"used": 114, "empty": 0, "too long": 0}
    assert facts["training"]["steps"] == 5
    assert set(facts["validation"]) >= {"loss", "perplexity", "BLEU, greedy", "BLEU, 2 beams"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "pairs.jsonl"], "nothing else is left"
    apood("embed", pairs, "--field", "en", "--model", tmp_path / "model", "--out", tmp_path / "store")


def test_people_get_a_table(apood, pairs, tmp_path):
    shown = apood(
        *command(pairs, tmp_path / "model", "--steps", 1, "--validation", pairs, "--validation-pairs", 3)
    ).stdout
    assert "BLEU, greedy" in shown and "perplexity" in shown and "written" not in shown


def test_a_time_limit_ends_the_training(apood, pairs, tmp_path):
    facts = json.loads(apood(*command(pairs, tmp_path / "model", "--minutes", 0.005, "--json")).stdout)
    assert 0 < facts["training"]["steps"] < 100_000


def test_bad_records_are_named_or_skipped(apood, refused, pairs, tmp_path):
    with pairs.open("a", encoding="utf-8") as file:
        file.write('{"en": "one", "fr": " "}\n{"en": "two"}\n')
    message = refused(*command(pairs, tmp_path / "model", "--steps", 1))
    assert "line 121 of" in message and "empty" in message and message.endswith("--skip-bad to skip such records.")
    result = apood(*command(pairs, tmp_path / "model", "--steps", 1, "--skip-bad", "--json"))
    assert json.loads(result.stdout)["skipped"] == 2
    assert result.stderr.count("Skipped: ") == 2 and "no field 'fr': there are 'en'" in result.stderr


def test_what_cannot_be_is_refused_in_a_sentence(refused, pairs, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "file").touch()
    out = tmp_path / "model"
    for arguments, message in (
        (command(tmp_path / "empty.jsonl", out), "at least 2 pairs"),
        (command(tmp_path / "none.jsonl", out), "There is no file"),
        (command(pairs, out, "--vocabulary", 500), "A vocabulary of 500 pieces cannot be learned from these texts"),
        (command(pairs, out, "--context", 20), "The context must be a multiple of 8, got 20."),
        (command(pairs, out, "--learning-rate", 0), "The learning rate must be a finite number > 0"),
        (command(pairs, tmp_path / "occupied"), "already exists and is not empty"),
        (("train", "translator", pairs, "--out", out), "does not say where its targets are"),
    ):
        assert message in refused(*arguments)
    assert not out.exists() and not list(tmp_path.glob("model*"))


def test_an_interrupted_training_goes_on(apood, refused, pairs, tmp_path):
    out = tmp_path / "model"
    given = [str(part) for part in command(pairs, out, "--steps", "100000", "--checkpoint-seconds", "0")]
    checkpoint = tmp_path / "model.checkpoint"
    with Program(*given, OMP_NUM_THREADS="1") as program:
        while not checkpoint.exists():
            assert program.is_running(), program.stderr.read()
            time.sleep(0.02)
        program.signal(signal.SIGINT)
        ending = program.end()
    assert (ending.code, ending.stderr) == (
        130,
        f"Interrupted: the state is in {checkpoint}; add --resume to the same command to continue from there.\n",
    )
    assert "add --resume to continue it" in refused(*given)
    assert "other settings, data" in refused(*command(pairs, out, "--steps", 3, "--resume"))
    assert not out.exists() and checkpoint.exists()
    checkpoint.unlink()
    apood(*command(pairs, out, "--steps", 3, "--resume"))  # with the vocabulary that is there
    assert out.exists() and not list(tmp_path.glob("model.checkpoint*"))
