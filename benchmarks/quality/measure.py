"""Embeds the texts of a task, fits every method on it, and keeps the scores."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from apood.detectors.contract.base import Scores
from apood.encoders.embed import embed_to_store
from apood.encoders.text.encoder import TextEncoder
from apood.support.files import atomic_file, write_json
from apood.support.version import __version__
from apood.tokens.batch import TokenBatch
from apood.tokens.store import TokenStore
from benchmarks.quality.contenders import CONTENDERS, SUPERVISED, Contestant
from benchmarks.quality.tasks import Task, read_texts

__all__ = ["AUX_COUNTS", "Assignment", "Measured", "Work", "embed", "measure", "read_measured"]

AUX_COUNTS = (0, 8, 64, 512, 1000)
SEEDS = 3
_TRAIN, _TEST, _AUX, _OOD = "train", "test", "aux", "ood-"
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Work:
    """Where everything lies."""

    folder: Path

    def stores(self, task: Task) -> Path:
        """The token stores of a task."""
        return self.folder / "stores" / task.name

    def scores(self, task: Task) -> Path:
        """The scores of all methods on a task; the costs lie beside them as JSON."""
        return self.folder / f"{task.name}.safetensors"


class Measured(NamedTuple):
    """Scores by (method, seed, set), and seconds by (method, seed)."""

    task: Task
    machine: str
    scores: dict[tuple[str, int, str], Scores]
    costs: dict[tuple[str, int], dict[str, float]]


def embed(tasks: Sequence[Task], model: Path, data: Path, work: Work) -> None:
    """Writes the stores of tasks that share a backbone; what is there already stays."""
    for task in tasks:
        texts = read_texts(task.texts, data)
        sets = {_TRAIN: texts.train, _TEST: texts.test} | {f"{_OOD}{name}": part for name, part in texts.ood.items()}
        if texts.aux:
            sets[_AUX] = texts.aux
        encoder = TextEncoder(model, max_tokens=task.max_tokens, device=_DEVICE)
        begun = time.perf_counter()
        for name, part in sets.items():
            embed_to_store([text for text in part if text.strip()], encoder, work.stores(task) / name, resume=True)
        print(f"{task.name}: embedded in {time.perf_counter() - begun:.0f} s", flush=True)


class Assignment(NamedTuple):
    """What one process measures; with `curve` also on growing parts of the AUX sequences."""

    task: Task
    work: Work
    curve: bool


def measure(assignment: Assignment) -> str:
    """Fits and scores all methods, each on all seeds; returns the name of the task."""
    task, work, curve = assignment
    begun = time.perf_counter()
    sets = {folder.name: _in_memory(folder) for folder in sorted(work.stores(task).iterdir())}
    scores: dict[str, Scores] = {}
    costs: dict[str, dict[str, float]] = {}
    for label, contestant, seed, aux in _runs(sets, curve):
        key = f"{label}|{seed}"
        detector = contestant.build(seed)
        started = time.perf_counter()
        detector.fit(sets[_TRAIN], aux)
        fitted = time.perf_counter()
        tested = [name for name in sets if name not in (_TRAIN, _AUX)]
        for name in tested:
            scores[f"{key}|{name.removeprefix(_OOD)}"] = detector.score_samples(sets[name])
        thousands = sum(len(sets[name]) for name in tested) / 1000
        costs[key] = {"fit": fitted - started, "score": (time.perf_counter() - fitted) / thousands}
        print(f"{task.name}: {key} {time.perf_counter() - started:.1f} s", flush=True)
    with atomic_file(work.scores(task)) as temporary:
        save_file({key: value.astype(np.float32) for key, value in scores.items()}, temporary)
    write_json(work.scores(task).with_suffix(".json"), {"machine": _machine(), "costs": costs})
    print(f"{task.name}: measured in {time.perf_counter() - begun:.0f} s", flush=True)
    return task.name


def _runs(sets: dict[str, TokenBatch], curve: bool) -> Iterator[tuple[str, Contestant, int, TokenBatch | None]]:
    aux = sets.get(_AUX)
    for contestant in CONTENDERS:
        if contestant.aux and aux is None:
            continue
        for seed in range(SEEDS if contestant.seeded else 1):
            yield contestant.label, contestant, seed, aux if contestant.aux else None
    if curve and aux is not None:
        for contestant in SUPERVISED:
            for count in AUX_COUNTS:
                label = f"{contestant.label}, N'={count}"
                if count == 0 and contestant.method in ("binary-logits", "relative-mahalanobis"):
                    continue  # not defined without AUX
                for seed in range(SEEDS if contestant.seeded else 1):
                    yield label, contestant, seed, aux.select(slice(count)) if count else None


def _machine() -> str:
    name = torch.cuda.get_device_name() if _DEVICE == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return f"{name}, apood {__version__}, torch {torch.__version__}"


def _in_memory(folder: Path) -> TokenBatch:
    store = TokenStore(folder, channels=())
    batch = store.select(store.lengths > 0).to(_DEVICE)
    assert isinstance(batch, TokenBatch)
    return batch


def read_measured(task: Task, work: Work) -> Measured | None:
    """What `measure` found, or None where it has not run."""
    path = work.scores(task)
    if not path.exists():
        return None
    scores = {}
    for key, value in load_file(path).items():
        label, seed, name = key.split("|")
        scores[label, int(seed), name] = value.astype(np.float64)
    kept = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    costs = {(key.split("|")[0], int(key.split("|")[1])): cost for key, cost in kept["costs"].items()}
    return Measured(task, kept["machine"], scores, costs)
