"""The experiments by name, listed without importing any of them."""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.experiments.paper.experiment import Experiment

__all__ = ["CATALOGUE", "CatalogueEntry", "load_experiment"]


class CatalogueEntry(NamedTuple):
    """The table or figure that an experiment repeats, what it is about, and the module that declares it."""

    shows: str
    about: str
    module: str


_TABLES = "plain_tables"
_WITH_AUX = "with AUX sequences, from none to all"
CATALOGUE = {
    "summarization": CatalogueEntry("table 1", "unsupervised, a summarizer", _TABLES),
    "translation": CatalogueEntry("table 2", "unsupervised, a translator", _TABLES),
    "audio": CatalogueEntry("table 3", "unsupervised, a classifier of sounds", _TABLES),
    "summarization-supervised": CatalogueEntry("table 4, figures 3 and 5", _WITH_AUX, "supervised"),
    "translation-supervised": CatalogueEntry("table 5", _WITH_AUX, "supervised"),
    "language-model": CatalogueEntry("table 6", "unsupervised, a causal language model", _TABLES),
    "score-ablation": CatalogueEntry("table 7", "the sum over heads or their minimum", _TABLES),
    "beta-ablation": CatalogueEntry("table 8", "the inverse temperature β", _TABLES),
    "heads-ablation": CatalogueEntry("table 9", "many heads or many queries, M T = D", _TABLES),
    "similarity-ablation": CatalogueEntry("table 10", "dot product, Euclidean distance, idealised kernel", _TABLES),
    "scaling": CatalogueEntry("figure 4", "more and more heads and queries", "scaling"),
    "heads-vs-queries": CatalogueEntry(
        "appendix C.3", "heads are learnt independently, many queries over-fit", "heads_and_queries"
    ),
    "attention-maps": CatalogueEntry("figure 6", "the tokens that heads attend to", "attention_maps"),
    "multiple-instance": CatalogueEntry(
        "first example of the reference code", "bags of vectors (MUSK)", "multiple_instance"
    ),
}


def load_experiment(name: str) -> "Experiment":
    """Return the experiment called `name`, from the tuple EXPERIMENTS of its module."""
    if name not in CATALOGUE:
        raise InputError(
            f"There is no experiment {name!r}{suggest_name(name, CATALOGUE)}; there are {', '.join(CATALOGUE)}."
        )
    experiments: tuple[Experiment, ...] = import_module(f"apood.experiments.paper.{CATALOGUE[name].module}").EXPERIMENTS
    return next(experiment for experiment in experiments if experiment.name == name)
