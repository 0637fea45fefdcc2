"""The precision in which a model computes."""

import torch

from apood.support.errors import InputError
from apood.tokens.batch import FLOAT_DTYPES, dtype_name

__all__ = ["default_dtype", "refuse_other_dtype"]


def refuse_other_dtype(dtype: torch.dtype) -> None:
    """Refuses what no token batch can hold."""
    if dtype not in FLOAT_DTYPES:
        raise InputError(f"An encoder computes in {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")


def default_dtype(device: torch.device) -> torch.dtype:
    """What a model computes in unless it is told: bfloat16 on a GPU that has it, float32 elsewhere."""
    exact_enough = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if exact_enough else torch.float32
