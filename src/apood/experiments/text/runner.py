"""Runs the benchmark from its options to its report: checks everything first, then embeds, fits and writes."""

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from apood.data.inputs import holds_sounds
from apood.encoders.base.layers import check_layers
from apood.encoders.base.pretrained import find_kind, find_pretrained, load_config
from apood.evaluation.entry import Entry
from apood.experiments.text.declaration import Corpus, read_declaration
from apood.experiments.text.measure import Assignment, Measured, Measurer
from apood.experiments.text.report import write_report
from apood.experiments.text.results import MethodResult, list_results
from apood.experiments.text.rows import AUX_COUNTS, choose_rows, list_rows
from apood.experiments.text.tasks import AUTO, Mode, Model, Task, View, is_complete
from apood.experiments.text.texts import AUX, CorpusSets, make_sets
from apood.support.checks import check_choice, check_integer, format_count, suggest_name
from apood.support.errors import InputError
from apood.support.files import refuse_unwritable
from apood.support.processes import Failure, run_tasks, share_cores

__all__ = ["REPORT", "PreparedBench", "TextBenchOptions", "prepare"]

REPORT = "report.md"


@dataclass(frozen=True)
class TextBenchOptions:
    """The options of `apood bench text run`.

    Attributes:
        declaration: the TOML file with the corpora.
        models: the models, each as NAME=FOLDER.
        data: the folder that the files of the declaration are in; None for the folder of the declaration.
        modes: the modes; a model without mode output is used in mode input alone.
        views: the layers that tokens are made of; the first view is that of the default. `auto` is the view that suits
            the kind of a model.
        corpora: the names of the corpora; empty for all.
        methods: the methods; empty for all.
        with_aux: whether methods that learn from AUX texts are run.
        seeds: the number of seeds.
        out: the folder for stores, fits and results.
        jobs: the number of tasks at once, each in its own process.
    """

    declaration: Path
    models: Sequence[str]
    data: Path | None = None
    modes: Sequence[Mode] = ("input",)
    views: Sequence[View] = (AUTO, "mix", -1)
    corpora: Sequence[str] = ()
    methods: Sequence[str] = ()
    with_aux: bool = True
    seeds: int = 3
    out: Path = Path("text-bench")
    jobs: int = 1

    @property
    def command(self) -> str:
        """The command line that reproduces the figures; of paths it has the last part alone, and hub ids whole."""
        words = [("--data", self.data.name)] if self.data is not None else []
        for name, _, model in (given.partition("=") for given in self.models):
            words.append(("--model", f"{name}={Path(model).name if Path(model).exists() else model}"))
        words += [("--mode", mode) for mode in self.modes if tuple(self.modes) != ("input",)]
        words += [("--layers", str(view)) for view in self.views]
        words += [("--corpus", name) for name in self.corpora]
        words += [("--method", name) for name in self.methods]
        words += [("--seeds", str(self.seeds))]
        flags = [] if self.with_aux else ["--no-aux"]
        given = [word for pair in words for word in pair]
        return shlex.join(["apood", "bench", "text", "run", self.declaration.name, *given, *flags])


