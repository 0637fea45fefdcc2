"""Programs of others, each in a Python environment of its own, because their pins conflict with ours.

`make test-partners` makes the environments beside ours, from the lists NAME.txt in this folder.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def find_python(name: str) -> Path:
    """Return the interpreter of an environment."""
    return Path(sys.prefix) / "partners" / name / "bin" / "python"


def needs(name: str) -> list[Any]:
    """Return the marks of tests that need an environment."""
    missing = not find_python(name).exists()
    return [
        pytest.mark.partners,
        pytest.mark.skipif(missing, reason=f"{name} is not installed: run make test-partners"),
    ]


@contextmanager
def run_partner(name: str, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program of an environment until the block ends."""
    command = [str(find_python(name)), *map(str, arguments)]
    with subprocess.Popen(command, text=True, **options) as running:
        try:
            yield running
        finally:
            running.kill()
