"""The experiments by name, listed without importing any of them."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.experiments.paper.experiment import Experiment

__all__ = ["CATALOGUE", "CatalogueEntry", "load_experiment"]


@dataclass(frozen=True)
class CatalogueEntry:
    """An experiment in the list.

    Attributes:
        shows: the table or figure of the paper that it repeats.
        about: what it is about, in a few words.
        where: the module and the name of its declaration.
    """

    shows: str
    about: str
    where: str


CATALOGUE = {
    "summarization": CatalogueEntry("table 1", "unsupervised, a summarizer", "unsupervised:SUMMARIZATION_BENCH"),
    "translation": CatalogueEntry("table 2", "unsupervised, a translator", "unsupervised:TRANSLATION_BENCH"),
    "audio": CatalogueEntry("table 3", "unsupervised, a classifier of sounds", "unsupervised:AUDIO_BENCH"),
    "summarization-supervised": CatalogueEntry(
        "table 4, figures 3 and 5", "with AUX sequences, from none to all", "supervised:SUMMARIZATION_BENCH"
    ),
    "translation-supervised": CatalogueEntry(
        "table 5", "with AUX sequences, from none to all", "supervised:TRANSLATION_BENCH"
    ),
    "language-model": CatalogueEntry(
        "table 6", "unsupervised, a causal language model", "unsupervised:LANGUAGE_MODEL_BENCH"
    ),
    "score-ablation": CatalogueEntry("table 7", "the sum over heads or their minimum", "ablations:SCORE_BENCH"),
    "beta-ablation": CatalogueEntry("table 8", "the inverse temperature β", "ablations:BETA_BENCH"),
    "heads-ablation": CatalogueEntry("table 9", "many heads or many queries, M T = D", "ablations:HEADS_BENCH"),
    "similarity-ablation": CatalogueEntry(
        "table 10", "dot product, Euclidean distance, idealised kernel", "ablations:SIMILARITY_BENCH"
    ),
    "scaling": CatalogueEntry("figure 4", "more and more heads and queries", "scaling:SCALING_BENCH"),
    "heads-vs-queries": CatalogueEntry(
        "appendix C.3",
        "heads are learnt independently, many queries over-fit",
        "heads_and_queries:HEADS_AND_QUERIES_BENCH",
    ),
    "attention-maps": CatalogueEntry(
        "figure 6", "the tokens that heads attend to", "attention_maps:ATTENTION_MAPS_BENCH"
    ),
    "multiple-instance": CatalogueEntry(
        "first example of the reference code", "bags of vectors (MUSK)", "multiple_instance:MULTIPLE_INSTANCE_BENCH"
    ),
}


def load_experiment(name: str) -> "Experiment":
    """Return the experiment called `name`."""
    if name not in CATALOGUE:
        raise InputError(
            f"There is no experiment {name!r}{suggest_name(name, CATALOGUE)}; there are {', '.join(CATALOGUE)}."
        )
    module, _, declared = CATALOGUE[name].where.partition(":")
    found: Experiment = getattr(import_module(f"apood.experiments.paper.{module}"), declared)
    return found
