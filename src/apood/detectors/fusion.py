"""Several detectors as one, and the one that apood recommends."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor

from apood.detectors.ap_ood.detector import APOOD
from apood.detectors.contract.base import AuxUse, Detector, Scores
from apood.detectors.knn import KNN, MahalanobisKNN
from apood.detectors.shared.log_distances import LengthLaw, floored_log
from apood.detectors.shared.mean_pooling import describe_shortage
from apood.fitting.checkpoint import Checkpoint
from apood.support.checks import check_integer
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.source import TokenSource, split

__all__ = ["Fusion", "default_detector"]

_HELD_OUT_SHARE = 0.1
_LEAST_HELD_OUT = 20  # fewer say too little about a mean and a standard deviation
_FLOOR = 6.0  # distances from the median to the lower quartile: 4 standard deviations where logs are normal
_CONSTANT = 1e-9  # relative spread that rounding alone leaves of equal scores


def _recommended(seed: int, device: str) -> list[Detector]:
    """The members of a fusion for which nobody named any."""
    # AP-OOD here looks for what pooling by means cannot see: many queries a head, so few tokens are enough
    apood = APOOD(queries=8, temperature=1.5, score="student", seed=seed, device=device)
    return [apood, MahalanobisKNN(), KNN(k=1)]


def _combine(z: Tensor) -> Tensor:
    """From how unusual each member finds each sequence, `[N, members]`, to scores `[N]`."""
    return -z.sum(1)


def default_detector(seed: int = 0, device: str = "auto") -> Detector:
    """The detector to begin with: the recommended fusion, which needs no outliers and no settings."""
    return Fusion(seed=seed, device=device)


class Fusion(Detector):
    """s(Z) = -Σ_k z_k, z_k = (log d_k(Z) - a_k(S) - mean_k) / std_k: several methods as one, on a common scale.

    No method wins everywhere. d_k is the distance of which member k makes its score. Each member is fitted
    on 90% of the ID sequences; mean_k and std_k are those of log d_k over the other 10%, which no member has
    seen, so that z_k says how unusual the member finds a sequence beside ordinary ones. There is nothing to
    tune and no outlier is needed. Logarithms, because distances of ID sequences are skewed and their
    logarithms nearly normal; the scale of a distance then cancels. A method whose score is no distance takes
    part with log d = -score.

    a_k(S) <= 0 is what log d_k loses by length alone: more tokens average out, so a long sequence is near
    whatever it says. It is the line of log d_k over log S through the held-out sequences where that expects
    less than the mean, and 0 elsewhere: a long sequence is compared with its like, a short one is not excused.

    At least 20 sequences are held out, which is more than 10% where there are fewer than 200; below 40 a fit
    is refused. log d is floored at 4 standard deviations below its median (told by the lower quartile), since
    a near copy has d near 0, and how near says nothing about ID, but would outweigh all other members. Exact
    copies of training sequences among the held-out ones are left out of means and deviations.

    Not a published method.

    Args:
        members: detectors, of which copies are fitted; None for AP-OOD with eight queries a head, the nearest
            neighbour in the Mahalanobis metric, and the nearest neighbour.
        seed: of the split, and of the recommended members.
        device: of the recommended members: "auto" (a GPU if there is one), "cpu", "cuda", ...
    """

    name = "fusion"

    members_: list[Detector]
    means_: Tensor
    spreads_: Tensor
    floors_: Tensor
    length_law_: LengthLaw

    def __init__(self, members: list[Detector] | None = None, seed: int = 0, device: str = "auto") -> None:
        self.members = members
        self.seed = seed
        self.device = device

    # constants of the class elsewhere; here they follow from the members

    @property
    def requires(self) -> frozenset[str]:  # type: ignore[override]
        """All that any member looks at."""
        return frozenset().union(*(member.requires for member in self._members()))

    @property
    def aux(self) -> AuxUse:  # type: ignore[override]
        """AUX sequences are for those members that can learn from them."""
        uses = {member.aux for member in self._members()}
        return "required" if "required" in uses else "optional" if "optional" in uses else "unused"

    @property
    def propagates_nonfinite(self) -> bool:  # type: ignore[override]
        """A member that finds a sequence infinitely far outside is not outvoted: no other finds it infinitely near."""
        return all(member.propagates_nonfinite for member in self._members())

    def member_scores(self, tokens: Any) -> dict[str, Scores]:
        """-z_k of each member by the name of its method (`knn-1`, `knn-2` where it repeats); they sum to the score.

        About 0 for an ordinary sequence; the most negative is that of the member that objects most.
        """
        source = self._check_for_scoring(tokens)
        scores = [torch.from_numpy(member.score_samples(source)) for member in self.members_]
        return dict(zip(_names(self.members_), (-self._standardised(scores, source.lengths)).T.numpy(), strict=True))

    def token_contributions(self, tokens: Any) -> Ragged:
        """How much each token adds to the distance of its sequence, from the members that can tell.

        Those of member k are scaled to sum to (d_k / exp mean_k) / std_k, the distance in units of a typical ID
        sequence, weighted as the score weighs it: to first order a token with contribution c lowers the score
        of an otherwise typical sequence by c.
        """
        source = self._check_for_scoring(tokens)
        explained = [self._scaled(k, source) for k, member in enumerate(self.members_) if _explains(member)]
        if not explained:
            names = ", ".join(_names(self.members_))
            raise InputError(f"None of the members ({names}) can tell what its tokens contribute; ap-ood can.")
        return Ragged.from_lengths(torch.stack(explained).sum(0), source.lengths)

    def check_parameters(self) -> None:
        """Refuses constructor arguments that make no sense."""
        given = self.members
        if given is not None and not (
            isinstance(given, list) and given and all(isinstance(member, Detector) for member in given)
        ):
            raise InputError(f"members must be None or a list of at least one detector, got {given!r}.")
        check_integer("seed", self.seed, least=0)
        for member in self._members():
            member.check_parameters()

    def _members(self) -> list[Detector]:
        return _recommended(self.seed, self.device) if self.members is None else self.members

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        if len(source) < 2 * _LEAST_HELD_OUT:
            raise InputError(
                f"A fusion learns from half of the ID sequences or more and holds out {_LEAST_HELD_OUT} at least, "
                f"so it needs {2 * _LEAST_HELD_OUT}, got {len(source)}; fit one of its members alone instead."
            )
        held_out_count = max(_LEAST_HELD_OUT, round(_HELD_OUT_SHARE * len(source)))
        rest, held_out = split(source, held_out_count / len(source), self.seed)
        members: list[Detector] = [clone(member) for member in self._members()]
        few = describe_shortage(len(rest), source.dim)
        with _each_warning_once({few: _few_of(few, len(rest), source)} if few is not None else {}):
            for number, member in enumerate(members):
                part = None if checkpoint is None else checkpoint.part(number)
                member.fit(rest, None if member.aux == "unused" else aux, checkpoint=part)
        scores = [torch.from_numpy(member.score_samples(held_out)) for member in members]
        logs = _log_distances(members, scores)
        # copies of training sequences say nothing about how far ordinary ones are
        logs = logs.where(logs > floored_log(logs.new_zeros(())), torch.nan)
        for name, column in zip(_names(members), logs.T, strict=True):
            _refuse_without_distances(name, column)
        lower, median = logs.nanquantile(torch.tensor([0.25, 0.5], dtype=logs.dtype), 0)
        self.floors_ = median - _FLOOR * (median - lower)
        floored = torch.maximum(logs, self.floors_)
        self.length_law_ = LengthLaw.fit(floored, held_out.lengths)
        compared = floored - self.length_law_.allowances(held_out.lengths)
        self.means_ = compared.nanmean(0)
        self.spreads_ = (compared - self.means_).square().nanmean(0).sqrt()
        self.members_ = members
        for name, mean, spread in zip(_names(members), self.means_.tolist(), self.spreads_.tolist(), strict=True):
            if spread <= _CONSTANT * abs(mean):
                raise InputError(
                    f"The member {name} gives all held-out ID sequences the same score, which leaves no scale to "
                    "compare it with the others on; leave it out."
                )

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        for member in self._members():
            member._check_batch(batch, first, where)

    def _score(self, tokens: TokenBatch) -> Tensor:
        return _combine(self._standardised([member._score_batch(tokens) for member in self.members_], tokens.lengths))

    def _standardised(self, scores: list[Tensor], lengths: Tensor) -> Tensor:
        """The z of each member from its scores, `[N, members]`."""
        logs = _log_distances(self.members_, scores).clamp_min(self.floors_)
        return (logs - self.length_law_.allowances(lengths) - self.means_) / self.spreads_

    def _scaled(self, number: int, source: TokenSource) -> Tensor:
        """The contributions of all tokens according to one member."""
        member = self.members_[number]
        contributions: Ragged = member.token_contributions(source)
        sequence = torch.arange(len(source)).repeat_interleave(contributions.lengths)
        sums = torch.zeros(len(source)).double().index_add_(0, sequence, contributions.values.double())
        logs = member.log_distances(torch.from_numpy(member.score_samples(source)))
        wanted = (logs - self.means_[number]).exp() / self.spreads_[number]
        factors = torch.where(sums > 0, wanted / sums, 0.0)  # at a distance of 0 no token adds anything
        return contributions.values.double() * factors[sequence]


@contextlib.contextmanager
def _each_warning_once(instead: Mapping[str, str]) -> Iterator[None]:
    """What several members warn of in the same words is told once, behind all of them; some in other words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message, category in {(str(one.message), one.category): None for one in caught}:
        warnings.warn(instead.get(message, message), category, stacklevel=5)


