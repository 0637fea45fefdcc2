"""What is known about a model before it is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apood.encoders.base.model_files import find_weight_files
from apood.encoders.base.pretrained import (
    GENERATING,
    Pretrained,
    find_kind,
    find_pretrained,
    fingerprint,
    is_audio_model,
    load_config,
)
from apood.experiments.paper.tasks import Mode, Task
from apood.support.errors import InputError
from apood.support.files import read_json

__all__ = ["ModelFacts", "inspect_model"]

_DIMENSIONS = ("hidden_size", "d_model", "n_embd")


@dataclass(frozen=True)
class ModelFacts:
    """The model of an experiment.

    Attributes:
        given: folder or hub id.
        identity: what identifies it in stores: a digest of the folder's files, or the hub id.
        found: its files, if they are on this machine.
        dim: D; that of the paper's model if it is not known yet.
        parameters: about how many it has.
        beams: the number of beams that its own generation settings ask for.
        modes: the modes that it can be used in.
    """

    given: str
    identity: str
    found: Pretrained | None
    dim: int
    parameters: int
    beams: int
    modes: tuple[Mode, ...]


def inspect_model(given: str | None, task: Task, *, fetch: bool) -> ModelFacts | None:
    """Return the facts of the given model, or of the paper's; None for tasks without a model.

    A hub model is downloaded with `fetch`; without it, the size of the paper's model is assumed. A model that cannot
    generate has no mode output.
    """
    if task.items == "bags":
        if given is not None:
            raise InputError(f"The experiment {task.name} reads vectors from its files: leave out the model {given!r}.")
        return None
    name = given or task.model
    if name is None:
        raise InputError(
            f"The paper trained its own model for {task.name}: train one with `{task.train_with}`, and give its "
            "folder as --model."
        )
    if not fetch and not (Path(name).exists() or Path(name).is_absolute() or name.startswith((".", "~"))):
        return ModelFacts(name, name, None, task.dim, task.parameters, task.beams, task.modes)
    try:
        found = find_pretrained(name)
    except InputError as error:
        if given is not None:
            raise
        raise InputError(f"Without --model, {task.name} takes the paper's model {name!r}: {error}") from error
    if is_audio_model(found.folder) != (task.items == "sounds"):
        takes = "sounds" if is_audio_model(found.folder) else "texts"
        raise InputError(f"The model {name!r} takes {takes}, but the experiment {task.name} is about {task.items}.")
    config = read_json(found.folder / "config.json")
    dim = next((config[key] for key in _DIMENSIONS if isinstance(config.get(key), int)), task.dim)
    size = sum(path.stat().st_size for path in find_weight_files(found.folder))
    half = str(config.get("torch_dtype") or config.get("dtype")).endswith("16")
    cannot_generate = "output" in task.modes and find_kind(load_config(found)) not in GENERATING
    modes: tuple[Mode, ...] = ("input",) if cannot_generate else task.modes
    identity = fingerprint(found.folder) if found.revision is None else name
    beams = _read_beams(found.folder, config)
    return ModelFacts(name, identity, found, dim, size // (2 if half else 4), beams, modes)


def _read_beams(folder: Path, config: dict[str, Any]) -> int:
    """Return the number of beams in a model's generation settings, which older models have in their `config`."""
    path = folder / "generation_config.json"
    try:
        own = read_json(path) if path.is_file() else config
    except (OSError, ValueError) as error:
        raise InputError(f"The model's file {str(path)!r} cannot be read: {error}.") from error
    beams = own.get("num_beams") if isinstance(own, dict) else None
    return beams if isinstance(beams, int) and beams > 1 else 1
