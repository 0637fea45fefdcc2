"""Tasks: a model, a mode and a corpus, seen in one of several views, and the token stores that they need."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from apood.data.record import Record
from apood.encoders.base.layers import resolve_layers
from apood.encoders.base.pretrained import (
    GENERATING,
    Kind,
    Pretrained,
    find_kind,
    fingerprint,
    is_audio_model,
    load_config,
)
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import open_encoder
from apood.experiments.text.declaration import Corpus
from apood.experiments.text.texts import CorpusSets
from apood.support.files import read_json, write_json
from apood.tokens.digests import content_digest
from apood.tokens.source import Subset
from apood.tokens.store import INDEX_FILE, TokenStore

__all__ = ["AUTO", "Mode", "Model", "Task", "View", "embed_sets", "is_complete", "name_view", "open_sets", "parse_view"]

Mode = Literal["input", "output"]
View = str | int

AUTO = "auto"
"""The view that suits the kind of a model."""


@dataclass(frozen=True)
class Model:
    """A model of the benchmark.

    Attributes:
        name: its name in tables and file names.
        found: its files.
    """

    name: str
    found: Pretrained

    @cached_property
    def identity(self) -> str:
        """A digest of its files."""
        return fingerprint(self.found.folder)

    @cached_property
    def takes_sounds(self) -> bool:
        """Whether it takes sounds instead of texts."""
        return is_audio_model(self.found.folder)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that it can be used in."""
        if self.takes_sounds or find_kind(load_config(self.found)) not in GENERATING:
            return ("input",)
        return ("input", "output")

    def resolve_view(self, view: View, mode: Mode) -> View:
        """Return the view that `auto` stands for with this model in a mode, and any other view as it is."""
        if view != AUTO:
            return view
        kind: Kind = "encoder" if self.takes_sounds else find_kind(load_config(self.found))
        return parse_view(str(resolve_layers(AUTO, kind, 1, self.name, mode)))  # the depth does not matter


@dataclass(frozen=True)
class Task:
    """A model in a mode on a corpus, in one view.

    Attributes:
        model: the model.
        mode: whether states of the input or of the output are looked at.
        corpus: the corpus.
        view: the layers that a token is made of; see `apood embed --layers`.
        views: all views that the model is used in; the first is that of the default.
    """

    model: Model
    mode: Mode
    corpus: Corpus
    view: View
    views: tuple[View, ...]

    @property
    def first_view(self) -> bool:
        """Whether its view is the first."""
        return self.view == self.views[0]

    @property
    def name(self) -> str:
        """The name without the view, because rows of all views are compared: `smollm2-xsum`."""
        return "-".join([self.model.name, self.corpus.name, *([] if self.mode == "input" else [self.mode])])

    @property
    def view_name(self) -> str:
        """The view as a word."""
        return name_view(self.view)

    @property
    def view_folder(self) -> str:
        """The view in the names of folders, in which layers 4 and -4 must differ."""
        return _make_file_name(re.sub(r"-(?=\d)", "minus ", self.view_name))

    @property
    def file_name(self) -> str:
        """The name with the view, for folders."""
        return f"{self.name}-{self.view_folder}"

    def __str__(self) -> str:
        return f"{self.name}, {self.view_name}"

    @property
    def encoder_options(self) -> dict[str, Any]:
        """The arguments of the encoder."""
        options: dict[str, Any] = {"layers": self.view}
        if self.model.takes_sounds:
            return options
        options |= {"mode": self.mode, "max_tokens": self.corpus.max_tokens}
        if not self.first_view:
            options["logprobs"] = False  # the rows that read them are run on the first view
        if self.mode == "output":
            options["max_new_tokens"] = self.corpus.max_new_tokens
            if self.corpus.prompt is not None:
                options["template"] = self.corpus.prompt
        return options

    def find_stores(self, sets: CorpusSets, out: Path) -> dict[str, Path]:
        """Return the folder of each store; its name is a digest of all that decides its content."""
        found = {}
        for role, digest in sets.digests.items():
            known = json.dumps([self.model.identity, self.encoder_options, digest], sort_keys=True)
            mark = hashlib.sha256(known.encode()).hexdigest()[:12]
            found[role] = out / "stores" / self.file_name / f"{_make_file_name(role)}-{mark}"
        return found


def _make_file_name(text: str) -> str:
    return re.sub(r"\W+", "-", text).strip("-")


def is_complete(store: Path) -> bool:
    """Return whether a store was embedded to its end."""
    try:
        return isinstance(read_json(_find_mark(store)), dict) and (store / INDEX_FILE).exists()
    except (OSError, ValueError):
        return False


def _find_mark(store: Path) -> Path:
    return store.with_name(f"{store.name}.json")


def embed_sets(task: Task, sets: CorpusSets, out: Path) -> dict[str, Path]:
    """Embed the sets whose stores are not complete, and return the folders; a store that was begun is continued."""
    stores = task.find_stores(sets, out)
    waiting = {role: folder for role, folder in stores.items() if not is_complete(folder)}
    if not waiting:
        return stores
    # Texts are cut, so that ID and OOD texts differ in what they say and not in their number of windows.
    beginnings = {} if task.model.takes_sounds else {"on_long": "beginning"}
    encoder = open_encoder(task.model.found, **beginnings, **task.encoder_options)
    for role, folder in waiting.items():
        folder.parent.mkdir(parents=True, exist_ok=True)
        records = [Record(item, f"{role} {number}") for number, item in enumerate(sets.items[role])]
        counts = embed_to_store(records, encoder, folder, resume=True, total=len(records))
        store = TokenStore(folder, channels=())
        facts = {"role": role, "sequences": len(store), "tokens": store.tokens, "truncated": counts.truncated}
        write_json(_find_mark(folder), facts | {"digest": content_digest(store)})
    del encoder
    torch.cuda.empty_cache()  # the fits need the memory
    return stores


class _Held(Subset):
    """Sequences of a store, in the memory of a GPU.

    It is known by the digest of the store, which need not be read again for every fit.
    """

    def __init__(self, store: TokenStore, kept: torch.Tensor, device: torch.device) -> None:
        super().__init__(store, kept)
        self._held = store.select(self.indices).to(device)

    def select(self, indices: Any) -> Any:
        """Return the sequences `indices` in that order."""
        return self._held.select(indices)


def open_sets(stores: Mapping[str, Path], channels: Collection[str], device: torch.device) -> dict[str, Subset]:
    """Return the sequences of each store with some channels, on a GPU if that is the device; empty ones are left out.

    The first token of a text has no log-probability. Where these are read, texts of one token are left out as well.
    """
    least = 2 if "token_logprobs" in channels else 1
    found: dict[str, Subset] = {}
    for role, folder in stores.items():
        store = TokenStore(folder, channels=channels)
        kept = store.lengths >= least
        found[role] = Subset(store, kept) if device.type == "cpu" else _Held(store, kept, device)
    return found


def parse_view(text: str) -> View:
    """Return a view as an encoder takes it: a whole number, or a word; `last` is -1."""
    if text == "last":
        return -1
    try:
        return int(text)
    except ValueError:
        return text


def name_view(view: View) -> str:
    """Return a view as a word: the last layer is `last`."""
    return "last" if view == -1 else str(view)
