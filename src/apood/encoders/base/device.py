"""Where a model runs, and in which precision."""

import torch

from apood.support.errors import InputError
from apood.tokens.batch import FLOAT_DTYPES, dtype_name

__all__ = ["as_device", "default_dtype", "refuse_other_dtype"]


def as_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, after a try; without any, a GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"The device {str(device)!r} cannot be used here: allowed are 'cpu' and, with a GPU, 'cuda'."
        ) from error
    return chosen


def refuse_other_dtype(dtype: torch.dtype) -> None:
    """Refuses what no token batch can hold."""
    if dtype not in FLOAT_DTYPES:
        raise InputError(f"An encoder computes in {', '.join(map(dtype_name, FLOAT_DTYPES))}, got {dtype}.")


def default_dtype(device: torch.device) -> torch.dtype:
    """What a model computes in unless it is told: bfloat16 on a GPU that has it, float32 elsewhere."""
    exact_enough = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if exact_enough else torch.float32
