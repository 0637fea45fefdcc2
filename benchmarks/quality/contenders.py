"""The methods that are measured, at their defaults; Mahalanobis and neighbours raw and normalised."""

from collections.abc import Callable
from dataclasses import dataclass

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.binary_logits import BinaryLogits
from apood.detectors.contract.base import Detector
from apood.detectors.deep_svdd import DeepSAD, DeepSVDD
from apood.detectors.fusion import default_detector
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.length import Length
from apood.detectors.mahalanobis import Mahalanobis
from apood.detectors.relative_mahalanobis import RelativeMahalanobis

__all__ = ["CONTENDERS", "DEFAULT", "SUPERVISED", "Contestant"]

DEFAULT = "default (fusion)"


@dataclass(frozen=True)
class Contestant:
    """A method under the name it has in the tables, built from a seed."""

    label: str
    method: str
    build: Callable[[int], Detector]
    aux: bool = False
    seeded: bool = False


CONTENDERS = [
    Contestant(DEFAULT, "fusion", lambda seed: default_detector(seed=seed), seeded=True),
    Contestant("AP-OOD", "ap-ood", lambda seed: APOOD(seed=seed), seeded=True),
    Contestant("Mahalanobis-KNN", "mahalanobis-knn", lambda _: MahalanobisKNN()),
    Contestant("Mahalanobis, raw", "mahalanobis", lambda _: Mahalanobis(normalize="none")),
    Contestant("Mahalanobis, tokens", "mahalanobis", lambda _: Mahalanobis(normalize="tokens")),
    Contestant("Mahalanobis, pooled", "mahalanobis", lambda _: Mahalanobis(normalize="pooled")),
    Contestant("KNN, raw", "knn", lambda _: KNN(normalize="none")),
    Contestant("KNN, tokens", "knn", lambda _: KNN(normalize="tokens")),
    Contestant("KNN, pooled", "knn", lambda _: KNN(normalize="pooled")),
    Contestant("KNN 1, pooled", "knn", lambda _: KNN(k=1, normalize="pooled")),
    Contestant("Deep SVDD, raw", "deep-svdd", lambda seed: DeepSVDD(seed=seed), seeded=True),
    Contestant("Deep SVDD, pooled", "deep-svdd", lambda seed: DeepSVDD(normalize="pooled", seed=seed), seeded=True),
    Contestant("length only", "length", lambda _: Length()),
]

SUPERVISED = [
    Contestant("AP-OOD, AUX", "ap-ood", lambda seed: APOOD(seed=seed), aux=True, seeded=True),
    Contestant("Deep SAD", "deep-sad", lambda seed: DeepSAD(seed=seed), aux=True, seeded=True),
    Contestant("binary logits", "binary-logits", lambda _: BinaryLogits(), aux=True),
    Contestant("relative Mahalanobis", "relative-mahalanobis", lambda _: RelativeMahalanobis(), aux=True),
]
CONTENDERS += SUPERVISED
