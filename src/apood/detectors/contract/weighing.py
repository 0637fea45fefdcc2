"""The weights of the members of a fusion: what each adds to the others, and how well it tells AUX sequences."""

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
_RIVALRY = 3  # power of the mean correlation; 1 would share one vote among members that always agree
_DOUBT = 100  # held-out sequences from which on correlations count more than the assumption that members agree
_PRIOR = 0.25  # AUX sequences more that a member is supposed to get wrong, so that no error is 0
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


def weigh_members(members: Sequence[Detector], inside: Tensor, outside: Tensor | None) -> Tensor:
    """Return a weight per member from the z-scores `[N, members]` of ID, and `[N', members]` of AUX sequences.

    Members that agree tell the same thing several times. So a member weighs 1 / r_k³, where r_k is the mean of its
    correlations with all members over the ID sequences, as if there were 100 sequences more on which all agree. r_k is
    at least 1 / members, that of a member that agrees with itself alone. Weights are relative to their mean.

    With AUX sequences, this is divided by the error e_k of the member: the share of pairs of an ID and an AUX sequence
    that it puts into the wrong order, as if it got a quarter of an AUX sequence more wrong. A member that needs AUX
    sequences has learnt what these are like and not what foreign sequences are like in general, so it only weighs
    3 log(e / e_k), at most 4, where e is the error of the others together; 0 if it makes more errors than they. The
    weight of a member that cannot score AUX sequences (NaN) is not divided.
    """
    learns = torch.tensor([outside is not None and member.aux == "required" for member in members])
    weights = torch.ones(len(members), dtype=torch.float64)
    if not learns.all():
        weights[~learns] = _weigh_by_agreement(inside[:, ~learns])
    if outside is None:
        return weights
    general = ~learns & ~outside.isnan().any(0)
    if not general.any():
        return weights
    weights[general] /= torch.stack([_estimate_error(inside[:, k], outside[:, k]) for k in general.nonzero()])
    weights[general] /= weights[general].mean()
    together = _estimate_error(inside[:, general] @ weights[general], outside[:, general] @ weights[general])
    for k in learns.nonzero():
        weights[k] = (_STEEP * (together / _estimate_error(inside[:, k], outside[:, k])).log()).clamp(0, _MOST)
    return weights


def _weigh_by_agreement(inside: Tensor) -> Tensor:
    """Return a weight per member, 1 on average, that is smaller for members that agree with others."""
    count, members = inside.shape
    correlations = torch.corrcoef(inside.T).reshape(members, members).nan_to_num(1.0)  # NaN: a constant
    agreement = (count * correlations.mean(1) + _DOUBT) / (count + _DOUBT)
    weights = agreement.clamp_min(1 / members) ** -_RIVALRY  # members that contradict others gain nothing by it
    return weights / weights.mean()


def _estimate_error(inside: Tensor, outside: Tensor) -> Tensor:
    """Return the share of pairs in the wrong order, counted with a quarter of a further AUX sequence that is wrong."""
    foreign = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    order = torch.cat([inside.flatten(), outside.flatten()]).nan_to_num()  # scikit-learn refuses infinite numbers
    wrong = 1 - roc_auc_score(foreign.numpy(), order.numpy())
    return torch.tensor((wrong * len(outside) + _PRIOR) / (len(outside) + _PRIOR), dtype=torch.float64)
