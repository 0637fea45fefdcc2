"""Splits of a study: the data of one repetition, and how it is drawn."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from apood.evaluation.entry import Entry
from apood.support.errors import InputError
from apood.tokens.documents import WINDOW, count_documents
from apood.tokens.source import Subset, TokenSource, split
from apood.tokens.store import TokenStore

__all__ = ["Split", "draw_share", "narrow_channels"]


@dataclass(frozen=True)
class Split:
    """The data of one repetition of a study.

    Attributes:
        train: ID sequences to fit on.
        test: ID sequences to score.
        ood: OOD sequences to score, by the name of their set.
        aux: auxiliary outliers, for the entries that learn from them.
        validation: ID sequences to set a threshold with.
        seed: added to the seed of every entry that has one.
    """

    train: TokenSource
    test: TokenSource
    ood: Mapping[str, TokenSource] = field(default_factory=dict)
    aux: TokenSource | None = None
    validation: TokenSource | None = None
    seed: int = 0

    def read_for(self, entry: Entry) -> "Split":
        """Return the split with only the channels that an entry reads and the AUX sequences that it learns from."""
        channels = entry.reads

        def narrow(source: TokenSource) -> TokenSource:
            return narrow_channels(source, channels)

        aux = None
        if entry.uses_aux:
            if self.aux is None:
                raise InputError(f"{entry.label} learns from AUX sequences, and there are none.")
            aux = narrow(self.aux)
            if isinstance(entry.aux, int) and entry.aux:
                aux = Subset(aux, slice(entry.aux))
        return replace(
            self,
            train=narrow(self.train),
            test=narrow(self.test),
            ood={name: narrow(source) for name, source in self.ood.items()},
            aux=aux,
            validation=None if self.validation is None else narrow(self.validation),
        )

    def has_data_of(self, other: "Split") -> bool:
        """Return whether two splits differ at most in their seeds."""
        mine, theirs = ((one.train, one.test, one.aux, one.validation, *one.ood.values()) for one in (self, other))
        return len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))


def draw_share(source: TokenSource, share: float, seed: int) -> TokenSource:
    """Return a random share of the documents, at least one; the source itself if the share is 1.

    Sources of the same size, such as texts and their shuffled copies, are drawn from at the same places.
    """
    return source if share == 1 else split(source, max(share, 1 / count_documents(source)), seed)[1]


def narrow_channels(source: TokenSource, wanted: frozenset[str]) -> TokenSource:
    """Return the source without channels that need not be read; they can be far larger than the tokens."""
    if isinstance(source, TokenStore):
        kept = tuple(name for name in source.channels if name in wanted or name == WINDOW)
        if kept != source.channels:
            source = copy.copy(source)
            source.channels = kept
        return source
    if isinstance(source, Subset):
        inner = narrow_channels(source.source, wanted)
        return source if inner is source.source else Subset(inner, source.indices)
    return source
