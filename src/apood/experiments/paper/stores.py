"""The token stores of an experiment: which there are, and how they come to be.

A store is known by what went into it, so experiments that share a folder share their stores. It is complete when a
file beside it says so; one that is not goes on where it stopped.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apood.data.inputs import read_records, shuffle_records
from apood.data.record import BadRecord, Record
from apood.data.sounds import read_sounds
from apood.encoders.audio.encoder import AudioEncoder
from apood.encoders.base.encoder import Encoder
from apood.encoders.embed import EmbedCounts, embed_to_store, limit_records
from apood.encoders.factory import open_encoder
from apood.experiments.paper.data import OOD, Data, Source, files_of
from apood.experiments.paper.model import Model
from apood.experiments.paper.tasks import Mode, Task
from apood.support.checks import format_count
from apood.support.errors import InputError
from apood.support.files import read_json, sha256_of, write_json
from apood.tokens.digest import content_digest
from apood.tokens.store import TokenStore

__all__ = ["Embedding", "embed_all", "embeddings", "file_digests", "records_of", "refuse_too_few", "text_lengths"]

_Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]
_LEAST = {"id": 4, "id_train": 3, "id_test": 1, "aux": 3}


@dataclass(frozen=True)
class Embedding:
    """One set in one mode, as a token store.

    Attributes:
        role: of the set.
        mode: whose states.
        source: where the set comes from.
        limit: how many sequences at most.
        options: of the encoder.
        folder: of the store.
    """

    role: str
    mode: Mode
    source: Source
    limit: int
    options: dict[str, Any]
    folder: Path

    @property
    def done(self) -> dict[str, Any] | None:
        """What a complete store says of itself; None while it is not complete."""
        try:
            content = read_json(self._note)
            return content if isinstance(content, dict) and (self.folder / "index.json").exists() else None
        except (OSError, ValueError):
            return None

    @property
    def _note(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def finish(self, counts: EmbedCounts) -> None:
        """Says that the store is complete, and what went into it."""
        store = TokenStore(self.folder, channels=())
        write_json(
            self._note,
            {
                "role": self.role,
                "mode": self.mode,
                "inputs": list(self.source.inputs),
                "files": file_digests(self.source),
                "sequences": len(store),
                "tokens": store.tokens,
                "dim": store.dim,
                "skipped_as_bad": counts.bad,
                "encoder": dict(store.encoder or {}),
                "digest": content_digest(store),
            },
        )


def embeddings(
    task: Task, data: Data, model: Model, folder: Path, modes: Sequence[Mode], *, sampled: bool
) -> list[Embedding]:
    """Every store that an experiment needs below `folder`.

    Outputs are drawn for an experiment that is `sampled`. Another one does without, unless what it wants is there with
    them already.
    """
    wanted = {"id": data.settings.train, "id_train": data.settings.train, "aux": data.settings.aux}

    def embedding(mode: Mode, role: str, samples: int) -> Embedding:
        source, options = data.sources[role], _encoder_options(task, data, mode, samples)
        limit = data.settings.stored(wanted.get(role, data.settings.evaluated))
        known = [model.identity, options, _known_by(source), _binding(source, task, limit)]
        digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
        name = re.sub(r"\W+", "-", role.removeprefix(OOD).lower()).strip("-")
        return Embedding(role, mode, source, limit, options, folder / f"{name}-{mode}-{digest}")

    found = []
    for mode in modes:
        for role in data.sources:
            # the entropy is learnt from nothing: what is never scored needs no samples
            drawn = data.settings.samples if mode == "output" and role not in ("id_train", "aux") else 0
            numbers = [drawn] if sampled else dict.fromkeys((0, drawn))
            either = [embedding(mode, role, samples) for samples in numbers]
            found.append(next((one for one in either if one.done is not None), either[0]))
    return found


def _known_by(source: Source) -> list[Any]:
    """What a set is, wherever its files lie."""
    digests = file_digests(source)
    return [[digests.get(name, name) for name in source.inputs], source.field, source.labels]


def _binding(source: Source, task: Task, limit: int) -> int | list[int | str] | None:
    """The limit where it leaves something out: experiments that take all of a file share its store."""
    if task.items == "texts" and source.local and len(text_lengths(source, limit)) < limit:
        return None
    return [limit, "drawn"] if source.drawn else limit  # stores of the first so many have been known by the limit alone


def text_lengths(source: Source, limit: int) -> _Lengths:
    """The characters of the texts that can be used; refused if the first cannot, since all may be the same."""
    return _text_lengths(source, limit, tuple(file_digests(source).values()))


@lru_cache(maxsize=64)
def _text_lengths(source: Source, limit: int, digests: tuple[str, ...]) -> _Lengths:  # noqa: ARG001
    """Read once, as long as the files are the same."""
    lengths: list[int] = []
    for number, record in enumerate(limit_records(read_records(source.inputs, field=source.field), limit)):
        if isinstance(record, Record):
            lengths.append(len(record.item))
        elif number == 0:
            raise InputError(record.reason)
    return np.array(lengths, dtype=np.int64)


def _encoder_options(task: Task, data: Data, mode: Mode, samples: int) -> dict[str, Any]:
    if task.items == "sounds":
        return {}
    settings = data.settings
    if mode == "input":
        return {"mode": mode, "max_tokens": settings.max_tokens, "logprobs": None if task.input_logprobs else False}
    prompt = {} if data.prompt is None else {"template": data.prompt}
    limits = {"max_tokens": settings.max_tokens, "max_new_tokens": settings.max_new_tokens}
    return {"mode": mode, **limits, "samples": samples, **prompt}


def embed_all(wanted: Sequence[Embedding], task: Task, model: Model) -> None:
    """Makes the stores that are not complete; the model is loaded only if there are any."""
    waiting = [embedding for embedding in wanted if embedding.done is None]
    while waiting:
        options = waiting[0].options
        own = [embedding for embedding in waiting if embedding.options == options]
        waiting = [embedding for embedding in waiting if embedding.options != options]
        encoder = open_encoder(model.found or model.given, **options)
        for embedding in own:
            embedding.folder.parent.mkdir(parents=True, exist_ok=True)
            records = records_of(embedding, task, encoder)
            counts = embed_to_store(
                records, encoder, embedding.folder, resume=True, skip_bad=True, total=_total(embedding)
            )
            refuse_too_few(embedding.role, len(TokenStore(embedding.folder, channels=())))
            embedding.finish(counts)
        del encoder
        torch.cuda.empty_cache()  # fits in other processes need what a model has left behind


def _total(embedding: Embedding) -> int | None:
    return None if embedding.source.local else embedding.limit


def refuse_too_few(role: str, count: int) -> None:
    """A split needs some sequences of every set."""
    if count < (least := _LEAST.get(role, 1)):
        raise InputError(
            f"{role} has {format_count(count, 'sequence')} that can be used, and at least {least} are needed."
        )


def records_of(embedding: Embedding, task: Task, encoder: Encoder | None = None) -> Iterator[Record | BadRecord]:
    """As many records of a set as are wanted: texts of this machine at random, since they may be in order of kind."""
    source, limit = embedding.source, embedding.limit
    if task.items == "sounds":
        needs = {}
        if isinstance(encoder, AudioEncoder):
            needs = {"rate": encoder.rate, "least_samples": encoder.least_samples}
        sounds = read_sounds(source.inputs, **needs)
        own = (r for r in sounds if isinstance(r, BadRecord) or not source.labels or r.item.label in source.labels)
        return limit_records(own, limit)
    records = read_records(source.inputs, field=source.field)
    if source.drawn:
        return _drawn(records, limit)
    return limit_records(shuffle_records(records, 0) if source.shuffled else records, limit)


def _drawn(records: Iterable[Record | BadRecord], count: int) -> Iterator[Record | BadRecord]:
    """Every bad record, then `count` of the others at random: one pass, which never holds more than these."""
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
    dice.shuffle(held)  # those that came first would still be in their places
    yield from held


def file_digests(source: Source) -> dict[str, str]:
    """What the files of a set are, by their paths; nothing for what does not lie in files of its own."""
    found = {}
    for name in source.inputs:
        if Path(name).is_file():
            found[name] = _digest(Path(name))
        elif files := files_of(name):
            own = [(file.name, _digest(file)) for file in files]
            found[name] = hashlib.sha256(json.dumps(own).encode()).hexdigest()
    return found


def _digest(path: Path) -> str:
    there = path.stat()
    return _file_digest(path, there.st_size, there.st_mtime_ns)


@cache
def _file_digest(path: Path, size: int, changed: int) -> str:  # noqa: ARG001
    """Read once, as long as size and time of change are the same: every mode and every step asks for it."""
    return sha256_of(path)
