"""Checkpoints: the state of an optimisation on disk, from which killed training continues unchanged."""

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
from apood.support.files import atomic_file, is_temporary, refuse_irregular, source_digest
from apood.support.version import __version__
from apood.tokens.digest import sample_digest
from apood.tokens.identity import drop_location
from apood.tokens.source import TokenSource

__all__ = ["Checkpoint", "run_digest"]


def run_digest(settings: Mapping[str, Any], *sources: TokenSource | None) -> str:
    """Return a digest of a fit: its code, settings and data (encoder, lengths and 16 evenly spaced sequences)."""
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
    """A file that holds the last state of a fit: named tensors and their step. It is never half-written.

    Pass it to `fit`. If the process is killed, the same call continues from the file. The result of the fit does not
    depend on the checkpoint.

    Attributes:
        path: the file.
        every_seconds: how often the state is saved, and so how much work a kill may cost.

    Examples:
        >>> from pathlib import Path
        >>> import torch
        >>> from apood import Checkpoint
        >>> checkpoint = Checkpoint(Path("fit.checkpoint"), every_seconds=0)
        >>> checkpoint.save_if_due("my run", 3, {"weights": torch.ones(2)})
        >>> checkpoint.load("my run")
        (3, {'weights': tensor([1., 1.])})
        >>> checkpoint.delete()
        >>> checkpoint.exists()
        False
    """

    path: Path
    every_seconds: float = 5.0
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def load(self, run: str) -> tuple[int, dict[str, Tensor]] | None:
        """Return the step and the tensors of the last state of this `run` (see `run_digest`), None if there is none."""
        for leftover in self.path.parent.glob(f"{self.path.name}.*"):
            if is_temporary(leftover):  # of a killed process
                leftover.unlink()
        if not self.path.exists():
            return None
        try:
            refuse_irregular(self.path)
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
        """Return whether the last state is older than `every_seconds`."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def save_if_due(self, run: str, step: int, tensors: dict[str, Tensor]) -> None:
        """Replace the file if it is older than `every_seconds`."""
        if not self.is_due():
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as temporary:
                # Not `save_file`: a kill would leave its temporary file, whose name is not known here.
                content = {name: tensor.contiguous() for name, tensor in tensors.items()}
                temporary.write_bytes(save(content, {"run": run, "step": str(step)}))
        except (OSError, SafetensorError) as error:
            raise ArtefactError(
                f"The fit stopped at step {step} because its state could not be kept in {self.path}: "
                f"{getattr(error, 'strerror', None) or error}."
            ) from error
        self._saved_at = time.monotonic()

    def part(self, number: int) -> "Checkpoint":
        """Return the checkpoint of a fit that is part of this one, in a file beside it."""
        return Checkpoint(self.path.with_name(f"{self.path.name}.part-{number}"), self.every_seconds)

    def exists(self) -> bool:
        """Return whether there is a file of this fit or of its parts."""
        return bool(self._files())

    def delete(self) -> None:
        """Delete the files of this fit and of its parts, once the fit is complete and saved."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Return the files with a name that `part` makes; others that begin alike are not touched."""
        own = re.compile(re.escape(self.path.name) + r"(\.part-\d+)*")
        folder = self.path.parent
        return [path for path in folder.iterdir() if own.fullmatch(path.name)] if folder.is_dir() else []
