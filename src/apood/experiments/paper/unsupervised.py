"""Tables 1, 2, 3 and 6: AP-OOD and its baselines, none of which learns from outliers."""

from collections.abc import Sequence

from apood.experiments.paper.bench import Bench
from apood.experiments.paper.claims import ahead_of, best_mean
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.study import Scene
from apood.experiments.paper.tasks import AUDIO, LANGUAGE_MODEL, SUMMARIZATION, TRANSLATION

__all__ = ["AUDIO_BENCH", "LANGUAGE_MODEL_BENCH", "SUMMARIZATION_BENCH", "TRANSLATION_BENCH"]

_PERPLEXITY, _ENTROPY = Entry("Perplexity", "perplexity"), Entry("Entropy", "entropy")
_EMBEDDING = (
    Entry("Mahalanobis", "mahalanobis"),
    Entry("KNN", "knn"),
    Entry("Deep SVDD", "deep-svdd"),
)
_AP_OOD = Entry("AP-OOD", "ap-ood", selected=True)
_DEFAULT = Entry("apood's default", "default", extra=True)
_LENGTH = Entry("Length only", "length", extra=True)  # what nothing but the length of a text gives away


def _generated(scene: Scene) -> Sequence[Entry]:
    likelihoods = (_PERPLEXITY, _ENTROPY) if scene.mode == "output" else ()
    return (*likelihoods, *_EMBEDDING, _AP_OOD, _DEFAULT, _LENGTH)


def _causal(scene: Scene) -> Sequence[Entry]:  # noqa: ARG001
    return (_PERPLEXITY, *_EMBEDDING, _AP_OOD, _DEFAULT, _LENGTH)


def _sounds(scene: Scene) -> Sequence[Entry]:  # noqa: ARG001
    """M and T are those of the paper."""
    logits = (Entry("MSP", "msp"), Entry("Energy", "energy"))
    return (*_EMBEDDING, *logits, Entry("AP-OOD", "ap-ood", {"heads": 128, "queries": 8}), _DEFAULT)


_BASELINES = [entry.label for entry in _EMBEDDING]
SUMMARIZATION_BENCH = Bench(
    "summarization",
    SUMMARIZATION,
    _generated,
    (best_mean("AP-OOD"), ahead_of([*_BASELINES, "AP-OOD"], ["Perplexity", "Entropy"])),
)
TRANSLATION_BENCH = Bench(
    "translation",
    TRANSLATION,
    _generated,
    # by AUROC, KNN is ahead in the paper's own table
    (best_mean("AP-OOD"), ahead_of(["Perplexity"], _BASELINES, "fpr95")),
)
LANGUAGE_MODEL_BENCH = Bench("language-model", LANGUAGE_MODEL, _causal, (best_mean("AP-OOD"),))
AUDIO_BENCH = Bench("audio", AUDIO, _sounds, (best_mean("AP-OOD"), ahead_of(["AP-OOD"], ["MSP", "Energy"])))
