"""Tables 7 to 10: what the score, β, the number of queries and the similarity are worth."""

from collections.abc import Sequence

from apood.experiments.paper.bench import Bench
from apood.experiments.paper.claims import ahead_of
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.idealised import IdealisedKernel
from apood.experiments.paper.settings import INVERSE_ROOT, Beta, beta_of
from apood.experiments.paper.study import Scene
from apood.experiments.paper.tasks import SUMMARIZATION

__all__ = ["BETA_BENCH", "HEADS_BENCH", "SCORE_BENCH", "SIMILARITY_BENCH"]

_BETAS: dict[str, Beta] = {"0": 0.0, "0.25": 0.25, "0.5": 0.5, "1": 1.0, "2": 2.0, "1/√D": INVERSE_ROOT}
_MOST_QUERIES = 1024
_KERNEL = "idealised kernel, M = D, β = 1/√D"  # its defaults: the settings of AP-OOD are none for it


def _ap_ood(label: str, **parameters: object) -> Entry:
    """AP-OOD with the settings of table 1, but for these."""
    return Entry(label, "ap-ood", parameters, selected=True)


def _scores(scene: Scene) -> Sequence[Entry]:  # noqa: ARG001
    return [_ap_ood("s", score="sum"), _ap_ood("s_min", score="min")]


def _betas(scene: Scene) -> Sequence[Entry]:
    return [_ap_ood(f"β = {name}", beta=beta_of(beta, scene.dim)) for name, beta in _BETAS.items()]


def _heads(scene: Scene) -> Sequence[Entry]:
    """Every T that is a power of two and divides D, with M T = D."""
    counts = [2**power for power in range(11) if 2**power <= _MOST_QUERIES and scene.dim % 2**power == 0]
    return [_ap_ood(f"T = {count}", queries=count, heads=scene.dim // count) for count in counts]


def _similarities(scene: Scene) -> Sequence[Entry]:
    return [
        _ap_ood("dot product", similarity="dot"),
        _ap_ood("Euclidean", similarity="euclidean"),
        Entry(_KERNEL, IdealisedKernel, {"heads": scene.dim}),
    ]


SCORE_BENCH = Bench("score-ablation", SUMMARIZATION, _scores, (ahead_of(["s"], ["s_min"]),))
BETA_BENCH = Bench(
    "beta-ablation",
    SUMMARIZATION,
    _betas,
    (ahead_of([f"β = {beta}" for beta in ("0.25", "0.5", "1", "2")], ["β = 0"]),),
)
HEADS_BENCH = Bench("heads-ablation", SUMMARIZATION, _heads, (ahead_of(["T = 1", "T = 2", "T = 4"], ["T = 64"]),))
SIMILARITY_BENCH = Bench(
    "similarity-ablation",
    SUMMARIZATION,
    _similarities,
    # appendix B.3 has no figures of the kernel
    (ahead_of(["dot product"], ["Euclidean"]), ahead_of(["dot product"], [_KERNEL])),
)