def _few_of(message: str, learnt: int, source: TokenSource) -> str:
    """What members say of too few sequences, counted as whoever gave them counts."""
    enough = max(source.dim + _LEAST_HELD_OUT, math.ceil(source.dim / (1 - _HELD_OUT_SHARE)))
    return (
        f"{message.rstrip('.')} (of the {len(source)} given, a fusion holds {len(source) - learnt} out to bring its "
        f"members to one scale, so {enough} would be enough)."
    )


def _log_distances(members: list[Detector], scores: list[Tensor]) -> Tensor:
    return torch.stack([member.log_distances(own) for member, own in zip(members, scores, strict=True)], 1)


def _refuse_without_distances(name: str, logs: Tensor) -> None:
    """`logs` are NaN for copies of training sequences."""
    if bool(logs.isnan().all()):
        raise InputError(
            f"The member {name} finds no distance at all between held-out ID sequences and those it learnt from: every "
            "one has a copy there; remove copies, or leave this member out."
        )
    if bool(logs.isposinf().any()):
        raise InputError(f"The member {name} finds held-out ID sequences infinitely far outside; leave it out.")


def _names(members: list[Detector]) -> list[str]:
    """The names of the methods, numbered where one repeats."""
    names = [member.name for member in members]
    return [
        name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]


def _explains(detector: Detector) -> bool:
    if isinstance(detector, Fusion):
        return any(_explains(member) for member in detector.members_)
    return hasattr(detector, "token_contributions")
