"""Folders of tiny models, and texts that they know the words of."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import WORDS, made_once


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of the family asked for, made once; tests that change it change a copy."""
    return made_once(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts of 1 to 28 words in no order of length, enough for several batches."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 29, (300,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(40, (n,), generator=generator).tolist()) for n in lengths]
