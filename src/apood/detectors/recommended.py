"""The members of the recommended detector."""

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.binary_logits import BinaryLogits
from apood.detectors.contract.base import Detector
from apood.detectors.knn import KNN, MahalanobisKNN

__all__ = ["list_untrained_members", "recommend_members"]


def recommend_members(
    seed: int, device: str, *, lengths: bool = False, summary: bool = False, supervised: bool = False
) -> list[Detector]:
    """Return the members of a fusion whose `members` is None.

    Attention finds a few foreign tokens. Neighbours find what is unlike every training sequence, in the Mahalanobis
    metric by directions of low variance. The summary is another view of the model. A classifier knows on which side of
    the ID sequences the AUX sequences lie. With `lengths`, attention sees how long tokens are; neighbours compare
    directions of mean tokens.
    """
    members = [APOOD(normalize="none" if lengths else None, seed=seed, device=device), *list_untrained_members()]
    if summary:
        members.append(KNN(k=3, average=True, view="summary"))
    if supervised:
        members.append(BinaryLogits(normalize="pooled"))
    return members


def list_untrained_members() -> list[Detector]:
    """Return the recommended members that need no training, for a first look."""
    return [MahalanobisKNN(k=3, average=True), KNN(k=3, average=True)]
