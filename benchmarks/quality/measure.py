"""Embeds the texts of a task, runs every method on it as one study, and keeps the scores."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from apood.detectors.contract.base import Scores
from apood.encoders.embed import embed_to_store
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.entry import Entry
from apood.evaluation.split import Split
from apood.evaluation.study import run_study
from apood.support.device import resolve_device
from apood.support.files import atomic_file, write_json
from apood.support.provenance import device_name
from apood.support.version import __version__
from apood.tokens.batch import TokenBatch
from apood.tokens.store import TokenStore
from benchmarks.quality.tasks import AUX, OOD, TEST, TRAIN, Task, read_texts

__all__ = [
    "AUX_COUNTS", "CONTROL", "DEFAULT", "SUPERVISED", "UNSUPERVISED", "Measured", "embed", "find_scores", "find_stores",
    "measure", "name_with_count", "read_measured",
]  # fmt: skip

AUX_COUNTS = (0, 8, 64, 512, 1000)
DEFAULT, CONTROL = "default (fusion)", "length only"
UNSUPERVISED = [
    Entry("default", name=DEFAULT),
    Entry("ap-ood", name="AP-OOD"),
    Entry("mahalanobis-knn", name="Mahalanobis-KNN"),
    Entry("mahalanobis", {"normalize": "none"}, "Mahalanobis, raw"),
    Entry("mahalanobis", {"normalize": "tokens"}, "Mahalanobis, tokens"),
    Entry("mahalanobis", {"normalize": "pooled"}, "Mahalanobis, pooled"),
    Entry("knn", {"normalize": "none"}, "KNN, raw"),
    Entry("knn", {"normalize": "tokens"}, "KNN, tokens"),
    Entry("knn", {"normalize": "pooled"}, "KNN, pooled"),
    Entry("knn", {"k": 1, "normalize": "pooled"}, "KNN 1, pooled"),
    Entry("deep-svdd", name="Deep SVDD, raw"),
    Entry("deep-svdd", {"normalize": "pooled"}, "Deep SVDD, pooled"),
    Entry("length", name=CONTROL),
]
SUPERVISED = [
    Entry("ap-ood", name="AP-OOD, AUX", aux="all"),
    Entry("deep-sad", name="Deep SAD", aux="all"),
    Entry("binary-logits", name="binary logits", aux="all"),
    Entry("relative-mahalanobis", name="relative Mahalanobis", aux="all"),
]
_SEEDS = 3
_DEVICE = resolve_device()


class Measured(NamedTuple):
    """Scores by (method, seed, set), and costs in seconds by (method, seed)."""

    task: Task
    machine: str
    scores: dict[tuple[str, int, str], Scores]
    costs: dict[tuple[str, int], dict[str, float]]


def find_stores(task: Task, work: Path) -> Path:
    """Return the folder with the token stores of a task."""
    return work / "stores" / task.name


def find_scores(task: Task, work: Path) -> Path:
    """Return the file with the scores of all methods on a task; the costs are beside it as JSON."""
    return work / f"{task.name}.safetensors"


def embed(tasks: Sequence[Task], model: Path, data: Path, work: Path) -> None:
    """Write the stores of tasks that share a backbone; existing stores are kept."""
    for task in tasks:
        encoder = TextEncoder(model, max_tokens=task.max_tokens, device=str(_DEVICE))
        begun = time.perf_counter()
        for name, part in read_texts(task, data).items():
            embed_to_store(
                [text for text in part if text.strip()], encoder, find_stores(task, work) / name, resume=True
            )
        print(f"{task.name}: embedded in {time.perf_counter() - begun:.0f} s", flush=True)


def measure(assignment: tuple[Task, Path, bool]) -> None:
    """Run all methods on a task with all seeds, and write their scores and costs.

    An assignment is a task, the working folder, and whether to run growing numbers of AUX sequences as well.
    """
    task, work, curve = assignment
    begun = time.perf_counter()
    sets = {folder.name: _read_store(folder) for folder in sorted(find_stores(task, work).iterdir())}
    ood = {name.removeprefix(OOD): own for name, own in sets.items() if name.startswith(OOD)}
    data = Split(sets[TRAIN], sets[TEST], ood, sets.get(AUX))
    splits = [replace(data, seed=seed) for seed in range(_SEEDS)]
    entries = _list_entries(has_aux=AUX in sets, curve=curve)
    results = run_study(
        [(entry, splits) for entry in entries],
        cache=work / "cache",
        tabulate=False,
        on_run=lambda entry, _: print(f"{task.name}: {entry.label}", flush=True),
    )
    scores: dict[str, Scores] = {}
    costs: dict[str, dict[str, float]] = {}
    for result in results:
        for failure in result.failure_notes:
            print(f"{task.name}: {result.entry.label} failed, {failure}", flush=True)
        for run in result.runs:
            key = f"{result.entry.label}|{run.seed}"
            costs[key] = {"fit": run.fit_seconds, "score": run.seconds_per_thousand}
            scores |= {f"{key}|{name}": own for name, own in {TEST: run.test_scores, **run.ood_scores}.items()}
    with atomic_file(find_scores(task, work)) as temporary:
        save_file({key: value.astype(np.float32) for key, value in scores.items()}, temporary)
    machine = f"{device_name(_DEVICE)}, apood {__version__}, torch {torch.__version__}"
    write_json(find_scores(task, work).with_suffix(".json"), {"machine": machine, "costs": costs})
    print(f"{task.name}: measured in {time.perf_counter() - begun:.0f} s", flush=True)


def _list_entries(*, has_aux: bool, curve: bool) -> list[Entry]:
    if not has_aux:
        return UNSUPERVISED
    counted = [
        replace(entry, name=name_with_count(entry, count), aux=count)
        for entry in SUPERVISED
        for count in AUX_COUNTS
        if count or entry.kind().aux != "required"
    ]
    return [*UNSUPERVISED, *SUPERVISED, *(counted if curve else [])]


def name_with_count(entry: Entry, count: int) -> str:
    """Return the label of an entry that learns from `count` AUX sequences."""
    return f"{entry.label}, N'={count}"


def _read_store(folder: Path) -> TokenBatch:
    """Return the sequences of a store that have tokens, in the memory of the device."""
    store = TokenStore(folder, channels=())
    batch = store.select(store.lengths > 0).to(_DEVICE)
    assert isinstance(batch, TokenBatch)
    return batch


def read_measured(task: Task, work: Path) -> Measured | None:
    """Return the results of `measure`, or None if it has not run."""
    path = find_scores(task, work)
    if not path.exists():
        return None
    scores = {}
    for key, value in load_file(path).items():
        label, seed, name = key.split("|")
        scores[label, int(seed), name] = value.astype(np.float64)
    kept = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    costs = {(key.split("|")[0], int(key.split("|")[1])): cost for key, cost in kept["costs"].items()}
    return Measured(task, kept["machine"], scores, costs)
