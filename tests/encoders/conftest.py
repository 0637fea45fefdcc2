"""Folders of tiny models, and texts that they know the words of."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, WORDS


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of the family asked for, made once; tests that change it change a copy."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str) -> Path:
        if not (root / family).exists():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model, tokenizer = FAMILIES[family]()
            # Fresh models have zero biases and unit norms, which would hide a state taken before the final norm.
            with torch.no_grad():
                generator = torch.Generator().manual_seed(1)
                for parameter in model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
            model.save_pretrained(root / family)
            tokenizer.save_pretrained(root / family)
        return root / family

    return folder


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts of 1 to 28 words in no order of length, enough for several batches."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 29, (300,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(40, (n,), generator=generator).tolist()) for n in lengths]
