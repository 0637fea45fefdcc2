"""One experiment from its options to its files: checked first, then embedded, fitted and written, resumable."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from apood.experiments.paper.bench import Experiment
from apood.experiments.paper.catalogue import CATALOGUE, experiment
from apood.experiments.paper.data import MANIFEST, Data, paper_data, read_manifest
from apood.experiments.paper.findings import Findings
from apood.experiments.paper.model import Model, look_at
from apood.experiments.paper.outputs import write_findings
from apood.experiments.paper.plan import Plan, plan_of, refuse_little_disk
from apood.experiments.paper.stores import Embedding, embed_all, embeddings, file_digests
from apood.experiments.paper.study import RecipeChoice, Scene, Study
from apood.experiments.versions import device_name, versions
from apood.report.canvas import refuse_without_matplotlib
from apood.support.checks import check_choice, check_integer
from apood.support.errors import InputError
from apood.support.files import read_json, refuse_unwritable

__all__ = ["Options", "Prepared", "Profile", "prepare"]

Profile = Literal["paper", "local"]


@dataclass(frozen=True)
class Options:
    """What a user decides.

    Attributes:
        profile: "paper" for the paper's model and sets, "local" for a folder with a manifest and a model.
        data: that folder; in profile "paper" the one with what was downloaded by hand.
        model: folder or hub id, instead of the paper's.
        seeds: how many splits; None for as many as the paper has.
        recipe: of AP-OOD; "robust" is the default of apood, without a search.
        skip: OOD sets to leave out.
        out: where stores, fits and results are kept; experiments may share it.
        jobs: how many fits at once, each in a process of its own.
    """

    profile: Profile = "local"
    data: Path | None = None
    model: str | None = None
    seeds: int | None = None
    recipe: RecipeChoice = "paper"
    skip: Sequence[str] = ()
    out: Path = Path("bench")
    jobs: int = 1

    def command(self, name: str) -> str:
        """What somebody types for the same figures of the experiment of that name."""
        given = {
            "--profile": None if self.profile == "local" else self.profile,
            "--data": self.data,
            "--model": self.model,
            "--seeds": self.seeds,
            "--recipe": None if self.recipe == "paper" else self.recipe,
            "--out": self.out,
        }
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        skipped = [word for one in self.skip for word in ("--skip", one)]
        return shlex.join(["apood", "bench", name, *words, *skipped])


@dataclass(frozen=True)
class Prepared:
    """An experiment that is known to have all it needs."""

    name: str
    experiment: Experiment
    options: Options
    data: Data
    model: Model | None
    wanted: Sequence[Embedding]
    seeds: int
    plan: Plan

    @property
    def folder(self) -> Path:
        """Where its results go."""
        return self.options.out / self.name

    @property
    def title(self) -> str:
        """What it is, in one line."""
        listed = CATALOGUE[self.name]
        return f"{self.name}: {listed.about} ({listed.shows})"

    def carry_out(self) -> tuple[Findings, list[Path]]:
        """Embeds, fits, scores and writes; what was done before is not done again."""
        started = time.monotonic()
        if self.model is not None:
            embed_all(self.wanted, self.experiment.task, self.model)
        study = Study(
            self.experiment.task,
            self.data,
            {(embedding.mode, embedding.role): embedding.folder for embedding in self.wanted},
            seeds=self.seeds,
            recipe=self.options.recipe,
            cache=self.options.out / "cache",
            jobs=self.options.jobs,
            train_share=self.experiment.train_share,
            model=self.model,
        )
        findings = self.experiment.carry_out(study)
        seconds = time.monotonic() - started
        return findings, write_findings(findings, self.folder, self.title, self._manifest(seconds))

    def _manifest(self, seconds: float) -> dict[str, Any]:
        """What would have to be the same for the same figures."""
        return {
            "experiment": self.name,
            "command": self.options.command(self.name),
            "shows": CATALOGUE[self.name].shows,
            "profile": self.options.profile,
            "seeds": list(range(self.seeds)),
            "settings": asdict(self.data.settings),
            **_about(self.options, self.data, self.model),
            "stores": [_told(embedding.done) for embedding in self.wanted],
            "left_out": list(self.data.left_out),
            "versions": versions(),
            "device": device_name(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
        }


def prepare(name: str, options: Options, *, dry_run: bool = False) -> Prepared:
    """Checks everything that can be checked before the work: manifest, files, model, disk.

    A model of the hub is fetched, unless it is a dry run.
    """
    chosen = experiment(name)
    check_choice("profile", options.profile, get_args(Profile))
    check_choice("recipe", options.recipe, get_args(RecipeChoice))
    seeds = chosen.seeds if options.seeds is None else options.seeds
    check_integer("seeds", seeds, 1)
    check_integer("jobs", options.jobs, 1)
    refuse_without_matplotlib()  # now rather than after hours
    data = _data(chosen, options)
    if chosen.needs_aux and "aux" not in data.sources:
        raise InputError(f"The experiment {name} learns from AUX sequences, and the {MANIFEST} names none as aux.")
    model = look_at(options.model, chosen.task, fetch=not dry_run)
    wanted: list[Embedding] = []
    if model is not None:
        stores, modes = options.out / "stores", chosen.modes_of(model)
        rows = [row for mode in modes for row in chosen.rows(Scene(mode, model.dim, 0, data.settings))]
        sampled = any("sample_logprobs" in row.kind().requires for row in rows)
        wanted = embeddings(chosen.task, data, model, stores, modes, sampled=sampled)
    if not dry_run:
        _refuse_to_replace(options.out / name, _about(options, data, model))
    plan = plan_of(chosen, data, model, wanted, seeds=seeds, recipe=options.recipe, out=options.out)
    if not dry_run:
        refuse_little_disk(plan, options.out)
        refuse_unwritable(options.out / name / "results.json")  # last, since it makes the folder
    return Prepared(name, chosen, options, data, model, wanted, seeds, plan)


def _about(options: Options, data: Data, model: Model | None) -> dict[str, Any]:
    """What results are about, whatever their settings."""
    return {
        "recipe": options.recipe,
        "model": None if model is None else {"name": model.given, "identity": model.identity},
        "files": {role: file_digests(source) for role, source in data.sources.items()},
        "sets": {role: {"field": own.field, "labels": sorted(own.labels)} for role, own in data.sources.items()},
        "prompt": data.prompt,
    }


def _told(store: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a manifest says of a store: where the model lay on this machine is nobody else's business."""
    if store is None:
        return None
    return store | {"encoder": {key: value for key, value in store["encoder"].items() if key != "folder"}}


