"""Tables 1 to 3 and 6 to 10, which need nothing but their rows: methods without AUX sequences, and ablations."""

from collections.abc import Sequence

from apood.experiments.paper.claims import claim_ahead_of, claim_best_mean
from apood.experiments.paper.experiment import TableExperiment
from apood.experiments.paper.idealised import IdealisedKernel
from apood.experiments.paper.study_data import Row, TableContext
from apood.experiments.paper.tasks import AUDIO, LANGUAGE_MODEL, SUMMARIZATION, TRANSLATION, resolve_beta

__all__ = ["EXPERIMENTS"]

_PERPLEXITY, _ENTROPY = Row("perplexity", name="Perplexity"), Row("entropy", name="Entropy")
_BASELINES = (
    Row("mahalanobis", name="Mahalanobis", selected=True),
    Row("knn", name="KNN", selected=True),
    Row("deep-svdd", name="Deep SVDD", selected=True),
)
_BASELINE_LABELS = [row.label for row in _BASELINES]
_DEFAULT = Row("default", name="apood's default", extra=True)
_LENGTH = Row("length", name="Length only", extra=True)  # a control: it knows nothing but the length of a text
_USUAL = (*_BASELINES, Row("ap-ood", name="AP-OOD", selected=True), _DEFAULT, _LENGTH)
_KERNEL = "idealised kernel, M = D, β = 1/√D"  # its defaults: the settings selected for AP-OOD do not apply


def _make_ap_ood_row(label: str, **parameters: object) -> Row:
    """Return AP-OOD with the settings of table 1, except for `parameters`."""
    return Row("ap-ood", parameters, label, selected=True)


def _generator_rows(context: TableContext) -> Sequence[Row]:
    return (_PERPLEXITY, _ENTROPY, *_USUAL) if context.mode == "output" else _USUAL


def _beta_rows(context: TableContext) -> Sequence[Row]:
    inverse_root = _make_ap_ood_row("β = 1/√D", beta=resolve_beta("1/sqrt(D)", context.dim))
    return [*(_make_ap_ood_row(f"β = {beta:g}", beta=beta) for beta in (0.0, 0.25, 0.5, 1.0, 2.0)), inverse_root]


def _heads_rows(context: TableContext) -> Sequence[Row]:
    """Return a row for each power of two up to 1024 that divides D, as T, with M T = D."""
    counts = [2**power for power in range(11) if context.dim % 2**power == 0]
    return [_make_ap_ood_row(f"T = {count}", queries=count, heads=context.dim // count) for count in counts]


def _similarity_rows(context: TableContext) -> Sequence[Row]:
    kernel = Row(IdealisedKernel, {"heads": context.dim}, _KERNEL)
    return [
        _make_ap_ood_row("dot product", similarity="dot"),
        _make_ap_ood_row("Euclidean", similarity="euclidean"),
        kernel,
    ]


EXPERIMENTS = (
    TableExperiment(
        "summarization",
        SUMMARIZATION,
        _generator_rows,
        (claim_best_mean("AP-OOD"), claim_ahead_of([*_BASELINE_LABELS, "AP-OOD"], ["Perplexity", "Entropy"])),
    ),
    TableExperiment(
        "translation",
        TRANSLATION,
        _generator_rows,
        # By AUROC, KNN is ahead of perplexity in the paper's own table.
        (claim_best_mean("AP-OOD"), claim_ahead_of(["Perplexity"], _BASELINE_LABELS, "fpr95")),
    ),
    TableExperiment("language-model", LANGUAGE_MODEL, (_PERPLEXITY, *_USUAL), (claim_best_mean("AP-OOD"),)),
    TableExperiment(
        "audio",
        AUDIO,
        (
            *_BASELINES,
            Row("msp", name="MSP"),
            Row("energy", name="Energy"),
            Row("ap-ood", {"heads": 128, "queries": 8}, "AP-OOD"),  # the paper's M and T
            _DEFAULT,
        ),
        (claim_best_mean("AP-OOD"), claim_ahead_of(["AP-OOD"], ["MSP", "Energy"])),
    ),
    TableExperiment(
        "score-ablation",
        SUMMARIZATION,
        (_make_ap_ood_row("s", score="sum"), _make_ap_ood_row("s_min", score="min")),
        (claim_ahead_of(["s"], ["s_min"]),),
    ),
    TableExperiment(
        "beta-ablation",
        SUMMARIZATION,
        _beta_rows,
        (claim_ahead_of([f"β = {beta}" for beta in ("0.25", "0.5", "1", "2")], ["β = 0"]),),
    ),
    TableExperiment(
        "heads-ablation", SUMMARIZATION, _heads_rows, (claim_ahead_of(["T = 1", "T = 2", "T = 4"], ["T = 64"]),)
    ),
    TableExperiment(
        "similarity-ablation",
        SUMMARIZATION,
        _similarity_rows,
        # Appendix B.3 gives no figures for the kernel.
        (claim_ahead_of(["dot product"], ["Euclidean"]), claim_ahead_of(["dot product"], [_KERNEL])),
    ),
)
