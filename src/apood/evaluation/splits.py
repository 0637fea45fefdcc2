"""The data of one split of a plan."""

from pathlib import Path
from typing import NamedTuple

from apood.evaluation.plan import Method, Plan
from apood.tokens.source import TokenSource, split
from apood.tokens.store import TokenStore

__all__ = ["SplitData", "split_data"]


class SplitData(NamedTuple):
    """What a method learns from and what it scores in one split."""

    train: TokenSource
    aux: TokenSource | None
    test: TokenSource
    validation: TokenSource | None
    ood: dict[str, TokenSource]


def split_data(plan: Plan, number: int, method: Method) -> SplitData:
    """The data of split `number` with the channels that the method reads.

    A split draws `plan.share` of every store at random, without repetition, with the seed `plan.seed + number`. So a
    set has the same sequences in a split whatever other sets there are, and stores of the same size, such as texts and
    their shuffled copies, are drawn from at the same places. The store `plan.id` is parted instead, and nothing of it
    is left out.
    """
    seed = plan.seed + number
    channels = tuple(sorted(method.detector().requires - {"tokens"}))

    def drawn(folder: Path) -> TokenSource:
        store = TokenStore(folder, channels=channels)
        return store if plan.share == 1 else split(store, plan.share, seed)[1]

    train: TokenSource
    test: TokenSource
    if plan.id is not None:
        train, test = split(TokenStore(plan.id, channels=channels), plan.test_share, seed)
    else:
        assert plan.id_train is not None and plan.id_test is not None  # a checked plan has both
        train, test = drawn(plan.id_train), drawn(plan.id_test)
    return SplitData(
        train=train,
        aux=drawn(plan.aux) if plan.aux is not None and method.uses_aux else None,
        test=test,
        validation=None if plan.id_validation is None else drawn(plan.id_validation),
        ood={name: drawn(folder) for name, folder in plan.ood.items()},
    )
