"""The software and the machine that an experiment's figures come from."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from apood.support.device import resolve_device
from apood.support.files import source_digest
from apood.support.version import __version__

__all__ = ["device_name", "versions"]

_PACKAGES = ("torch", "transformers", "numpy", "scikit-learn", "datasets", "matplotlib")


def versions() -> dict[str, str]:
    """Of all that decides the figures."""
    found = {"apood": __version__, "source": source_digest(), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device | None = None) -> str:
    """What computes: the GPU by its name, else the CPU with its threads; None is a GPU if there is one."""
    place = resolve_device() if device is None else device
    if place.type == "cuda":
        return torch.cuda.get_device_name(place)
    threads = torch.get_num_threads()
    return "CPU, 1 thread" if threads == 1 else f"CPU, {threads} threads"
