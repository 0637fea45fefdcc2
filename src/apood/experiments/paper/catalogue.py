"""The experiments by name: light enough to be listed without loading any of them."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from apood.support.checks import suggest_name
from apood.support.errors import InputError

if TYPE_CHECKING:
    from apood.experiments.paper.bench import Experiment

__all__ = ["CATALOGUE", "Listed", "experiment"]

_HERE = "apood.experiments.paper"


@dataclass(frozen=True)
class Listed:
    """An experiment of the paper.

    Attributes:
        shows: what of the paper it repeats.
        about: in a few words.
        where: the module and the name of its declaration.
    """

    shows: str
    about: str
    where: str


CATALOGUE = {
    "summarization": Listed("table 1", "unsupervised, a summarizer", "unsupervised:SUMMARIZATION_BENCH"),
    "translation": Listed("table 2", "unsupervised, a translator", "unsupervised:TRANSLATION_BENCH"),
    "audio": Listed("table 3", "unsupervised, a classifier of sounds", "unsupervised:AUDIO_BENCH"),
    "summarization-supervised": Listed(
        "table 4, figures 3 and 5", "with AUX sequences, from none to all", "supervised:SUMMARIZATION_BENCH"
    ),
    "translation-supervised": Listed("table 5", "with AUX sequences, from none to all", "supervised:TRANSLATION_BENCH"),
    "language-model": Listed("table 6", "unsupervised, a causal language model", "unsupervised:LANGUAGE_MODEL_BENCH"),
    "score-ablation": Listed("table 7", "the sum over heads or their minimum", "ablations:SCORE_BENCH"),
    "beta-ablation": Listed("table 8", "the inverse temperature β", "ablations:BETA_BENCH"),
    "heads-ablation": Listed("table 9", "many heads or many queries, M T = D", "ablations:HEADS_BENCH"),
    "similarity-ablation": Listed(
        "table 10", "dot product, Euclidean distance, idealised kernel", "ablations:SIMILARITY_BENCH"
    ),
    "scaling": Listed("figure 4", "ever more heads and queries", "scaling:SCALING_BENCH"),
    "heads-vs-queries": Listed(
        "appendix C.3", "heads learn alone, queries together and by heart", "heads_and_queries:HEADS_AND_QUERIES_BENCH"
    ),
    "attention-maps": Listed("figure 6", "which tokens the heads look at", "attention_maps:ATTENTION_MAPS_BENCH"),
    "multiple-instance": Listed(
        "first example of the reference code", "bags of vectors (MUSK)", "multiple_instance:MULTIPLE_INSTANCE_BENCH"
    ),
}


def experiment(name: str) -> "Experiment":
    """The experiment that goes by the name."""
    if name not in CATALOGUE:
        raise InputError(
            f"There is no experiment {name!r}{suggest_name(name, CATALOGUE)}; there are {', '.join(CATALOGUE)}."
        )
    module, _, declared = CATALOGUE[name].where.partition(":")
    found: Experiment = getattr(import_module(f"{_HERE}.{module}"), declared)
    return found
