"""The state of an optimisation on disk, so that killed training goes on as if nothing had happened."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from apood.support.errors import ArtefactError
from apood.support.files import atomic_file, is_temporary
from apood.tokens.source import TokenSource

__all__ = ["Checkpoint", "fingerprint"]


def fingerprint(settings: Mapping[str, Any], *sources: TokenSource | None) -> str:
    """A digest of the settings and the data of a fit; the data by its lengths and its two outer sequences."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for source in sources:
        if source is not None:
            digest.update(source.lengths.numpy().tobytes())
            ends = source.select([0, len(source) - 1])
            digest.update(ends.values.double().cpu().numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Checkpoint:
    """A file that always holds one whole state: named tensors and the step they belong to.

    `every_seconds` is how much work a kill may cost. The result of a fit does not depend on it.
    """

    path: Path
    every_seconds: float = 5.0
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def load(self, run: str) -> tuple[int, dict[str, Tensor]] | None:
        """The last state of this `run` (see `fingerprint`), or None where there is none."""
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
                f"The checkpoint {self.path} belongs to a fit with other settings or other data; "
                "delete it or choose another place to start anew."
            )
        return int(metadata["step"]), tensors

    def save_if_due(self, run: str, step: int, tensors: dict[str, Tensor]) -> None:
        """Replaces the file when it is older than `every_seconds`."""
        if time.monotonic() - self._saved_at < self.every_seconds:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.path) as temporary:
            # not save_file, whose own temporary file a kill would leave behind under a name that nobody knows
            content = {name: tensor.contiguous() for name, tensor in tensors.items()}
            temporary.write_bytes(save(content, {"run": run, "step": str(step)}))
        self._saved_at = time.monotonic()

    def delete(self) -> None:
        """Removes the file once the fit is complete and saved."""
        self.path.unlink(missing_ok=True)
