"""Devices by name: the one place that turns "auto", "cpu" or "cuda" into a device."""

from functools import cache

import torch

from apood.support.errors import InputError

__all__ = ["check_device", "resolve_device"]


def check_device(device: str | torch.device | None) -> None:
    """Raise InputError if this is not the name of a device, whether or not this machine has it."""
    try:
        torch.device(_name_device(device))
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device must be auto, cpu, cuda or the like, got {device!r}.") from error


def resolve_device(device: str | torch.device | None = "auto") -> torch.device:
    """Return the device of that name, a GPU with its index, so that devices can be compared.

    "auto" and None stand for a GPU if there is one, else for the CPU. Raise InputError if this machine cannot use it.
    """
    check_device(device)
    resolved = torch.device(_name_device(device))
    if (error := _try_device(resolved)) is not None:
        remedy = "'auto', 'cpu' or 'cuda'" if torch.cuda.is_available() else "'auto' or 'cpu': there is no CUDA device"
        raise InputError(f"The device {str(device)!r} cannot be used on this machine; use {remedy}.") from error
    if str(resolved) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


@cache  # a detector resolves its device for every batch, and a computation would make a GPU wait
def _try_device(device: torch.device) -> Exception | None:
    """Return the error of a small computation on the device, or None if it works."""
    try:
        torch.ones(1, device=device).add(1).item()  # `meta` can allocate but not compute
    except Exception as error:  # torch has many: RuntimeError, AssertionError, ModuleNotFoundError, ...
        return error
    return None


def _name_device(device: str | torch.device | None) -> str | torch.device:
    if device is None or device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
