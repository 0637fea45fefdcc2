"""What an experiment will do, and what it will cost: told before any work."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.ap_ood.recipe import resolve
from apood.detectors.knn import KNN
from apood.experiments.paper.bench import Experiment
from apood.experiments.paper.data import OOD, Data
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.idealised import IdealisedKernel
from apood.experiments.paper.model import Model
from apood.experiments.paper.multiple_instance import bags_of
from apood.experiments.paper.settings import SHARE
from apood.experiments.paper.stores import Embedding
from apood.experiments.paper.study import RecipeChoice, Scene, grid_of
from apood.experiments.paper.survey import Survey, survey
from apood.experiments.paper.tasks import Mode
from apood.experiments.versions import device_name
from apood.support.checks import format_count
from apood.support.device import resolve_device
from apood.support.errors import InputError

__all__ = ["Plan", "plan_of", "refuse_little_disk"]

# Floating-point operations a second, on a GPU or by the thread: measured on an H200 and on two cores, rough elsewhere.
_READING = {"cuda": 6e13, "cpu": 1e11}
_FITTING = {"cuda": 4e14, "cpu": 4e10}
_GENERATING = {"cuda": 20.0, "cpu": 2.0}  # how much slower a token is written than read
_EACH_FIT = 2.0  # seconds to read, check, score and save, however small
_STORED_BYTES = 2  # float16
_TRAINED = (APOOD, IdealisedKernel)  # on every token; all else learns from one vector a sequence

_Surveys = dict[tuple[Mode, str], Survey]


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        facts: for people, in the order they are told.
        disk: bytes that will be written, about.
        seconds: that it will take, about.
    """

    facts: dict[str, object]
    disk: int
    seconds: float


@dataclass(frozen=True)
class _Work:
    """Fits of a mode: how many, the seconds they take, and the bytes they leave."""

    text: str
    seconds: float
    disk: int


def plan_of(
    experiment: Experiment,
    data: Data,
    model: Model | None,
    wanted: Sequence[Embedding],
    *,
    seeds: int,
    recipe: RecipeChoice,
    out: Path,
) -> Plan:
    """Counts what is there and what is missing; files on this machine are read once for it."""
    facts: dict[str, object] = {"left out": ", ".join(data.left_out)} if data.left_out else {}
    surveys: _Surveys
    disk, seconds = 0, 0.0
    if model is None:
        bags = bags_of(data)
        dim = next(iter(bags.values())).dim
        surveys = {("input", role): Survey(len(own), len(own.values) / len(own)) for role, own in bags.items()}
        facts["bags"] = {role.removeprefix(OOD): f"{len(own)} bags of D = {dim}" for role, own in bags.items()}
    else:
        dim, surveys = model.dim, {(e.mode, e.role): _known(e) or survey(e, experiment.task) for e in wanted}
        waiting = [e for e in wanted if e.done is None]
        facts |= {"model": _about_model(model, experiment)} | _downloads(model, waiting)
        for mode in _modes(surveys):
            own = {e.role.removeprefix(OOD): _about_set(e, surveys[mode, e.role]) for e in wanted if e.mode == mode}
            facts[f"embed, {mode}"] = own
        disk = sum(round(math.prod(surveys[e.mode, e.role]) * dim * _STORED_BYTES) for e in waiting)
        seconds = sum(_embedding_operations(e, surveys[e.mode, e.role], model) for e in waiting) / _speed(_READING)
    works = {mode: _fits(experiment, mode, surveys, data, dim, seeds, recipe) for mode in _modes(surveys)}
    facts |= {f"fit, {mode}": work.text for mode, work in works.items()}
    disk += sum(work.disk for work in works.values())
    seconds += sum(work.seconds for work in works.values())
    facts["disk"] = f"about {_size(disk)} below {out}, where {_size(_free(out))} are free"
    facts["time"] = f"about {_duration(seconds)} on {device_name()}, by order of magnitude"
    return Plan(facts, disk, seconds)


def refuse_little_disk(plan: Plan, out: Path) -> None:
    """Refuses an experiment that would fill the disk."""
    if (free := _free(out)) < plan.disk:
        raise InputError(
            f"The experiment needs about {_size(plan.disk)} of disk below {out}, where only {_size(free)} are free."
        )


def _modes(surveys: _Surveys) -> list[Mode]:
    return list(dict.fromkeys(mode for mode, _ in surveys))


