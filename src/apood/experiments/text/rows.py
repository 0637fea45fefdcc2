"""The methods of the benchmark: each at its defaults, and each with the normalisations that it was published with.

Everything is measured on every view, since a baseline on a worse view than the default would prove nothing. Avg-Avg
(Chen et al. 2022, arXiv 2210.07485) is the Mahalanobis distance of the mean over tokens of the mean over layers: here
it is the row of raw Mahalanobis on the view `mix`. It departs from the paper in that each state is scaled to length 1
before the mean over layers, and the embedding layer is left out. TRUSTED is likewise the row `TRUSTED` on `mix`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib import import_module

from apood.detectors.contract.base import Detector
from apood.detectors.contract.registry import list_methods
from apood.evaluation.entry import Entry
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = ["ALONE", "AUX_COUNTS", "CONTROL", "DEFAULT", "WITH_AUX", "choose_rows", "depends_on_view", "list_rows"]

DEFAULT, CONTROL = "default", "length"
AUX_COUNTS = (8, 32, 128, 600)

ALONE = (
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
    Entry("trusted", name="TRUSTED"),
    Entry("perplexity", name="perplexity"),
    Entry("length", name=CONTROL),
)
"""The rows without AUX texts."""

WITH_AUX = (
    Entry("default", name=DEFAULT),
    Entry("ap-ood", name="AP-OOD"),
    Entry("deep-sad", name="Deep SAD"),
    Entry("binary-logits", name="binary logits"),
    Entry("relative-mahalanobis", name="relative Mahalanobis"),
)
"""The rows that learn from AUX texts; each is run with growing numbers of them."""

_AVG_AVG = ("Mahalanobis, raw", "mix", "Avg-Avg (Mahalanobis, raw)")


def choose_rows(names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries of the named methods; all of the benchmark if no name is given.

    A name is that of a method (`knn`, or one that another distribution adds), the label of a row ("KNN, pooled"), or
    `module:Class` for a detector that is not registered.
    """
    if not names:
        return ALONE
    found: list[Entry] = []
    for name in names:
        own = [entry for entry in ALONE if name in (entry.label, entry.method)]
        if not own and ":" in name:
            kind = _import_class(name)
            own = [Entry(kind, name=kind.name)]
        elif not own:
            known = [*list_methods(), *(entry.label for entry in ALONE)]
            if name not in known and name != "default":
                raise InputError(
                    f"There is no method {name!r}{suggest_name(name, known)}; there are {', '.join(list_methods())}, "
                    "and module:Class for one that is not registered."
                )
            own = [Entry(name, name=name)]
        found += [entry for entry in own if entry not in found]
    for entry in found:
        entry.check()
    return tuple(found)


def _import_class(name: str) -> type[Detector]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # importing code of others can raise anything
        raise InputError(f"The method {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Detector)):
        raise InputError(f"The method {name!r} is {found!r}, not a subclass of Detector.")
    return found


def list_rows(
    chosen: Sequence[Entry], view: str, channels: Collection[str], aux: int, *, first_view: bool
) -> tuple[list[Entry], list[Entry]]:
    """Return the rows of a view without and with AUX texts.

    Args:
        chosen: the entries from `choose_rows`.
        view: the view; see `apood embed --layers`.
        channels: the channels that the stores have beside tokens.
        aux: the number of AUX texts.
        first_view: whether it is the first view, on which the rows are run that no view changes.
    """
    readable = [
        entry
        for entry in chosen
        if entry.requires <= {"tokens", *channels} and (first_view or depends_on_view(entry))
    ]
    alone = [replace(entry, name=_name_on(view, entry)) for entry in readable if entry.make_detector().aux != "required"]
    methods = {entry.method for entry in chosen}
    learners = [entry for entry in WITH_AUX if chosen is ALONE or entry.method in methods]
    own = {entry.method for entry in WITH_AUX}
    learners += [entry for entry in readable if entry.method not in own and entry.make_detector().aux != "unused"]
    counted = [
        replace(entry, name=f"{entry.label}, {count} AUX", aux=count)
        for entry in learners
        for count in AUX_COUNTS
        if count <= aux
    ]
    return alone, counted


def depends_on_view(entry: Entry) -> bool:
    """Return whether the scores of an entry change with the layers that tokens are made of."""
    return "tokens" in entry.requires and entry.method != "length"


def _name_on(view: str, entry: Entry) -> str:
    label, mix, name = _AVG_AVG
    return name if (entry.label, view) == (label, mix) else entry.label
