"""Explanations of the members of a fusion on the scale of its score."""

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.detectors.shared.explanation import Explanation, MemberShare
from apood.tokens.batch import Ragged
from apood.tokens.source import TokenSource, mark_kept

__all__ = ["explain_share", "join_shares"]


def explain_share(name: str, member: Detector, share: Tensor, spread: float, source: TokenSource) -> MemberShare:
    """Return what each token adds to the share w_k z_k of a member in minus the score of a fusion.

    z = (log d - log d₀) / σ, where d₀ is the distance of a typical ID sequence of the same length. The contributions
    c_s to d become g c_s with g = z / (d - d₀), which is positive, and the rest, -g d₀, belongs to all tokens alike.
    So a token has a positive contribution if its part in d is larger than its equal part in d₀, and all contributions
    sum to z. For a member whose score is on a logarithmic scale already, g is 1 / σ. If z is 0, all contributions
    are 0.

    Args:
        name: the name of the member.
        member: the fitted member.
        share: z_k `[N]`.
        spread: σ.
        source: the sequences.
    """
    if not member.explains:
        return MemberShare(name, share)
    parts = member.explain(source)
    if type(member).log_distances is Detector.log_distances:
        gains = torch.full_like(share, 1 / spread)
    else:
        # d - d₀ = d (1 - exp(-σ z)), because d₀ = d exp(-σ z); at z = 0 the limit is 1 / (σ d)
        steps = -torch.expm1(-spread * share)
        slopes = torch.where(steps == 0, 1 / spread, share / steps)
        gains = slopes / parts.totals.clamp_min(torch.finfo(torch.float64).tiny)
    lengths = source.lengths
    kept = mark_kept(lengths, first=member.skips_first_, last=member.skips_last_)
    counts = torch.stack([part.sum() for part in Ragged.from_lengths(kept, lengths)])
    rest = (share - gains * parts.totals) / counts.clamp_min(1)
    rows = parts.contributions.values * gains.repeat_interleave(lengths) + kept * rest.repeat_interleave(lengths)
    rows = torch.where((share == 0).repeat_interleave(lengths), 0.0, rows.nan_to_num(0.0, 0.0, 0.0))
    return MemberShare(name, share, parts, Ragged.from_lengths(rows, lengths))


def join_shares(lengths: Tensor, members: list[MemberShare]) -> Explanation:
    """Return the explanation of a fusion from the shares of its members, of which at least one is explained."""
    known = [(member.share, member.contributions.values) for member in members if member.contributions is not None]
    totals, rows = (torch.stack(column).sum(0) for column in zip(*known, strict=True))
    return Explanation(Ragged.from_lengths(rows, lengths), totals, members=tuple(members))
