"""The token stores of an experiment: which are needed, and how they are made.

A store is identified by a digest of its inputs, so experiments that share a folder share their stores. A store is
complete when a file beside it says so; embedding resumes one that is not.
"""

import hashlib
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from apood.data.inputs import AUDIO_ENDINGS, find_files, read_records, shuffle_records
from apood.data.record import BadRecord, Record
from apood.data.sounds import read_sounds
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.base.encoder import Encoder
from apood.encoders.embed import EmbedCounts, embed_to_store, limit_records
from apood.encoders.opening import open_encoder
from apood.experiments.paper.data_sets import OOD, DataSet, DataSets
from apood.experiments.paper.model_facts import ModelFacts
from apood.experiments.paper.tasks import SHARE, Mode, Task
from apood.support.checks import format_count
from apood.support.errors import InputError
from apood.support.files import read_json, sha256_of, write_json
from apood.tokens.digests import content_digest
from apood.tokens.store import INDEX_FILE, TokenStore

__all__ = ["Embedding", "Size", "embed_all", "file_digests", "list_embeddings", "read_set"]

_Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]
_FEWEST = {"id": 4, "id_train": 3, "id_test": 1, "aux": 3}
_CHARACTERS_PER_TOKEN = 4  # of English, with most tokenizers
_OUTPUT_TOKENS = 64  # of a summary or a sentence
_PATCHES = 128  # of a sound


class Size(NamedTuple):
    """The number of sequences of a set, and their mean number of tokens."""

    sequences: int
    tokens: float


@dataclass(frozen=True)
class Embedding:
    """One set in one mode, as a token store.

    Attributes:
        role: the role of the set.
        mode: whether states of the input or of the output are stored.
        data: the set.
        limit: the largest number of sequences.
        options: the options of the encoder.
        folder: the folder of the store.
    """

    role: str
    mode: Mode
    data: DataSet
    limit: int
    options: dict[str, Any]
    folder: Path

    @property
    def done(self) -> dict[str, Any] | None:
        """The facts of a complete store; None while it is not complete."""
        try:
            content = read_json(self._facts_path)
            return content if isinstance(content, dict) and (self.folder / INDEX_FILE).exists() else None
        except (OSError, ValueError):
            return None

    @property
    def _facts_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def finish(self, counts: EmbedCounts) -> None:
        """Write the file that marks the store as complete."""
        store = TokenStore(self.folder, channels=())
        facts = {
            "role": self.role,
            "mode": self.mode,
            "inputs": list(self.data.inputs),
            "files": file_digests(self.data),
            "sequences": len(store),
            "tokens": store.tokens,
            "dim": store.dim,
            "skipped_as_bad": counts.bad,
            "encoder": dict(store.encoder or {}),
            "digest": content_digest(store),
        }
        write_json(self._facts_path, facts)

    def estimate_size(self, task: Task) -> Size:
        """Return the size of the store: exact if it is complete, else counted from local files or the limit.

        Raise InputError if a local set has too few records, or if its first record cannot be used.
        """
        if (done := self.done) is not None:
            return Size(done["sequences"], done["tokens"] / max(done["sequences"], 1))
        if task.items == "sounds":
            count = sum(isinstance(record, Record) for record in read_set(self, task))
            _refuse_too_few(self.role, count)
            return Size(count, _PATCHES)
        size = Size(self.limit, self.options["max_tokens"])
        if self.data.local:
            lengths = _measure_texts(self.data, self.limit)
            _refuse_too_few(self.role, len(lengths))
            size = Size(len(lengths), float(np.minimum(lengths / _CHARACTERS_PER_TOKEN, size.tokens).mean()))
        if self.mode == "output":
            return Size(size.sequences, min(_OUTPUT_TOKENS, self.options["max_new_tokens"]))
        return size


def list_embeddings(
    task: Task,
    data: DataSets,
    model: ModelFacts,
    folder: Path,
    modes: Sequence[Mode],
    *,
    sampled: bool,
    beams: int = 1,
    layers: Literal[-1, "auto"] = -1,
) -> list[Embedding]:
    """Return every store that an experiment needs below `folder`.

    Outputs are sampled only if the experiment needs samples (`sampled`), but stores with samples are reused. They are
    generated with `beams` beams. Tokens are states of the last layer, as in the paper, or of the layers that apood
    chooses for the model.
    """
    wanted = {"id": data.settings.train, "id_train": data.settings.train, "aux": data.settings.aux}

    def embedding(mode: Mode, role: str, samples: int) -> Embedding:
        own, options = data.by_role[role], _make_encoder_options(task, data, mode, samples, beams)
        if layers != -1:  # stores of the last layer were made before there was a choice
            options["layers"] = layers
        limit = math.ceil(wanted.get(role, data.settings.evaluated) / SHARE)  # a split draws a share of the store
        known = [model.identity, options, _describe_set(own), _describe_limit(own, task, limit)]
        digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
        name = re.sub(r"\W+", "-", role.removeprefix(OOD).lower()).strip("-")
        return Embedding(role, mode, own, limit, options, folder / f"{name}-{mode}-{digest}")

    found = []
    for mode in modes:
        for role in data.by_role:
            # The entropy learns nothing, so sets that are never scored need no samples.
            samples = data.settings.samples if mode == "output" and role not in ("id_train", "aux") else 0
            either = [embedding(mode, role, count) for count in ([samples] if sampled else {0: None, samples: None})]
            found.append(next((one for one in either if one.done is not None), either[0]))
    return found


