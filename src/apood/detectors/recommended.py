"""The members of the recommended detector."""

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.binary_logits import BinaryLogits
from apood.detectors.contract.base import Detector
from apood.detectors.knn import KNN, MahalanobisKNN

__all__ = ["list_neighbours", "recommend_members"]


def recommend_members(
    seed: int, device: str, *, lengths: bool = False, summary: bool = False, supervised: bool = False
) -> list[Detector]:
    """Return the members of a fusion whose `members` is None.

    Attention finds a few foreign tokens. Neighbours find what is unlike every training sequence, in the Mahalanobis
    metric by directions of low variance. The summary is another view of the model. A classifier knows on which side of
    the ID sequences the AUX sequences lie. With `lengths`, attention sees how long tokens are; neighbours compare
    directions of mean tokens.
    """
    attention = APOOD(normalize="none" if lengths else None, seed=seed, device=device)
    members = [attention, *list_neighbours(summary=summary)]
    if supervised:
        members.append(BinaryLogits(normalize="pooled"))
    return members


def list_neighbours(*, k: int = 3, summary: bool = False) -> list[Detector]:
    """Return the recommended members that need no training, with `summary` also those of this channel."""
    members: list[Detector] = [MahalanobisKNN(k=k, average=True), KNN(k=k, average=True)]
    return [*members, KNN(k=k, average=True, view="summary")] if summary else members