@dataclass(frozen=True)
class PreparedBench:
    """A benchmark whose options, declaration, texts and models have been checked.

    Attributes:
        assignments: the tasks in all views, the longest first.
        measurer: what measures them.
        jobs: the number of processes.
    """

    assignments: Sequence[Assignment]
    measurer: Measurer
    jobs: int

    @property
    def facts(self) -> dict[str, Any]:
        """What will be embedded and fitted."""
        corpora = {task.corpus.name: sets for task, sets in self.assignments}
        facts: dict[str, Any] = {}
        for name, sets in corpora.items():
            counts = ", ".join(f"{role} {len(own):,}" for role, own in sets.items.items())
            known = sum(own["known"] + own["repeated"] for own in sets.removed.values())
            facts[name] = f"{counts}; {format_count(known, 'duplicate')} removed"
        fits = 0
        for task, sets in sorted(self.assignments, key=str):
            stores = task.find_stores(sets, self.measurer.out)
            waiting = {role for role, folder in stores.items() if not is_complete(folder)}
            texts = sum(len(sets.items[role]) for role in waiting)
            rows = self._list_rows(task, sets)
            own = sum(self.measurer.seeds if row.seeded or row.aux else 1 for row in rows)
            fits += own
            facts[str(task)] = f"{texts:,} texts to embed; {format_count(len(rows), 'row')}, {format_count(own, 'fit')}"
        return facts | {"fits": fits, "results": str(self.measurer.out / "results")}

    def list_stores(self) -> list[tuple[Task, dict[str, Path]]]:
        """Return the tasks whose stores are complete, each with its stores by their roles."""
        found = [(task, task.find_stores(sets, self.measurer.out)) for task, sets in self.assignments]
        return [(task, stores) for task, stores in found if all(map(is_complete, stores.values()))]

    def _list_rows(self, task: Task, sets: CorpusSets, others: Collection[str] = ()) -> list[Entry]:
        """Return the rows of a task with the channels that its stores will surely have, and `others`."""
        predicts = task.mode == "output" or (
            not task.model.takes_sounds and find_kind(load_config(task.model.found)) == "causal"
        )
        channels = [] if task.model.takes_sounds else ["summary"]
        channels += ["sentences"] if task.mode == "input" and sets.has_sentences and task.first_view else []
        channels += ["token_logprobs"] if predicts and task.first_view else []
        aux = len(sets.items.get(AUX, ())) if self.measurer.with_aux else 0
        return list_rows(self.measurer.chosen, [*channels, *others], aux, first_view=task.first_view)

    def refuse_nothing(self) -> None:
        """Raise InputError if no row can be measured, whatever is embedded."""
        rows = [*self.measurer.chosen.alone, *self.measurer.chosen.learning]
        # Others are not known before anything is embedded: a classifier, for example, also gives logits.
        unknown = {name for row in rows for name in row.requires} - {"tokens", "summary", "sentences", "token_logprobs"}
        if not any(self._list_rows(task, sets, unknown) for task, sets in self.assignments):
            raise InputError(
                f"There is nothing to measure: {', '.join(dict.fromkeys(row.label for row in rows))} cannot work with "
                "what these models and corpora give. `apood methods` lists what a method reads, and whether it needs "
                f"AUX texts, of which there must be at least {min(AUX_COUNTS)}."
            )

    def run(self, on_done: Callable[[str], object] | None = None) -> tuple[list[Path], list[str]]:
        """Embed, fit, score, and write results and the report; return these files and what failed.

        What was done before is reused. A row or a task that fails stops no other. `on_done` is called with a line for
        each task that is done.
        """
        out = self.measurer.out
        refuse_unwritable(out / REPORT)
        written: list[Path] = []
        failures: list[str] = []

        def collect(assignment: Assignment, outcome: Measured | Failure) -> None:
            if isinstance(outcome, Failure):
                failures.append(f"{assignment}: {outcome.reason}")
            else:
                written.extend(outcome.written)
                failures.extend(outcome.failures)
            if on_done is not None:
                on_done(f"{assignment}: {'failed' if isinstance(outcome, Failure) else 'measured'}")

        share = None if self.jobs == 1 else share_cores(len(self.assignments), self.jobs)
        run_tasks(self.measurer, list(self.assignments), share, "bench", collect)
        if not written:
            reason = failures[0] if failures else "no method can work with the channels of the token stores."
            raise InputError(f"Nothing could be measured; the first failure: {reason}")
        return [*written, *write_report(self._list_results(), out / REPORT)], failures

    def _list_results(self) -> list[MethodResult]:
        """Return all results in the folder, but none of texts or models that the names do not stand for any more."""
        today = {
            task.name: {"texts": dict(sets.digests), "model": task.model.identity} for task, sets in self.assignments
        }
        return [
            one
            for one in list_results([self.measurer.out])
            if all(one.content["manifest"].get(key) == value for key, value in today.get(one.task, {}).items())
        ]


