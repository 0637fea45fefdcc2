"""`apood train audio-classifier`, from files of sounds to a model that the other commands take."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Program
from safetensors.torch import load_file

RATE = 8000
SMALL = ["--patch", 16, "--width", 16, "--blocks", 2, "--heads", 2, "--batch", 8, "--pretraining-steps", 5]


def sound(kind: str, seed: int) -> Any:
    dice = np.random.default_rng(seed)
    if kind == "noise":
        return dice.uniform(0.05, 0.1) * dice.standard_normal(RATE // 2)
    pitch = {"low": 400, "high": 2000}[kind] * dice.uniform(0.9, 1.1)
    wave = np.sin(2 * np.pi * pitch * np.arange(RATE // 2) / RATE + dice.random())
    return dice.uniform(0.1, 0.5) * wave + 0.01 * dice.standard_normal(RATE // 2)


def write(path: Path, samples: Any, rate: int = RATE) -> None:
    import soundfile

    soundfile.write(path, samples, rate)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sounds")
    for number, kind in enumerate(("low", "high", "noise")):
        (folder / kind).mkdir()
        for index in range(8):
            write(folder / kind / f"{index}.wav", sound(kind, 100 * number + index))
    return folder


@pytest.fixture(scope="module")
def spoilt(sounds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with files that cannot be used."""
    folder = tmp_path_factory.mktemp("spoilt")
    for path in sounds.rglob("*.wav"):
        (folder / path.parent.name).mkdir(exist_ok=True)
        (folder / path.parent.name / path.name).symlink_to(path)
    (folder / "high" / "a-text.wav").write_text("no sound")
    write(folder / "low" / "other-rate.wav", sound("low", 0), 2 * RATE)
    write(folder / "low" / "short.wav", sound("low", 0)[:500])
    return folder


def test_from_files_to_a_token_store(apood: Callable[..., Any], sounds: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    result = apood("train", "audio-classifier", sounds, "--out", out, "--steps", 50, *SMALL, "--json")
    report = json.loads(result.stdout)
    assert report["accuracy"] >= 0.8
    assert report["classes"] == ["high", "low", "noise"]
    assert (report["sounds"], report["validation sounds"], report["skipped"]) == (18, 6, 0)
    assert report["model"] == str(out)
    assert not list(tmp_path.glob("*.checkpoint*"))
    apood("embed", sounds / "low", "--model", out, "--out", tmp_path / "store")
    from apood.tokens.store import TokenStore

    store = TokenStore(tmp_path / "store", channels=["logits"])
    assert (len(store), store.dim) == (8, 16)
    assert (store.select(slice(None)).channels["logits"].values.argmax(1) == 1).float().mean() >= 0.8


def test_classes_and_validation_sounds_can_be_chosen(apood: Callable[..., Any], sounds: Path, tmp_path: Path) -> None:
    held_out = {"audio": np.stack([sound("low", 900), sound("noise", 901)]), "label": ["low", "noise"], "sr": RATE}
    np.savez(tmp_path / "held-out.npz", **held_out)
    result = apood(
        "train", "audio-classifier", sounds, "--class", "low", "--class", "noise", "--steps", 2, *SMALL,
        "--validation", tmp_path / "held-out.npz", "--out", tmp_path / "model",
    )  # fmt: skip
    report = json.loads((tmp_path / "model" / "training.json").read_text())
    assert (report["classes"], report["sounds"], report["validation sounds"]) == (["low", "noise"], 16, 2)
    assert "accuracy" in result.stdout


def test_bad_sounds_are_named_and_skipped_where_that_is_wanted(
    apood: Callable[..., Any], refused: Callable[..., str], spoilt: Path, tmp_path: Path
) -> None:
    command = ["train", "audio-classifier", spoilt, "--out", tmp_path / "model", "--steps", 1, *SMALL]
    message = refused(*command)
    assert "a-text.wav' cannot be read as audio" in message
    assert message.endswith("add --skip-bad to skip such sounds.")
    result = apood(*command, "--skip-bad", "--json")
    assert json.loads(result.stdout)["skipped"] == 3
    assert "has 16,000 samples per second, but 8,000 are needed" in result.stderr
    assert "short.wav' is too short" in result.stderr


def test_what_cannot_be_trained_is_refused(refused: Callable[..., str], sounds: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    command = ["train", "audio-classifier", sounds, "--out", out]
    assert "no class 'pump' to learn: there are 'high', 'low', 'noise'" in refused(*command, "--class", "pump")
    assert "at least 2 classes, got 1" in refused(*command, "--class", "low")
    assert "learning rate must be a finite number > 0" in refused(*command, "--learning-rate", 0)
    assert "There is no file or folder" in refused("train", "audio-classifier", tmp_path / "none", "--out", out)
    few = tmp_path / "few"
    for kind in ("low", "high"):
        (few / kind).mkdir(parents=True)
        (few / kind / "0.wav").symlink_to(sounds / kind / "0.wav")
    assert "too few of 'high' (1), 'low' (1)" in refused("train", "audio-classifier", few, "--out", out)
    out.mkdir()
    (out / "precious.txt").touch()
    assert "already exists and is not empty" in refused(*command)


def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    apood: Callable[..., Any], refused: Callable[..., str], sounds: Path, tmp_path: Path
) -> None:
    command = ["train", "audio-classifier", sounds, "--steps", 20, *SMALL, "--out"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    apood(*command, whole)
    last = tmp_path / "killed.checkpoint.part-1"
    with Program(*command, killed, "--checkpoint-seconds", "0") as program:
        while not last.exists():
            assert program.is_running(), program.stderr.read()
            time.sleep(0.005)
        program.signal(signal.SIGKILL)
    assert not killed.exists()
    assert "add --resume to continue it" in refused(*command, killed)
    apood(*command, killed, "--resume")
    assert not list(tmp_path.glob("*.checkpoint*"))
    expected, found = load_file(whole / "model.safetensors"), load_file(killed / "model.safetensors")
    assert all((found[name] == tensor).all() for name, tensor in expected.items())
