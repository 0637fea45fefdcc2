"""The state of an optimisation on disk, so that killed training goes on as if nothing had happened."""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from apood.support.errors import ArtefactError
from apood.support.files import atomic_file, is_temporary, source_digest
from apood.support.version import __version__
from apood.tokens.digest import sample_digest
from apood.tokens.identity import drop_location
from apood.tokens.source import TokenSource

__all__ = ["Checkpoint", "run_digest"]


def run_digest(settings: Mapping[str, Any], *sources: TokenSource | None) -> str:
    """A digest of a fit: the code, its settings, and its data by encoder, lengths and 16 evenly spaced sequences."""
    digest = hashlib.sha256(_canonical([__version__, source_digest(), settings]))
    for source in sources:
        if source is not None:
            digest.update(_canonical(source.encoder and drop_location(source.encoder)))
            digest.update(sample_digest(source).encode())
    return digest.hexdigest()


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, default=str).encode()


@dataclass
class Checkpoint:
    """A file that always holds one whole state: named tensors and the step they belong to.

    `every_seconds` is how much work a kill may cost. The result of a fit does not depend on it.
    """

    path: Path
    every_seconds: float = 5.0
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def load(self, run: str) -> tuple[int, dict[str, Tensor]] | None:
        """The last state of this `run` (see `run_digest`), or None where there is none."""
        for leftover in self.path.parent.glob(f"{self.path.name}.*"):
            if is_temporary(leftover):  # a kill hit a write
                leftover.unlink()
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
            tensors = load_file(self.path)
        except (SafetensorError, OSError) as error:
            raise ArtefactError(
                f"The checkpoint {self.path} cannot be read ({error}); delete it to start anew."
            ) from error
        if metadata.get("run") != run:
            raise ArtefactError(
                f"The checkpoint {self.path} belongs to a fit with other settings, data or version of apood; "
                "delete it or choose another place to start anew."
            )
        return int(metadata["step"]), tensors

    def is_due(self) -> bool:
        """Whether the last state is older than `every_seconds`."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def save_if_due(self, run: str, step: int, tensors: dict[str, Tensor]) -> None:
        """Replaces the file when it is older than `every_seconds`."""
        if not self.is_due():
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as temporary:
                # not save_file, whose own temporary file a kill would leave behind under a name that nobody knows
                content = {name: tensor.contiguous() for name, tensor in tensors.items()}
                temporary.write_bytes(save(content, {"run": run, "step": str(step)}))
        except (OSError, SafetensorError) as error:
            raise ArtefactError(
                f"The fit stopped at step {step} because its state could not be kept in {self.path}: "
                f"{getattr(error, 'strerror', None) or error}."
            ) from error
        self._saved_at = time.monotonic()

    def part(self, number: int) -> "Checkpoint":
        """The checkpoint of a fit that is part of this one, in a file beside it."""
        return Checkpoint(self.path.with_name(f"{self.path.name}.part-{number}"), self.every_seconds)

    def exists(self) -> bool:
        """Whether anything was kept, of this fit or of its parts."""
        return bool(self._files())

    def delete(self) -> None:
        """Removes the file, and those of the parts, once the fit is complete and saved."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Only names that `part` makes: what else begins like them is not ours."""
        own = re.compile(re.escape(self.path.name) + r"(\.part-\d+)*")
        folder = self.path.parent
        return [path for path in folder.iterdir() if own.fullmatch(path.name)] if folder.is_dir() else []
