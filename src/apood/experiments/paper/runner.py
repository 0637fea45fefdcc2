"""Runs one experiment from its options to its files: checks everything first, then embeds, fits and writes."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from apood.experiments.paper.catalogue import CATALOGUE, load_experiment
from apood.experiments.paper.cost import CostEstimate, estimate_cost, refuse_little_disk
from apood.experiments.paper.data_sets import MANIFEST, DataSets, find_paper_data_sets, read_manifest
from apood.experiments.paper.experiment import Experiment
from apood.experiments.paper.findings import Findings, write_findings
from apood.experiments.paper.model_facts import ModelFacts, inspect_model
from apood.experiments.paper.stores import Embedding, embed_all, file_digests, list_embeddings
from apood.experiments.paper.study_data import RecipeChoice, StudyData, TableContext
from apood.report.canvas import refuse_without_matplotlib
from apood.support.checks import check_choice, check_integer
from apood.support.errors import InputError
from apood.support.files import read_json, refuse_unwritable
from apood.support.provenance import device_name, package_versions

__all__ = ["Beams", "BenchOptions", "PreparedExperiment", "Profile", "prepare"]

Profile = Literal["paper", "local"]
Beams = Literal["own", "greedy"]


@dataclass(frozen=True)
class BenchOptions:
    """The options of `apood bench`.

    Attributes:
        profile: "paper" for the paper's model and sets, "local" for a folder with a manifest and any model.
        data: that folder; with "paper", the folder with the sets that were downloaded by hand.
        model: folder or hub id, instead of the paper's model.
        seeds: the number of splits; None for the paper's number.
        recipe: the recipe of AP-OOD; "robust" is apood's default, which selects no settings for any method, and
            tokens of the layers that apood chooses; the others have tokens of the last layer, as the paper has.
        beams: how outputs are generated: "own" for the beams of the model's own settings, as in the authors' code,
            "greedy" for one; None for "own" with the profile "paper", else "greedy".
        skip: OOD sets to leave out.
        out: the folder for stores, fits and results, which experiments may share.
        jobs: the number of fits at once, each in its own process.
    """

    profile: Profile = "local"
    data: Path | None = None
    model: str | None = None
    seeds: int | None = None
    recipe: RecipeChoice = "paper"
    beams: Beams | None = None
    skip: Sequence[str] = ()
    out: Path = Path("bench")
    jobs: int = 1

    def command(self, name: str) -> str:
        """Return the command line that reproduces the figures of an experiment."""
        given = {
            "--profile": None if self.profile == "local" else self.profile,
            "--data": self.data,
            "--model": self.model,
            "--seeds": self.seeds,
            "--recipe": None if self.recipe == "paper" else self.recipe,
            "--beams": self.beams,
            "--out": self.out,
        }
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        skipped = [word for one in self.skip for word in ("--skip", one)]
        return shlex.join(["apood", "bench", name, *words, *skipped])


@dataclass(frozen=True)
class PreparedExperiment:
    """An experiment whose options, files and model have been checked.

    Attributes:
        experiment: the experiment.
        options: the options.
        data: its data sets.
        model: its model; None for bags.
        embeddings: the stores that it needs.
        seeds: the number of splits.
        cost: what it will do and cost.
    """

    experiment: Experiment
    options: BenchOptions
    data: DataSets
    model: ModelFacts | None
    embeddings: Sequence[Embedding]
    seeds: int
    cost: CostEstimate

    @property
    def folder(self) -> Path:
        """The folder of its results."""
        return self.options.out / self.experiment.name

    @property
    def title(self) -> str:
        """What it is, in one line."""
        listed = CATALOGUE[self.experiment.name]
        return f"{self.experiment.name}: {listed.about} ({listed.shows})"

    def run(self) -> tuple[Findings, list[Path]]:
        """Embed, fit, score and write; return the findings and the files. Work that was done before is reused."""
        started = time.monotonic()
        if self.model is not None:
            embed_all(self.embeddings, self.experiment.task, self.model)
        study = StudyData(
            self.data,
            {(embedding.mode, embedding.role): embedding.folder for embedding in self.embeddings},
            seeds=self.seeds,
            recipe=self.options.recipe,
            cache=self.options.out / "cache",
            jobs=self.options.jobs,
            train_share=self.experiment.train_share,
            model=self.model,
        )
        findings = self.experiment.run(study)
        manifest = self._make_manifest(time.monotonic() - started)
        return findings, write_findings(findings, self.folder, self.title, manifest)

    def _make_manifest(self, seconds: float) -> dict[str, Any]:
        """Return all that must be the same for the same figures."""
        name = self.experiment.name
        return {
            "experiment": name,
            "command": self.options.command(name),
            "shows": CATALOGUE[name].shows,
            "profile": self.options.profile,
            "seeds": list(range(self.seeds)),
            "settings": asdict(self.data.settings),
            **_describe(self.options, self.data, self.model),
            "stores": [_without_folder(embedding.done) for embedding in self.embeddings],
            "left_out": list(self.data.left_out),
            "versions": package_versions(),
            "device": device_name(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
        }


def prepare(name: str, options: BenchOptions, *, dry_run: bool = False) -> PreparedExperiment:
    """Return the experiment after checking all that can be checked before the work: manifest, files, model, disk.

    A hub model is downloaded, except in a dry run.
    """
    experiment = load_experiment(name)
    check_choice("profile", options.profile, get_args(Profile))
    check_choice("recipe", options.recipe, get_args(RecipeChoice))
    beams = options.beams or ("own" if options.profile == "paper" else "greedy")
    check_choice("beams", beams, get_args(Beams))
    seeds = experiment.seeds if options.seeds is None else options.seeds
    check_integer("seeds", seeds, 1)
    check_integer("jobs", options.jobs, 1)
    refuse_without_matplotlib()  # now rather than after hours
    data = _find_data(experiment, options)
    if experiment.needs_aux and "aux" not in data.by_role:
        raise InputError(f"The experiment {name} learns from AUX sequences, and the {MANIFEST} names none as aux.")
    model = inspect_model(options.model, experiment.task, fetch=not dry_run)
    embeddings: list[Embedding] = []
    if model is not None:
        modes = experiment.modes_of(model)
        rows = [row for mode in modes for row in experiment.rows(TableContext(mode, model.dim, 0, data.settings))]
        sampled = any("sample_logprobs" in row.kind().requires for row in rows)
        embeddings = list_embeddings(
            experiment.task,
            data,
            model,
            options.out / "stores",
            modes,
            sampled=sampled,
            beams=model.beams if beams == "own" else 1,
            layers="auto" if options.recipe == "robust" else -1,
        )
    if not dry_run:
        _refuse_to_replace(options.out / name, _describe(options, data, model))
    cost = estimate_cost(experiment, data, model, embeddings, seeds=seeds, recipe=options.recipe, out=options.out)
    if not dry_run:
        refuse_little_disk(cost, options.out)
        refuse_unwritable(options.out / name / "results.json")
    return PreparedExperiment(experiment, options, data, model, embeddings, seeds, cost)


def _find_data(experiment: Experiment, options: BenchOptions) -> DataSets:
    if options.profile == "paper":
        return find_paper_data_sets(experiment.task, options.data, options.skip)
    if options.data is None:
        raise InputError(
            f"Data of your own need --data, a folder with a file {MANIFEST} that says what its files are for; "
            "--profile paper takes those of the paper."
        )
    return read_manifest(options.data, experiment.task, options.skip)


def _describe(options: BenchOptions, data: DataSets, model: ModelFacts | None) -> dict[str, Any]:
    """Return the part of a manifest that says what the results are about."""
    return {
        "recipe": options.recipe,
        "model": None if model is None else {"name": model.given, "identity": model.identity},
        "files": {role: file_digests(own) for role, own in data.by_role.items()},
        "sets": {role: {"field": own.field, "labels": sorted(own.labels)} for role, own in data.by_role.items()},
        "prompt": data.prompt,
    }


def _without_folder(store: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the facts of a store without the folder of the model, which means nothing on another machine."""
    if store is None:
        return None
    return store | {"encoder": {key: value for key, value in store["encoder"].items() if key != "folder"}}


def _refuse_to_replace(folder: Path, about: dict[str, Any]) -> None:
    """Raise InputError if `folder` has results of another recipe, model or data; other settings may replace them."""
    try:
        earlier = read_json(folder / "manifest.json")
        # What an older manifest does not say counts as equal.
        found = [_identify({**about, **earlier}), _identify(about)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no manifest, or one of something else
        return
    for what, other in (("recipe", "another recipe"), ("model", "another model"), ("data", "other data")):
        if found[0][what] != found[1][what]:
            raise InputError(f"{folder} has results of {other}; choose another --out, or remove that folder.")


def _identify(about: dict[str, Any]) -> dict[str, Any]:
    """Return what identifies the model and the files, wherever they are."""
    model, files = about["model"], about["files"]
    return {
        "recipe": about["recipe"],
        "model": None if model is None else model["identity"],
        "data": [{role: sorted(own.values()) for role, own in files.items()}, about["sets"], about["prompt"]],
    }