def _describe_set(own: DataSet) -> list[Any]:
    """Return what identifies a set, wherever its files are."""
    digests = file_digests(own)
    return [[digests.get(name, name) for name in own.inputs], own.field, own.labels]


def _describe_limit(own: DataSet, task: Task, limit: int) -> int | list[int | str] | None:
    """Return what identifies the limit; None if it leaves nothing out, so that experiments share the store."""
    if task.items == "texts" and own.local and len(_measure_texts(own, limit)) < limit:
        return None
    return [limit, "drawn"] if own.sampled else limit  # stores of the first `limit` records were made before


def _make_encoder_options(task: Task, data: DataSets, mode: Mode, samples: int, beams: int) -> dict[str, Any]:
    if task.items == "sounds":
        return {}
    settings = data.settings
    if mode == "input":
        return {"mode": mode, "max_tokens": settings.max_tokens, "logprobs": None if task.input_logprobs else False}
    prompt = {} if data.prompt is None else {"template": data.prompt}
    limits = {"max_tokens": settings.max_tokens, "max_new_tokens": settings.max_new_tokens}
    search = {"beams": beams} if beams > 1 else {}
    return {"mode": mode, **limits, "samples": samples, **search, **prompt}


def embed_all(wanted: Sequence[Embedding], task: Task, model: ModelFacts) -> None:
    """Make the stores that are not complete; the model is loaded only if there are any."""
    waiting = [embedding for embedding in wanted if embedding.done is None]
    while waiting:
        options = waiting[0].options
        own = [embedding for embedding in waiting if embedding.options == options]
        waiting = [embedding for embedding in waiting if embedding.options != options]
        # As in the paper: the beginnings of long texts, and the last layer if nothing else is said.
        beginnings = {} if task.items == "sounds" else {"on_long": "beginning"}
        encoder = open_encoder(model.found or model.given, **{"layers": -1, **beginnings, **options})
        for embedding in own:
            embedding.folder.parent.mkdir(parents=True, exist_ok=True)
            records, total = read_set(embedding, task, encoder), None if embedding.data.local else embedding.limit
            counts = embed_to_store(records, encoder, embedding.folder, resume=True, skip_bad=True, total=total)
            _refuse_too_few(embedding.role, len(TokenStore(embedding.folder, channels=())))
            embedding.finish(counts)
        del encoder
        torch.cuda.empty_cache()  # fits in other processes need the memory


def _refuse_too_few(role: str, count: int) -> None:
    if count < (fewest := _FEWEST.get(role, 1)):
        raise InputError(
            f"{role} has {format_count(count, 'sequence')} that can be used; at least {fewest} are needed."
        )


def read_set(embedding: Embedding, task: Task, encoder: Encoder | None = None) -> Iterator[Record | BadRecord]:
    """Yield up to `limit` records; texts on this machine in random order, since files may be sorted by kind."""
    own, limit = embedding.data, embedding.limit
    if task.items == "sounds":
        needs = {}
        if isinstance(encoder, AudioEncoder):
            needs = {"rate": encoder.rate, "least_samples": encoder.least_samples}
        sounds = read_sounds(own.inputs, **needs)
        labelled = (r for r in sounds if isinstance(r, BadRecord) or not own.labels or r.item.label in own.labels)
        return limit_records(labelled, limit)
    records = read_records(own.inputs, field=own.field)
    if own.sampled:
        return _sample(records, limit)
    return limit_records(shuffle_records(records, 0) if own.shuffled else records, limit)


def _sample(records: Iterable[Record | BadRecord], count: int) -> Iterator[Record | BadRecord]:
    """Yield every bad record, then `count` others at random, in one pass that never holds more (reservoir sampling)."""
    dice, held, seen = random.Random(0), list[Record](), 0
    for record in records:
        if isinstance(record, BadRecord):
            yield record
            continue
        seen += 1
        if len(held) < count:
            held.append(record)
        elif (place := dice.randrange(seen)) < count:
            held[place] = record
    dice.shuffle(held)  # the first records would otherwise keep their places
    yield from held


def _measure_texts(own: DataSet, limit: int) -> _Lengths:
    return _count_characters(own, limit, tuple(file_digests(own).values()))


@lru_cache(maxsize=64)
def _count_characters(own: DataSet, limit: int, digests: tuple[str, ...]) -> _Lengths:  # noqa: ARG001
    """Return the characters of each usable text, read again only if the files change.

    Raise InputError if the first record is bad, since all may be bad for the same reason.
    """
    lengths: list[int] = []
    for number, record in enumerate(limit_records(read_records(own.inputs, field=own.field), limit)):
        if isinstance(record, Record):
            lengths.append(len(record.item))
        elif number == 0:
            raise InputError(record.reason)
    return np.array(lengths, dtype=np.int64)


def file_digests(own: DataSet) -> dict[str, str]:
    """Return a digest of the files of each input that has files on this machine."""
    found = {}
    for name in own.inputs:
        if Path(name).is_file():
            found[name] = _digest(Path(name))
        elif files := find_files(name, AUDIO_ENDINGS):
            content = [(file.name, _digest(file)) for file in files]
            found[name] = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return found


def _digest(path: Path) -> str:
    facts = path.stat()
    return _file_digest(path, facts.st_size, facts.st_mtime_ns)


@cache
def _file_digest(path: Path, size: int, changed: int) -> str:  # noqa: ARG001
    """Return the digest of a file, read again only if its size or time of change differs."""
    return sha256_of(path)
