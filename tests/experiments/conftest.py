"""Folders of files with a manifest, small enough for every experiment to be run on them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import COUNTS, SETTINGS, random_texts, write_lines
from tiny_audio import make_audio_model, noise, tone
from tiny_models import WORDS, made_once

from apood.experiments.paper.data_sets import MANIFEST


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the folder of a tiny model of a family, made once."""
    return made_once(tmp_path_factory.mktemp("models"))


@pytest.fixture
def one_thread() -> Any:
    """Use one thread: for small matrices, more threads are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts: ID ones use the first words, the others other words."""
    folder = tmp_path_factory.mktemp("texts")
    words = {"train": WORDS[:16], "test": WORDS[:16], "aux": WORDS[12:28], "other": WORDS[20:], "more": WORDS[30:]}
    for number, (name, count) in enumerate(COUNTS.items()):
        write_lines(folder / f"{name}.jsonl", [{"text": text} for text in random_texts(count, words[name], number)])
    (folder / MANIFEST).write_text(
        'id_train = "train.jsonl"\nid_test = "test.jsonl"\naux = "aux.jsonl"\n'
        f'[ood]\n"CNN/DM" = "other.jsonl"\nextra = {{files = ["more.jsonl"]}}\n{SETTINGS}',
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="session")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of sounds with two labels in one archive, and a classifier."""
    folder = tmp_path_factory.mktemp("sounds")
    audio = [tone(0.7, seed, 16_000) for seed in range(60)] + [noise(0.7, seed, 16_000) for seed in range(20)]
    np.savez(folder / "machines.npz", audio=np.stack(audio), sr=16_000, label=["hum"] * 60 + ["hiss"] * 20)
    (folder / MANIFEST).write_text(
        'id = {files = "machines.npz", labels = ["hum"]}\n'
        f'[ood]\nMachines = {{files = "machines.npz", labels = ["hiss"]}}\n{SETTINGS}',
        encoding="utf-8",
    )
    return folder, make_audio_model(tmp_path_factory.mktemp("audio") / "classifier")


@pytest.fixture(scope="session")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an archive of bags of two kinds."""
    folder = tmp_path_factory.mktemp("bags")
    dice = np.random.default_rng(0)
    labels = np.array([1] * 40 + [0] * 20)
    owners = np.repeat(np.arange(60), dice.integers(1, 5, 60))
    vectors = dice.normal(size=(len(owners), 6)) + 2 * (labels[owners] == 0)[:, None]
    np.savez(folder / "musk.npz", X=vectors, bag=owners, bag_label=labels)
    (folder / MANIFEST).write_text(
        'id = {files = "musk.npz", labels = ["1"]}\n'
        f'[ood]\nothers = {{files = "musk.npz", labels = ["0"]}}\n{SETTINGS}',
        encoding="utf-8",
    )
    return folder
