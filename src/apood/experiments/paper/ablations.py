"""Tables 7 to 10: the score, beta, the number of queries and the similarity of AP-OOD."""

from collections.abc import Sequence

from apood.experiments.paper.claims import ahead_of
from apood.experiments.paper.experiment import TableExperiment
from apood.experiments.paper.idealised import IdealisedKernel
from apood.experiments.paper.study_data import Row, TableContext
from apood.experiments.paper.tasks import INVERSE_ROOT, SUMMARIZATION, Beta, resolve_beta

__all__ = ["BETA_BENCH", "HEADS_BENCH", "SCORE_BENCH", "SIMILARITY_BENCH"]

_BETAS: dict[str, Beta] = {"0": 0.0, "0.25": 0.25, "0.5": 0.5, "1": 1.0, "2": 2.0, "1/√D": INVERSE_ROOT}
_KERNEL = "idealised kernel, M = D, β = 1/√D"  # its defaults: the settings selected for AP-OOD do not apply


def _ap_ood(label: str, **parameters: object) -> Row:
    """Return AP-OOD with the settings of table 1, except for `parameters`."""
    return Row("ap-ood", parameters, label, selected=True)


def _score_rows(context: TableContext) -> Sequence[Row]:  # noqa: ARG001
    return [_ap_ood("s", score="sum"), _ap_ood("s_min", score="min")]


def _beta_rows(context: TableContext) -> Sequence[Row]:
    return [_ap_ood(f"β = {name}", beta=resolve_beta(beta, context.dim)) for name, beta in _BETAS.items()]


def _heads_rows(context: TableContext) -> Sequence[Row]:
    """Return a row for each power of two up to 1024 that divides D, as T, with M T = D."""
    counts = [2**power for power in range(11) if context.dim % 2**power == 0]
    return [_ap_ood(f"T = {count}", queries=count, heads=context.dim // count) for count in counts]


def _similarity_rows(context: TableContext) -> Sequence[Row]:
    return [
        _ap_ood("dot product", similarity="dot"),
        _ap_ood("Euclidean", similarity="euclidean"),
        Row(IdealisedKernel, {"heads": context.dim}, _KERNEL),
    ]


SCORE_BENCH = TableExperiment("score-ablation", SUMMARIZATION, _score_rows, (ahead_of(["s"], ["s_min"]),))
BETA_BENCH = TableExperiment(
    "beta-ablation",
    SUMMARIZATION,
    _beta_rows,
    (ahead_of([f"β = {beta}" for beta in ("0.25", "0.5", "1", "2")], ["β = 0"]),),
)
HEADS_BENCH = TableExperiment(
    "heads-ablation", SUMMARIZATION, _heads_rows, (ahead_of(["T = 1", "T = 2", "T = 4"], ["T = 64"]),)
)
SIMILARITY_BENCH = TableExperiment(
    "similarity-ablation",
    SUMMARIZATION,
    _similarity_rows,
    # Appendix B.3 gives no figures for the kernel.
    (ahead_of(["dot product"], ["Euclidean"]), ahead_of(["dot product"], [_KERNEL])),
)
