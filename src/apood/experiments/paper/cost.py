"""What an experiment will do, and about how much disk and time it needs."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import resolve
from apood.detectors.knn import KNN
from apood.experiments.paper.data_sets import OOD, DataSets
from apood.experiments.paper.experiment import Experiment
from apood.experiments.paper.idealised import IdealisedKernel
from apood.experiments.paper.model_facts import ModelFacts
from apood.experiments.paper.multiple_instance import read_bags
from apood.experiments.paper.stores import Embedding, Size
from apood.experiments.paper.study_data import RecipeChoice, Row, TableContext, search_grid
from apood.experiments.paper.tasks import SHARE, Mode
from apood.support.checks import format_count, format_duration
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.provenance import device_name

__all__ = ["CostEstimate", "estimate_cost", "refuse_little_disk"]

# Floating-point operations per second, on a GPU or per CPU thread: measured on an H200 and on two cores.
_READING = {"cuda": 6e13, "cpu": 1e11}
_FITTING = {"cuda": 4e14, "cpu": 4e10}
_GENERATING = {"cuda": 20.0, "cpu": 2.0}  # how much slower a token is generated than read
_EACH_FIT = 2.0  # seconds to read, check, score and save, however small the fit
_STORED_BYTES = 2  # float16
_TRAINED_ON_TOKENS = (APOOD, IdealisedKernel)  # all other methods learn from one vector per sequence

_Sizes = dict[tuple[Mode, str], Size]


@dataclass(frozen=True)
class CostEstimate:
    """What an experiment will do and what it will cost.

    Attributes:
        facts: for people, in the order of display.
        disk: bytes that will be written, about.
        seconds: the time it will take, about.
    """

    facts: dict[str, object]
    disk: int
    seconds: float


def estimate_cost(
    experiment: Experiment,
    data: DataSets,
    model: ModelFacts | None,
    wanted: Sequence[Embedding],
    *,
    seeds: int,
    recipe: RecipeChoice,
    out: Path,
) -> CostEstimate:
    """Return the estimate; local files that are not embedded yet are read once for it."""
    facts: dict[str, object] = {"left out": ", ".join(data.left_out)} if data.left_out else {}
    sizes: _Sizes
    disk, seconds = 0, 0.0
    if model is None:
        bags = read_bags(data)
        dim = next(iter(bags.values())).dim
        sizes = {("input", role): Size(len(own), len(own.values) / len(own)) for role, own in bags.items()}
        facts["bags"] = {role.removeprefix(OOD): f"{len(own)} bags of D = {dim}" for role, own in bags.items()}
    else:
        dim, sizes = model.dim, {(e.mode, e.role): e.estimate_size(experiment.task) for e in wanted}
        waiting = [e for e in wanted if e.done is None]
        facts |= {"model": _describe_model(model, experiment)} | _list_downloads(model, waiting)
        for mode in dict.fromkeys(mode for mode, _ in sizes):
            own = {e.role.removeprefix(OOD): _describe_set(e, sizes[mode, e.role]) for e in wanted if e.mode == mode}
            facts[f"embed, {mode}"] = own
        disk = sum(round(math.prod(sizes[e.mode, e.role]) * dim * _STORED_BYTES) for e in waiting)
        seconds = sum(_count_operations(e, sizes[e.mode, e.role], model) for e in waiting) / _estimate_speed(_READING)
    for mode in dict.fromkeys(mode for mode, _ in sizes):
        text, fit_seconds, fit_disk = _estimate_fits(experiment, mode, sizes, data, dim, seeds, recipe)
        facts[f"fit, {mode}"] = text
        disk, seconds = disk + fit_disk, seconds + fit_seconds
    facts["disk"] = f"about {_format_bytes(disk)} below {out}, where {_format_bytes(_free_bytes(out))} are free"
    facts["time"] = f"about {format_duration(seconds)} on {device_name()}, by order of magnitude"
    return CostEstimate(facts, disk, seconds)


def refuse_little_disk(cost: CostEstimate, out: Path) -> None:
    """Raise InputError if the experiment would fill the disk."""
    if (free := _free_bytes(out)) < cost.disk:
        raise InputError(
            f"The experiment needs about {_format_bytes(cost.disk)} of disk below {out}, where only "
            f"{_format_bytes(free)} are free."
        )


def _describe_model(model: ModelFacts, experiment: Experiment) -> str:
    lost = [mode for mode in experiment.modes if mode in experiment.task.modes and mode not in model.modes]
    without = f"; it generates nothing, so {lost[0]} is left out" if lost else ""
    size = f"{model.parameters / 1e6:,.0f} million" if model.parameters >= 1e6 else f"{model.parameters:,}"
    return f"{model.given}: D = {model.dim}, about {size} parameters{without}"


def _list_downloads(model: ModelFacts, waiting: Sequence[Embedding]) -> dict[str, object]:
    wanted = [] if model.found is not None else [f"{model.given} (about {_format_bytes(4 * model.parameters)})"]
    streamed = dict.fromkeys(name for e in waiting if not e.data.local for name in e.data.inputs)
    wanted += [f"{name}, streamed" for name in streamed]
    return {"download": "\n".join(wanted)} if wanted else {}


def _describe_set(embedding: Embedding, size: Size) -> str:
    local = embedding.data.local
    names = ", ".join(Path(name).name if local else name for name in embedding.data.inputs)
    count = f"{size.sequences:,}" if local else f"the first {size.sequences:,}"
    if embedding.data.sampled and size.sequences == embedding.limit:
        count = f"{count} at random"
    if embedding.done is not None:
        return f"{count} from {names}, done"
    return f"{'' if local else 'at most '}{count} from {names}, about {size.tokens:,.0f} tokens each"


def _count_operations(embedding: Embedding, size: Size, model: ModelFacts) -> float:
    if embedding.mode == "input":
        return 2 * model.parameters * size.sequences * size.tokens
    outputs = int(embedding.options.get("beams", 1)) + int(embedding.options["samples"])
    slower = _GENERATING[resolve_device().type]
    tokens = float(embedding.options["max_tokens"]) + slower * outputs * size.tokens
    return 2 * model.parameters * size.sequences * tokens


def _estimate_fits(
    experiment: Experiment, mode: Mode, sizes: _Sizes, data: DataSets, dim: int, seeds: int, recipe: RecipeChoice
) -> tuple[str, float, int]:
    """Return how many fits a mode needs, in words, and their seconds and bytes."""
    settings, aux = data.settings, sizes.get((mode, "aux"))
    train = sizes.get((mode, "id_train")) or sizes[mode, "id"]
    rows = experiment.rows(TableContext(mode, dim, round(SHARE * aux.sequences) if aux else 0, settings))
    grid_points = others = 0
    if recipe != "robust" and aux is not None:
        for row in {(row.kind, row.aux > 0): row for row in rows if row.selected}.values():
            points = math.prod(map(len, search_grid(row, settings, dim).values()))
            if issubclass(row.kind, APOOD):
                grid_points += points
            else:
                others += points
    fitted = resolve(recipe)
    queries = grid_points * dim
    queries += seeds * sum(_count_queries(row, dim) for row in rows if issubclass(row.kind, _TRAINED_ON_TOKENS))
    steps, batch = settings.steps or fitted.steps, min(fitted.batch_size, train.sequences)
    operations = 6 * dim * queries * steps * batch * train.tokens
    text = f"{format_count(len(rows), 'row')} on {format_count(seeds, 'split')}"
    if grid_points:
        also = f" and {others:,} of other methods" if others else ""
        text = f"{format_count(grid_points, 'setting')} of AP-OOD{also} to choose from, then {text}"
    vectors = [
        round(SHARE * train.sequences) if issubclass(row.kind, KNN) else 4 * _count_queries(row, dim) for row in rows
    ]
    seconds = operations / _estimate_speed(_FITTING) + _EACH_FIT * (grid_points + others + seeds * len(rows))
    return text, seconds, 4 * dim * (seeds * sum(vectors) + 4 * grid_points * dim)


def _count_queries(row: Row, dim: int) -> int:
    """Return M T of a row, which is D by default."""
    given = row.parameters
    return int(given["heads"] * given.get("queries", 1)) if "heads" in given else dim


def _estimate_speed(rates: Mapping[str, float]) -> float:
    kind = resolve_device().type
    return rates[kind] * (1 if kind == "cuda" else torch.get_num_threads())


def _free_bytes(out: Path) -> int:
    place = out.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _format_bytes(count: int) -> str:
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
