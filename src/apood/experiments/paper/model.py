"""What can be told of a model before it is loaded."""

from dataclasses import dataclass
from pathlib import Path

from apood.encoders.base.pretrained import (
    GENERATING,
    Pretrained,
    find_kind,
    find_pretrained,
    find_weight_files,
    fingerprint,
    is_audio_model,
    load_config,
)
from apood.experiments.paper.tasks import Mode, Task
from apood.support.errors import InputError
from apood.support.files import read_json

__all__ = ["Model", "look_at"]

_DIMENSIONS = ("hidden_size", "d_model", "n_embd")


@dataclass(frozen=True)
class Model:
    """A model that an experiment looks at.

    Attributes:
        given: folder or hub id.
        identity: what stores are known by: a digest of a folder's files, or a hub id.
        found: its files, where they are on this machine.
        dim: D; that of the paper's model where it is not known yet.
        parameters: about how many.
        modes: what the experiment can look at with it.
    """

    given: str
    identity: str
    found: Pretrained | None
    dim: int
    parameters: int
    modes: tuple[Mode, ...]


def look_at(given: str | None, task: Task, *, fetch: bool) -> Model | None:
    """The model that is given, else the paper's; None for what needs none.

    One from the hub is downloaded with `fetch`; otherwise the figures of the paper's model stand for its own. A model
    that generates nothing leaves mode output out.
    """
    if task.items == "bags":
        if given is not None:
            raise InputError(f"The experiment {task.name} reads vectors from its files: leave out the model {given!r}.")
        return None
    name = given or task.model
    if name is None:
        raise InputError(
            f"The paper trained a model of its own for {task.name}: train one with `{task.train_with}`, and give its "
            "folder as --model."
        )
    if not fetch and _is_on_the_hub(name):
        return Model(name, name, None, task.dim, task.parameters, task.modes)
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
    modes = task.modes
    if "output" in modes and find_kind(load_config(found)) not in GENERATING:
        modes = ("input",)
    identity = fingerprint(found.folder) if found.revision is None else name
    return Model(name, identity, found, dim, size // (2 if half else 4), modes)


def _is_on_the_hub(name: str) -> bool:
    return not (Path(name).exists() or Path(name).is_absolute() or name.startswith((".", "~")))
