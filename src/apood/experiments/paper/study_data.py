"""The rows of the paper's tables and the stores they are fitted on: splits, selected settings, results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.artefact import to_json
from apood.detectors.contract.base import Detector
from apood.detectors.entropy import Entropy
from apood.evaluation.entry import Entry
from apood.evaluation.result import MEAN, Result
from apood.evaluation.selection import Selection, select
from apood.evaluation.split import Split, draw_share
from apood.evaluation.study import refuse_all_failed, run_study
from apood.experiments.paper.data_sets import OOD, DataSets
from apood.experiments.paper.model_facts import ModelFacts
from apood.experiments.paper.tasks import SHARE, Mode, Settings, resolve_beta
from apood.support.errors import InputError
from apood.support.processes import Failure, attempt
from apood.tokens.source import Subset, TokenSource, split
from apood.tokens.store import TokenStore

__all__ = ["RecipeChoice", "Row", "RowResult", "StudyData", "TableContext", "search_grid"]

RecipeChoice = Literal["paper", "reference", "robust"]
_TEST_SHARE = 0.2  # of an ID set that comes in one piece
_PUBLISHED_TEMPERATURE = 1.0  # the authors give plain samples importance weights, which apood's default does not


@dataclass(frozen=True)
class Row(Entry):
    """A row of a table: an entry of the study, under the name that the paper gives it.

    Attributes:
        selected: whether it takes the settings of its method that were selected on AUX validation sequences.
        extra: whether the paper lacks it, so that no claim is about it.
        mode: the mode that it is run in; set by `StudyData.run`.
        settings: the recipe, the steps and the selected settings, which `parameters` override; set by `StudyData.run`.
    """

    aux: int = 0
    selected: bool = False
    extra: bool = False
    mode: Mode = "input"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make_detector(self, seed: int = 0) -> Detector:
        """Return the unfitted detector, with `seed` added to its own."""
        return Entry(self.method, {**self.settings, **self.parameters}).make_detector(seed)


@dataclass(frozen=True)
class RowResult(Result):
    """The result of a row."""

    entry: Row

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the detector on the first split; empty if all splits failed."""
        return self.entry.make_detector().get_params(deep=False) if self.runs else {}

    @property
    def mean_auroc(self) -> float:
        """The mean AUROC over the OOD sets and splits, in percent."""
        return self.summarize(MEAN, "auroc").mean

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain JSON."""
        facts = {
            "mode": self.entry.mode,
            "row": self.entry.label,
            "method": self.entry.kind.name,
            "parameters": {name: to_json(value) for name, value in self.parameters.items()},
            "aux": self.entry.aux,
            "failures": self.failure_notes,
            "splits": [run.to_json() for run in self.runs],
        }
        if self.failures:
            return facts
        figures = {
            dataset: {metric: self.summarize(dataset, metric)._asdict() for metric in ("auroc", "fpr95")}
            for dataset in self.datasets
        }
        return facts | {"results": figures}


@dataclass(frozen=True)
class TableContext:
    """What decides which rows a table has.

    Attributes:
        mode: whether states of the input or of the output are looked at.
        dim: D.
        aux: the number of AUX sequences of a split.
        settings: the sizes of the experiment.
    """

    mode: Mode
    dim: int
    aux: int
    settings: Settings


@dataclass
class StudyData:
    """The stores of an experiment: their splits, the settings selected on them, and the results of rows.

    Attributes:
        data: the sets.
        stores: the folders by mode and role.
        seeds: the number of splits.
        recipe: the recipe of AP-OOD.
        cache: the folder for fits and scores.
        jobs: the number of fits at once.
        train_share: the share of the ID training store that a split draws.
        model: the model that the tokens come from.
        selections: the searches for settings so far, by mode, method and whether they learn from AUX sequences.
    """

    data: DataSets
    stores: Mapping[tuple[Mode, str], Path]
    seeds: int
    recipe: RecipeChoice
    cache: Path
    jobs: int = 1
    train_share: float = SHARE
    model: ModelFacts | None = None
    selections: dict[tuple[Mode, str, bool], Selection] = field(default_factory=dict)
    _splits: dict[tuple[Mode, int], Split] = field(default_factory=dict)

    @property
    def modes(self) -> list[Mode]:
        """The modes that there are stores for."""
        return list(dict.fromkeys(mode for mode, _ in self.stores))

    def context(self, mode: Mode) -> TableContext:
        """Return what decides which rows the table of a mode has."""
        train = self._open(mode, "id_train" if (mode, "id_train") in self.stores else "id")
        aux = _drop_empty(self._open(mode, "aux")) if (mode, "aux") in self.stores else ()
        return TableContext(mode, train.dim, round(SHARE * len(aux)), self.data.settings)

    def split(self, mode: Mode, number: int) -> Split:
        """Return the data of split `number`, from 0 on."""
        if (mode, number) not in self._splits:
            self._splits[mode, number] = self._make_split(mode, number)
        return self._splits[mode, number]

    def _make_split(self, mode: Mode, number: int) -> Split:
        train: TokenSource
        test: TokenSource
        if (mode, "id") in self.stores:
            train, rest = split(_drop_empty(self._open(mode, "id")), _TEST_SHARE, number)
            test = split(rest, min(1.0, self.data.settings.evaluated / len(rest)), number)[1]
        else:
            train = draw_share(_drop_empty(self._open(mode, "id_train")), self.train_share, number)
            test = draw_share(self._open(mode, "id_test"), SHARE, number)
        has_aux = (mode, "aux") in self.stores
        return Split(
            train,
            test,
            {name: draw_share(self._open(mode, OOD + name), SHARE, number) for name in self.data.ood},
            draw_share(_drop_empty(self._open(mode, "aux")), SHARE, number) if has_aux else None,
            seed=number,
        )

    def _open(self, mode: Mode, role: str) -> TokenStore:
        return TokenStore(self.stores[mode, role])

    def resolve(self, row: Row, mode: Mode) -> Row:
        """Return the row with its mode and settings, which are selected first if that was not done yet."""
        settings: dict[str, Any] = {}
        if "steps" in signature(row.kind).parameters and self.data.settings.steps is not None:
            settings["steps"] = self.data.settings.steps
        if issubclass(row.kind, APOOD):
            settings["recipe"] = self.recipe
        if issubclass(row.kind, Entropy) and self.recipe != "robust":
            settings["temperature"] = _PUBLISHED_TEMPERATURE
        row = replace(row, mode=mode, settings=settings)
        return replace(row, settings=settings | self._select(row)) if row.selected else row

    def _select(self, row: Row) -> dict[str, Any]:
        """Return the settings in the grid of a row that separate ID from AUX validation sequences best.

        They are selected once per method, on the first split. With the robust recipe, nothing is selected for any
        method, and without AUX sequences nothing can be: all keep their defaults.
        """
        if self.recipe == "robust" or (row.mode, "aux") not in self.stores:
            return {}
        supervised = row.aux > 0
        key = (row.mode, row.kind.name, supervised)
        if key not in self.selections:
            data = self.split(row.mode, 0)
            grid = search_grid(row, self.data.settings, data.train.dim)
            first = {name: values[0] for name, values in grid.items()}
            fixed = {} if issubclass(row.kind, APOOD) else row.parameters  # ablations share the settings of AP-OOD
            self.selections[key] = select(
                row.kind(**{**row.settings, **first, **fixed}),
                data.train,
                aux=data.aux,
                supervised=supervised,
                grid=grid,
                cache=self.cache,
                jobs=self.jobs if self.jobs > 1 else None,
            )
        best = self.selections[key].best
        assert best is not None  # with AUX sequences to judge by, there is a best one or an error
        return dict(best.settings)

    def run(self, rows: Mapping[Mode, Sequence[Row]]) -> list[RowResult]:
        """Return the results of all rows on all splits; those in the cache are not computed again.

        A row that cannot be fitted or scored stops no other; raise InputError if all fail.
        """
        wanted = [(row, mode) for mode, own in rows.items() for row in own]
        resolved = [attempt(lambda pair: self.resolve(*pair), pair) for pair in wanted]
        entries = [(row, self._splits_for(row)) for row in resolved if isinstance(row, Row)]
        jobs = self.jobs if self.jobs > 1 else None
        done = iter(run_study(entries, cache=self.cache, jobs=jobs, what="rows") if entries else [])
        results = []
        for (row, mode), found in zip(wanted, resolved, strict=True):
            if isinstance(found, Failure):  # no settings could be selected
                failures = dict.fromkeys(range(1, self.seeds + 1), found.reason)
                results.append(RowResult(replace(row, mode=mode), [], failures))
            else:
                result = next(done)
                results.append(RowResult(found, result.runs, result.failures))
        refuse_all_failed(results, "rows")
        return results

    def _splits_for(self, row: Row) -> list[Split]:
        """Return the splits of a row; without tokens, a method is fitted on test sequences, which have its channels."""
        splits = [self.split(row.mode, number) for number in range(self.seeds)]
        if "tokens" in row.requires:
            return splits
        return [replace(data, train=_drop_empty(data.test)) for data in splits]


def _drop_empty(source: TokenSource) -> TokenSource:
    """Return the sequences that have tokens; nothing can be learnt from the others."""
    nonempty = source.lengths > 0
    return source if bool(torch.all(nonempty)) else Subset(source, nonempty)


def search_grid(row: Row, settings: Settings, dim: int) -> dict[str, list[Any]]:
    """Return the settings to choose from for the method of a row: the paper's grid for AP-OOD, else the method's own.

    The paper selects settings of AP-OOD only. Here every method that is cheap to fit gets the same chance.
    """
    if issubclass(row.kind, APOOD):
        return _list_paper_grid(settings, dim, supervised=row.aux > 0)
    space = row.make_detector().hyperparameter_space(dim, supervised=row.aux > 0)
    grid = {name: list(dict.fromkeys(point[name] for point in space)) for name in space[0]}
    fixed = {*row.parameters, *(() if settings.steps is None else ("steps",))}
    return {name: values for name, values in grid.items() if name not in fixed}


def _list_paper_grid(settings: Settings, dim: int, *, supervised: bool) -> dict[str, list[Any]]:
    """Return the paper's grid, restricted to values of T that divide D; M is D / T by the recipe."""
    queries = [count for count in settings.queries if dim % count == 0]
    if not queries:
        given = ", ".join(map(str, settings.queries))
        raise InputError(
            f"The number of heads is D / T, and none of the queries T to search ({given}) divides D = {dim}."
        )
    betas = sorted({resolve_beta(beta, dim) for beta in settings.betas})
    grid: dict[str, list[Any]] = {"beta": betas, "queries": queries}
    return grid | ({"aux_weight": list(settings.aux_weights)} if supervised else {})