def prepare(options: TextBenchOptions) -> PreparedBench:
    """Return the benchmark after checking all that can be checked before the work."""
    check_integer("seeds", options.seeds, 1)
    check_integer("jobs", options.jobs, 1)
    for mode in options.modes:
        check_choice("mode", mode, get_args(Mode))
    chosen = choose_rows(options.methods)
    declaration = read_declaration(options.declaration, options.data)
    corpora = _choose_corpora(declaration.corpora, options.corpora)
    models = _find_models(options.models)
    if not options.views or len(set(options.views)) < len(options.views):
        raise InputError(f"layers must name different views, at least one, got {', '.join(map(str, options.views))}.")
    for view in options.views:
        check_layers(view)
    views = {
        (model.name, mode): tuple(dict.fromkeys(model.resolve_view(view, mode) for view in options.views))
        for model in models
        for mode in options.modes
    }
    sounds = {corpus.name: any(map(holds_sounds, next(iter(corpus.id.values())).names)) for corpus in corpora}
    tasks = [
        Task(model, mode, corpus, view, views[model.name, mode])
        for model in models
        for mode in dict.fromkeys(options.modes)
        for corpus in corpora
        for view in views[model.name, mode]
        if mode in model.modes and model.takes_sounds == sounds[corpus.name]
    ]
    if not tasks:
        raise InputError("No model can be used on any corpus in any mode that was asked for.")
    _refuse_shared_folders(tasks)
    wanted = {task.corpus.name: task.corpus for task in tasks}
    sets = {name: make_sets(corpus, declaration.salt, declaration.limits) for name, corpus in wanted.items()}
    assignments = [Assignment(task, sets[task.corpus.name]) for task in tasks]
    measurer = Measurer(chosen, options.with_aux, options.seeds, declaration.salt, options.out, options.command)
    prepared = PreparedBench(sorted(assignments, key=_estimate_work, reverse=True), measurer, options.jobs)
    prepared.refuse_nothing()
    return prepared


def _estimate_work(assignment: Assignment) -> float:
    """Return a number that grows with the work; with the longest tasks first, all processes end together."""
    task, sets = assignment
    return task.corpus.max_tokens * sum(map(len, sets.items.values())) * (2 if task.mode == "output" else 1)


def _choose_corpora(known: Any, names: Sequence[str]) -> list[Corpus]:
    for name in names:
        if name not in known:
            raise InputError(f"There is no corpus {name!r}{suggest_name(name, known)}; there are {', '.join(known)}.")
    return [known[name] for name in (dict.fromkeys(names) or known)]


def _refuse_shared_folders(tasks: Sequence[Task]) -> None:
    """Raise InputError if two tasks would write to the same files."""
    known: dict[str, Task] = {}
    for task in tasks:
        if (other := known.setdefault(task.file_name, task)) is not task:
            first, second = (
                f"{one.model.name} on {one.corpus.name} ({one.mode}, layers {one.view_name})" for one in (other, task)
            )
            raise InputError(
                f"{first} and {second} would have the same files, {task.file_name}: rename a model or a corpus, or "
                "leave one of them out."
            )


def _find_models(given: Sequence[str]) -> list[Model]:
    found: dict[str, Model] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or not folder or not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise InputError(f"A model is given as NAME=FOLDER, with a name of letters and digits, got {one!r}.")
        if name in found:
            raise InputError(f"Two models are called {name!r}: give each its own name.")
        found[name] = Model(name, find_pretrained(folder))
    if not found:
        raise InputError("At least one model is needed, as NAME=FOLDER.")
    return list(found.values())
