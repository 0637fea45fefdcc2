"""The weights of the members of a fusion: how well each tells AUX sequences that it has not learnt from."""

import warnings
from collections.abc import Sequence

import torch
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.tokens.documents import count_documents, number_documents
from apood.tokens.source import Subset, TokenSource

__all__ = ["score_unlearnt", "weigh_members"]

_FOLDS = 5
_STEEP, _MOST = 3.0, 4.0  # weight per factor e of fewer errors than the other members, and the largest weight


def score_unlearnt(member: Detector, source: TokenSource, aux: TokenSource) -> Tensor:
    """Return the scores of AUX sequences by a fitted member that has not learnt from them.

    A member that needs AUX sequences is fitted again, without a fifth of their documents at a time, to score this
    fifth. Of a single document nothing can be left out: the score is +inf, as if it were the most ordinary one. Scores
    are NaN if the AUX sequences lack a channel that the member reads.
    """
    if not member.requires <= {"tokens", *aux.channels}:
        return torch.full((len(aux),), torch.nan, dtype=torch.float64)
    if member.aux != "required":
        return torch.from_numpy(member._score_sequences(aux))
    scores = torch.full((len(aux),), torch.inf, dtype=torch.float64)
    documents, folds = count_documents(aux), torch.from_numpy(number_documents(aux)) % _FOLDS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit on all AUX sequences has issued them
        for fold in range(min(_FOLDS, documents) if documents > 1 else 0):
            again = clone(member).fit(source, aux=Subset(aux, folds != fold))
            scores[folds == fold] = torch.from_numpy(again._score_sequences(Subset(aux, folds == fold)))
    return scores


def weigh_members(members: Sequence[Detector], inside: Tensor, outside: Tensor) -> Tensor:
    """Return a weight per member from the z-scores `[N, members]` of ID, and `[N', members]` of AUX sequences.

    The error e_k of a member is the share of pairs of an ID and an AUX sequence that it puts into the wrong order, as
    if there were one AUX sequence more that it gets wrong. Members weigh 1 / e_k, relative to their mean. A member that
    needs AUX sequences has learnt what these are like and not what foreign sequences are like in general, so it only
    weighs 3 log(e / e_k), at most 4, where e is the error of the others together; 0 if it makes more errors than they.
    A member that cannot score AUX sequences (NaN) weighs 1.
    """
    learns = torch.tensor([member.aux == "required" for member in members])
    general = ~learns & ~outside.isnan().any(0)
    weights = torch.ones(len(members), dtype=torch.float64)
    if not general.any():
        return weights
    weights[general] = 1 / torch.stack([_estimate_error(inside[:, k], outside[:, k]) for k in general.nonzero()])
    weights[general] /= weights[general].mean()
    together = _estimate_error(inside[:, general] @ weights[general], outside[:, general] @ weights[general])
    for k in learns.nonzero():
        weights[k] = (_STEEP * (together / _estimate_error(inside[:, k], outside[:, k])).log()).clamp(0, _MOST)
    return weights


def _estimate_error(inside: Tensor, outside: Tensor) -> Tensor:
    """Return the share of pairs in the wrong order, with one AUX sequence more that is in the wrong order to all."""
    foreign = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    order = torch.cat([inside.flatten(), outside.flatten()]).nan_to_num()  # scikit-learn refuses infinite numbers
    wrong = 1 - roc_auc_score(foreign.numpy(), order.numpy())
    return torch.tensor((wrong * len(outside) + 1) / (len(outside) + 1), dtype=torch.float64)
