"""What an experiment works with once its stores are there: splits of them, settings, and fits that are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from apood.detectors.ap_ood.detector import APOOD
from apood.evaluation.selection import Selection, select
from apood.evaluation.split import Split, draw_share
from apood.experiments.paper.data import OOD, Data
from apood.experiments.paper.model import Model
from apood.experiments.paper.settings import SHARE, Settings, beta_of
from apood.experiments.paper.tasks import Mode, Task
from apood.support.errors import InputError
from apood.tokens.source import Subset, TokenSource, split
from apood.tokens.store import TokenStore

__all__ = ["RecipeChoice", "Scene", "Study", "grid_of", "with_tokens"]

RecipeChoice = Literal["paper", "robust"]
_TEST_SHARE = 0.2  # of an ID set that is not parted by its files


@dataclass(frozen=True)
class Scene:
    """What decides which rows a table has.

    Attributes:
        mode: whose states are looked at.
        dim: D.
        aux: how many AUX sequences a split has.
        settings: of the experiment.
    """

    mode: Mode
    dim: int
    aux: int
    settings: Settings


class Study:
    """The stores of an experiment, and what is chosen and fitted on them.

    Args:
        task: what it is about.
        data: its sets.
        stores: by mode and role.
        seeds: how many splits.
        recipe: of AP-OOD.
        cache: where fits and scores are kept.
        jobs: how many fits at once.
        train_share: how much of the ID training store a split draws.
        model: whose tokens they are.
    """

    def __init__(
        self,
        task: Task,
        data: Data,
        stores: Mapping[tuple[Mode, str], Path],
        *,
        seeds: int,
        recipe: RecipeChoice,
        cache: Path,
        jobs: int = 1,
        train_share: float = SHARE,
        model: Model | None = None,
    ) -> None:
        self.data, self.model, self.jobs, self._train_share = data, model, jobs, train_share
        self.task, self.settings, self.seeds, self.recipe, self.cache = task, data.settings, seeds, recipe, cache
        self.ood, self.left_out = tuple(data.ood), data.left_out
        self._stores = dict(stores)
        self.selections: dict[tuple[Mode, bool], Selection] = {}
        self._splits: dict[tuple[Mode, int], Split] = {}

    @property
    def modes(self) -> list[Mode]:
        """Whose states there are."""
        return list(dict.fromkeys(mode for mode, _ in self._stores))

    def scene(self, mode: Mode) -> Scene:
        """What decides which rows the table of a mode has."""
        train = self._opened(mode, "id_train" if (mode, "id_train") in self._stores else "id")
        aux = self._opened(mode, "aux") if (mode, "aux") in self._stores else None
        return Scene(mode, train.dim, 0 if aux is None else round(SHARE * len(with_tokens(aux))), self.settings)

    def split(self, mode: Mode, number: int) -> Split:
        """Return the data of split `number`; many rows share it."""
        if (mode, number) not in self._splits:
            self._splits[mode, number] = self._draw_split(mode, number)
        return self._splits[mode, number]

    def _draw_split(self, mode: Mode, number: int) -> Split:
        train: TokenSource
        test: TokenSource
        if (mode, "id") in self._stores:
            train, rest = split(with_tokens(self._opened(mode, "id")), _TEST_SHARE, number)
            test = split(rest, min(1.0, self.settings.evaluated / len(rest)), number)[1]
        else:
            train = draw_share(with_tokens(self._opened(mode, "id_train")), self._train_share, number)
            test = draw_share(self._opened(mode, "id_test"), SHARE, number)
        has_aux = (mode, "aux") in self._stores
        return Split(
            train=train,
            test=test,
            ood={name: draw_share(self._opened(mode, OOD + name), SHARE, number) for name in self.ood},
            aux=draw_share(with_tokens(self._opened(mode, "aux")), SHARE, number) if has_aux else None,
            seed=number,
        )

    def selected(self, mode: Mode, *, supervised: bool) -> dict[str, Any]:
        """The settings of AP-OOD that tell ID from AUX validation sequences best, of the paper's grid.

        They are chosen once, on the first split. Without AUX sequences nothing can be chosen, and the robust recipe
        needs no choice: both take their recipe's defaults.
        """
        if self.recipe == "robust" or (mode, "aux") not in self._stores:
            return {}
        if (mode, supervised) not in self.selections:
            data = self.split(mode, 0)
            grid = grid_of(self.settings, data.train.dim, supervised=supervised)
            first = {name: values[0] for name, values in grid.items()}
            detector = APOOD(recipe="paper", steps=self.settings.steps, **first)
            self.selections[mode, supervised] = select(
                detector,
                data.train,
                aux=data.aux,
                supervised=supervised,
                grid=grid,
                cache=self.cache,
                jobs=self.jobs if self.jobs > 1 else None,
            )
        best = self.selections[mode, supervised].best
        if best is None:
            reason = self.selections[mode, supervised].points[0].failure
            raise InputError(f"None of the settings of AP-OOD could be fitted to choose from; the first: {reason}")
        return dict(best.settings)

    def _opened(self, mode: Mode, role: str) -> TokenStore:
        return TokenStore(self._stores[mode, role])


def with_tokens(source: TokenSource) -> TokenSource:
    """Without the sequences that have no tokens, from which nothing can be learnt."""
    filled = source.lengths > 0
    return source if bool(torch.all(filled)) else Subset(source, filled)


def grid_of(settings: Settings, dim: int, *, supervised: bool) -> dict[str, list[Any]]:
    """The paper's grid, as far as T divides D; M is D / T by the recipe."""
    queries = [count for count in settings.queries if dim % count == 0]
    if not queries:
        given = ", ".join(map(str, settings.queries))
        raise InputError(f"Heads are D / T, and none of the queries T to choose from ({given}) divides D = {dim}.")
    grid: dict[str, list[Any]] = {"beta": sorted({beta_of(beta, dim) for beta in settings.betas}), "queries": queries}
    return grid | ({"aux_weight": list(settings.aux_weights)} if supervised else {})
