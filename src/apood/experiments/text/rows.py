"""The methods of the benchmark: each at its defaults, and each with the normalisations that it was published with.

Everything is measured on every view, since a baseline on a worse view than the default would prove nothing. Avg-Avg
(Chen et al. 2022, arXiv 2210.07485) is the Mahalanobis distance of the mean over tokens of the mean over layers: here
it is the row of raw Mahalanobis on the view `mix`. It departs from the paper in that each state is scaled to length 1
before the mean over layers, and the embedding layer is left out. TRUSTED is likewise the row `TRUSTED` on `mix`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from apood.detectors.contract.registry import list_methods
from apood.evaluation.entry import Entry
from apood.experiments.text.results import make_file_name
from apood.support.checks import suggest_name
from apood.support.errors import InputError

__all__ = [
    "ALONE",
    "AUX_COUNTS",
    "CONTROL",
    "DEFAULT",
    "PRIOR_ART",
    "WITH_AUX",
    "Rows",
    "choose_rows",
    "depends_on_view",
    "list_rows",
]

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
    Entry("coherence", name="coherence of sentences"),
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

PRIOR_ART = {("Mahalanobis, raw", "mix"): "Mahalanobis, raw = Avg-Avg"}
"""The names of rows that are published methods on one view, by label and view."""


class Rows(NamedTuple):
    """The rows to measure, before they are adapted to a task.

    Attributes:
        alone: those without AUX texts.
        learning: those that learn from AUX texts.
    """

    alone: tuple[Entry, ...]
    learning: tuple[Entry, ...]


def choose_rows(names: Sequence[str]) -> Rows:
    """Return the rows of the named methods; all of the benchmark if no name is given.

    A name is that of a method (`knn`, or one that another distribution adds), the label of a row ("KNN, pooled"), or
    `module:Class` for a detector that is not registered.
    """
    if not names:
        return Rows(ALONE, WITH_AUX)
    alone: list[Entry] = []
    learning: list[Entry] = []
    for name in names:
        own = [[entry for entry in rows if name in (entry.label, entry.method)] for rows in (ALONE, WITH_AUX)]
        if not any(own):
            entry = _make_entry(name)
            use = entry.make_detector().aux
            own = [[entry] if use != "required" else [], [entry] if use != "unused" else []]
        alone += [entry for entry in own[0] if entry not in alone]
        learning += [entry for entry in own[1] if entry not in learning]
    for rows, all_rows in ((alone, ALONE), (learning, WITH_AUX)):
        known = {make_file_name(entry.label): entry for entry in all_rows}
        for entry in rows:
            if (other := known.setdefault(make_file_name(entry.label), entry)) is not entry:
                raise InputError(
                    f"{other.method} and {entry.method} are both called {entry.label}: give each class its own `name`."
                )
    return Rows(tuple(alone), tuple(learning))


def _make_entry(name: str) -> Entry:
    if ":" not in name and name not in list_methods():
        known = [*list_methods(), *(entry.label for entry in ALONE)]
        raise InputError(
            f"There is no method {name!r}{suggest_name(name, known)}; there are {', '.join(list_methods())}, and "
            "module:Class for one of your own."
        )
    entry = Entry(name)
    entry.check()
    return entry


def list_rows(rows: Rows, channels: Collection[str], aux: int, *, first_view: bool) -> list[Entry]:
    """Return the entries of a task in one view.

    Args:
        rows: the chosen rows.
        channels: the channels that the stores have beside tokens.
        aux: the number of AUX texts; 0 leaves out what learns from them.
        first_view: whether it is the first view, on which the rows are run that no view changes.
    """

    def fits(entry: Entry) -> bool:
        return entry.requires <= {"tokens", *channels} and (first_view or depends_on_view(entry))

    alone = [entry for entry in rows.alone if fits(entry)]
    counted = [
        replace(entry, name=f"{entry.label}, {count} AUX", aux=count)
        for entry in rows.learning
        if fits(entry)
        for count in AUX_COUNTS
        if count <= aux
    ]
    return [*alone, *counted]


def depends_on_view(entry: Entry) -> bool:
    """Return whether the scores of an entry change with the layers that tokens are made of."""
    return bool(entry.requires & {"tokens", "summary"}) and entry.method != "length"