def _refuse_to_replace(folder: Path, about: dict[str, Any]) -> None:
    """Results with other settings or more splits take the place of those before, but not results about others."""
    try:
        there = read_json(folder / "manifest.json")
        # what older manifests do not say counts as the same
        found = [_identity({**about, **there}), _identity(about)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or none of ours
        return
    for what, other in (("recipe", "another recipe"), ("model", "another model"), ("data", "other data")):
        if found[0][what] != found[1][what]:
            raise InputError(f"{folder} has results of {other}; choose another --out, or remove that folder.")


def _identity(about: dict[str, Any]) -> dict[str, Any]:
    """Of a manifest: what a model and files are, wherever they lie."""
    model, files = about["model"], about["files"]
    return {
        "recipe": about["recipe"],
        "model": None if model is None else model["identity"],
        "data": [{role: sorted(own.values()) for role, own in files.items()}, about["sets"], about["prompt"]],
    }


def _data(chosen: Experiment, options: Options) -> Data:
    if options.profile == "paper":
        return paper_data(chosen.task, options.data, options.skip)
    if options.data is None:
        raise InputError(
            f"Data of your own need --data, a folder with a file {MANIFEST} that says what its files are for; "
            "--profile paper takes those of the paper."
        )
    return read_manifest(options.data, chosen.task, options.skip)
