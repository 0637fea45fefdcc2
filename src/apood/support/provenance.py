"""The software and the device that figures come from."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from apood.support.device import resolve_device
from apood.support.files import source_digest
from apood.support.version import __version__

__all__ = ["describe_origin", "device_name", "package_versions"]

_PACKAGES = ("torch", "transformers", "numpy", "scikit-learn", "datasets", "matplotlib")


def package_versions() -> dict[str, str]:
    """Return the versions of apood, Python and the installed packages that decide figures."""
    found = {"apood": __version__, "source": source_digest(), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device | None = None) -> str:
    """Return the name of a GPU, or the number of CPU threads; None is a GPU if there is one."""
    device = resolve_device() if device is None else device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return "CPU, 1 thread" if threads == 1 else f"CPU, {threads} threads"


def describe_origin(manifest: Mapping[str, Any]) -> str:
    """Return the line with the command, the device and the date of a manifest."""
    return f"`{manifest['command']}`, {manifest['device']}, {manifest['finished'][:10]}."
