"""A tiny encoder, texts of two kinds, their stores, and two detectors, made by the commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from apood.cli.app import app

WORDS = [f"word{i}" for i in range(12)]


def random_texts(count: int, words: list[str], seed: int) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 13, (count,), generator=generator).tolist()
    return [" ".join(words[i] for i in torch.randint(len(words), (n,), generator=generator).tolist()) for n in lengths]


def run(*arguments: Any, **options: Any) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], **options)


@pytest.fixture(scope="session")
def apood() -> Callable[..., Any]:
    """A function that runs a command, which must succeed, and returns its result."""

    def run_well(*arguments: Any, **options: Any) -> Any:
        result = run(*arguments, **options)
        assert result.exit_code == 0, result.output
        return result

    return run_well


@pytest.fixture(scope="session")
def refused() -> Callable[..., str]:
    """A function that runs a command, which must fail with one sentence and exit code 2, and returns the sentence."""

    def run_badly(*arguments: Any, **options: Any) -> str:
        result = run(*arguments, **options)
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
        return result.stderr.removeprefix("Error: ").rstrip()

    return run_badly


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random BERT with one token per word."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-bert", seed=0)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights, in a folder of the same name."""
    return make_model(tmp_path_factory.mktemp("others") / "tiny-bert", seed=1)


def make_model(folder: Path, seed: int) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def texts() -> dict[str, list[str]]:
    """Texts by name: in-distribution texts use six words, the others six other words."""
    return {
        "train": random_texts(120, WORDS[:6], 1),
        "held-out": random_texts(60, WORDS[:6], 2),
        "test": random_texts(40, WORDS[:6], 3),
        "other": random_texts(40, WORDS[6:12], 4),
    }


@pytest.fixture(scope="session")
def files(texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the texts as JSON lines: train.jsonl, ..."""
    folder = tmp_path_factory.mktemp("texts")
    for name, own in texts.items():
        lines = [json.dumps({"text": text, "number": i}) for i, text in enumerate(own)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def stores(apood: Any, model: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the token stores of the texts: train, held-out, test, other."""
    folder = tmp_path_factory.mktemp("stores")
    for file in files.glob("*.jsonl"):
        apood("embed", file, "--model", model, "--out", folder / file.stem)
    return folder


@pytest.fixture(scope="session")
def fitted(apood: Any, stores: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector without a threshold."""
    out = tmp_path_factory.mktemp("fitted") / "knn"
    apood("fit", stores / "train", "--out", out, "--method", "knn", "--set", "k=2")
    return out


@pytest.fixture(scope="session")
def calibrated(apood: Any, stores: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector with a threshold."""
    out = tmp_path_factory.mktemp("calibrated") / "mahalanobis"
    apood("fit", stores / "train", "--out", out, "--method", "mahalanobis")
    apood("calibrate", out, stores / "held-out", "--accept", "0.9")
    return out
