"""Tables 1, 2, 3 and 6: AP-OOD and its baselines, without AUX sequences."""

from collections.abc import Sequence

from apood.experiments.paper.claims import ahead_of, best_mean
from apood.experiments.paper.experiment import TableExperiment
from apood.experiments.paper.study_data import Row, TableContext
from apood.experiments.paper.tasks import AUDIO, LANGUAGE_MODEL, SUMMARIZATION, TRANSLATION

__all__ = ["AUDIO_BENCH", "LANGUAGE_MODEL_BENCH", "SUMMARIZATION_BENCH", "TRANSLATION_BENCH"]

_PERPLEXITY, _ENTROPY = Row("perplexity", name="Perplexity"), Row("entropy", name="Entropy")
_BASELINES = (
    Row("mahalanobis", name="Mahalanobis"),
    Row("knn", name="KNN"),
    Row("deep-svdd", name="Deep SVDD"),
)
_BASELINE_LABELS = [row.label for row in _BASELINES]
_AP_OOD = Row("ap-ood", name="AP-OOD", selected=True)
_DEFAULT = Row("default", name="apood's default", extra=True)
_LENGTH = Row("length", name="Length only", extra=True)  # a control: it knows nothing but the length of a text


def _generator_rows(context: TableContext) -> Sequence[Row]:
    likelihoods = (_PERPLEXITY, _ENTROPY) if context.mode == "output" else ()
    return (*likelihoods, *_BASELINES, _AP_OOD, _DEFAULT, _LENGTH)


def _causal_rows(context: TableContext) -> Sequence[Row]:  # noqa: ARG001
    return (_PERPLEXITY, *_BASELINES, _AP_OOD, _DEFAULT, _LENGTH)


def _sound_rows(context: TableContext) -> Sequence[Row]:  # noqa: ARG001
    """Return the rows of table 3, with the paper's M and T."""
    logits = (Row("msp", name="MSP"), Row("energy", name="Energy"))
    return (*_BASELINES, *logits, Row("ap-ood", {"heads": 128, "queries": 8}, "AP-OOD"), _DEFAULT)


SUMMARIZATION_BENCH = TableExperiment(
    "summarization",
    SUMMARIZATION,
    _generator_rows,
    (best_mean("AP-OOD"), ahead_of([*_BASELINE_LABELS, "AP-OOD"], ["Perplexity", "Entropy"])),
)
TRANSLATION_BENCH = TableExperiment(
    "translation",
    TRANSLATION,
    _generator_rows,
    # By AUROC, KNN is ahead of perplexity in the paper's own table.
    (best_mean("AP-OOD"), ahead_of(["Perplexity"], _BASELINE_LABELS, "fpr95")),
)
LANGUAGE_MODEL_BENCH = TableExperiment("language-model", LANGUAGE_MODEL, _causal_rows, (best_mean("AP-OOD"),))
AUDIO_BENCH = TableExperiment(
    "audio", AUDIO, _sound_rows, (best_mean("AP-OOD"), ahead_of(["AP-OOD"], ["MSP", "Energy"]))
)