def _known(embedding: Embedding) -> Survey | None:
    done = embedding.done
    return None if done is None else Survey(done["sequences"], done["tokens"] / max(done["sequences"], 1))


def _about_model(model: Model, experiment: Experiment) -> str:
    lost = [mode for mode in experiment.modes if mode in experiment.task.modes and mode not in model.modes]
    without = f"; it generates nothing, so {lost[0]} is left out" if lost else ""
    return f"{model.given}: D = {model.dim}, about {_million(model.parameters)} parameters{without}"


def _downloads(model: Model, waiting: Sequence[Embedding]) -> dict[str, object]:
    wanted = [] if model.found is not None else [f"{model.given} (about {_size(4 * model.parameters)})"]
    streamed = dict.fromkeys(name for e in waiting if not e.source.local for name in e.source.inputs)
    wanted += [f"{name}, streamed" for name in streamed]
    return {"download": "\n".join(wanted)} if wanted else {}


def _about_set(embedding: Embedding, found: Survey) -> str:
    names = ", ".join(name if not embedding.source.local else Path(name).name for name in embedding.source.inputs)
    count = f"{found.sequences:,}"
    if not embedding.source.local:
        count = f"the first {count}"
    elif embedding.source.drawn and found.sequences == embedding.limit:
        count = f"{count} at random"
    if embedding.done is not None:
        return f"{count} from {names}, done"
    most = "" if embedding.source.local else "at most "
    return f"{most}{count} from {names}, about {found.tokens:,.0f} tokens each"


def _embedding_operations(embedding: Embedding, found: Survey, model: Model) -> float:
    if embedding.mode == "input":
        return 2 * model.parameters * found.sequences * found.tokens
    drawn = 1 + int(embedding.options["samples"])
    read = float(embedding.options["max_tokens"])
    slower = _GENERATING[resolve_device().type]
    return 2 * model.parameters * found.sequences * (read + slower * drawn * found.tokens)


def _fits(
    experiment: Experiment,
    mode: Mode,
    surveys: _Surveys,
    data: Data,
    dim: int,
    seeds: int,
    recipe: RecipeChoice,
) -> _Work:
    settings = data.settings
    aux = surveys.get((mode, "aux"))
    train = surveys.get((mode, "id_train")) or surveys[mode, "id"]
    scene = Scene(mode, dim, round(SHARE * aux.sequences) if aux else 0, settings)
    rows = experiment.rows(scene)
    searches = (
        []
        if recipe == "robust" or aux is None
        else [supervised for supervised in (False, True) if _asks(rows, supervised)]
    )
    tried = sum(math.prod(map(len, grid_of(settings, dim, supervised=one).values())) for one in searches)
    fitted = resolve(recipe)
    queries = tried * dim + seeds * sum(_queries(row, dim) for row in rows if issubclass(row.kind, _TRAINED))
    steps, batch = settings.steps or fitted.steps, min(fitted.batch_size, train.sequences)
    operations = 6 * dim * queries * steps * batch * train.tokens
    text = f"{format_count(len(rows), 'row')} on {format_count(seeds, 'split')}"
    if tried:
        text = f"{format_count(tried, 'setting')} of AP-OOD to choose from, then {text}"
    kept = [round(SHARE * train.sequences) if issubclass(row.kind, KNN) else 4 * _queries(row, dim) for row in rows]
    seconds = operations / _speed(_FITTING) + _EACH_FIT * (tried + seeds * len(rows))
    return _Work(text, seconds, 4 * dim * (seeds * sum(kept) + 4 * tried * dim))


def _queries(row: Entry, dim: int) -> int:
    """M T of a row: D unless it says otherwise."""
    given = row.parameters
    return int(given["heads"] * given.get("queries", 1)) if "heads" in given else dim


def _asks(rows: Sequence[Entry], supervised: bool) -> bool:
    return any(row.selected and (row.aux > 0) == supervised for row in rows)


def _million(count: int) -> str:
    return f"{count / 1e6:,.0f} million" if count >= 1e6 else f"{count:,}"


def _speed(rates: Mapping[str, float]) -> float:
    place = resolve_device().type
    return rates[place] * (1 if place == "cuda" else torch.get_num_threads())


def _free(out: Path) -> int:
    """Free bytes where `out` will lie."""
    place = out.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _size(count: int) -> str:
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return format_count(max(1, round(seconds)), "second")
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 3 * 86400 else f"{seconds / 86400:.0f} days"
