"""Several detectors as one, and the recommended detector."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import torch
from sklearn.base import clone
from torch import Tensor

from apood.detectors.coherence import Coherence, check_compared
from apood.detectors.contract.base import AuxUse, Detector, Scores
from apood.detectors.contract.fused_explanation import explain_share, join_shares
from apood.detectors.contract.fused_scale import LEAST_KNOWN, find_floor, refuse_constant, refuse_without_distances
from apood.detectors.contract.fused_warnings import merge_warnings, rephrase_shortage, warn_of_copies
from apood.detectors.contract.refinable import Measured, Refinable, Remembered
from apood.detectors.contract.unseen import (
    LEAST_HELD_OUT,
    HeldOut,
    Unseen,
    draw_left_out,
    fit_member,
    hold_out,
)
from apood.detectors.contract.weighing import score_unlearnt, weigh_members
from apood.detectors.recommended import recommend_members
from apood.detectors.shared.explanation import Explanation
from apood.detectors.shared.log_distances import LengthLaw, compute_floored_log
from apood.detectors.shared.mean_pooling import describe_shortage
from apood.detectors.shared.token_lengths import lengths_outweigh
from apood.fitting.optimise import Checkpoint
from apood.support.checks import check_flag, check_integer
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch, upload
from apood.tokens.documents import find_documents, find_worst
from apood.tokens.source import TokenSource

__all__ = ["Fusion", "default_detector"]

_SUMMARY = "summary"


def default_detector(
    seed: int = 0, device: str = "auto", *, beginnings: bool = False, sentences: bool = False
) -> Detector:
    """Return the detector to begin with: the recommended fusion, which needs no outliers and no settings.

    Args:
        seed: seed of the split and of the members.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
        beginnings: whether short inputs are in-distribution if they are like beginnings of the ID sequences.
        sentences: whether one sentence that does not fit the rest of its text is enough to be out-of-distribution.

    Examples:
        >>> import apood
        >>> apood.default_detector(seed=1)
        Fusion(seed=1)
    """
    return Fusion(seed=seed, device=device, beginnings=beginnings, sentences=sentences)


class Fusion(Refinable, Detector):
    """Several methods as one: minus the weighted sum of how unusual each finds a sequence, on a common scale.

        s(Z) = -Σ_k w_k z_k,  z_k = (log d_k(Z) - a_k(S) - mean_k) / std_k

    No single method is best everywhere. d_k is the distance behind the score of member k. mean_k and std_k are those of
    log d_k over ID sequences that the member has not seen, so that z_k says how unusual a sequence is for the member.
    There is nothing to tune and no outlier is needed. Logarithms are used because distances of ID sequences are skewed
    and their logarithms are nearly normal; the scale of a distance then cancels. A method whose score is not a distance
    takes part with log d = -score.

    a_k(S) is the part of log d_k that is due to length alone: more tokens average out, so a long sequence is near and a
    short one far, whatever they contain. It is a parabola in log S, learnt from the same sequences, and flatter if they
    are few (see `LengthLaw`). A fusion of one member is that member, given the length. For outputs of a model a_k is 0,
    because their length is the model's doing and a sign like others.

    Neighbours learn from all ID sequences and score each of them (at most some 6,000) among the others that are no near
    copies of it and no windows of its document, because these say nothing about the distances of new sequences. Other
    members are fitted on 90%, and score the other 10% (at least 20; about 2,048 at most; whole documents), without
    those that have near copies if 20 are left. With `sentences`, at least 20 documents are held out, and at least 20
    are left to learn from. `fit` refuses fewer than 40 sequences, with `sentences` fewer than 40 documents.

    log d is floored at 4 standard deviations below its median (estimated from the lower quartile), because how near a
    near copy is says nothing about ID, but would outweigh all other members.

    w_k is smaller for members that agree with others on the sequences held out, because these tell the same thing
    several times (see `weigh_members`). With AUX sequences, it also follows from how well member k tells AUX sequences
    that it has not learnt from. So only members that need AUX sequences learn from them, and these members are left out
    if the others tell AUX sequences better.

    With `sentences`, the score is the worse of two, that of the whole text and that of the sentence that fits the
    others least: s(Z) = -max(Σ_k w_k z_k, z_c). z_c is that of `Coherence`, and the weights are such that both have a
    standard deviation of 1. A threshold then refuses the same share of ID texts for two reasons instead of one, so some
    foreign texts pass that are refused without it.

    Not a published method.

    Args:
        members: detectors, copies of which are fitted; None for the recommended ones: AP-OOD, the mean distance to
            three neighbours in the Mahalanobis and in the Euclidean metric, the latter also of the channel `summary` if
            the data have it, and binary logits if there are AUX sequences that these tell better. If no encoder of
            apood made the tokens, AP-OOD also sees their lengths, unless the variance of these is more than five times
            the mean variance along a coordinate.
        seed: seed of the split, and of the recommended members.
        device: device of the recommended members: "auto" (a GPU if there is one), "cpu", "cuda", ...; they score there.
        beginnings: whether a_k(S) is also learnt from beginnings of the ID sequences held out. Without them, a sequence
            that is shorter than all ID sequences is far out because it is short. With them, it is compared with
            beginnings of its length, so genuine short inputs are accepted, and foreign ones are harder to tell. The
            channel `summary` is not read then.
        sentences: whether one sentence that does not fit the rest of its text makes the text out-of-distribution. This
            needs the channel `sentences`, which encoders of texts give. AUX sequences may lack it.

    Attributes:
        members_: the fitted members; with `sentences`, the last one is `Coherence`.
        means_: mean_k `[members]`, float64.
        spreads_: std_k / w_k `[members]`, float64.
        floors_: the floor of log d_k `[members]`, float64.
        length_law_: the curves a_k(S).
        weights_: w_k `[members]`, float64.

    Examples:
        >>> import torch
        >>> from apood import KNN, Fusion, Mahalanobis
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(5, 4, generator=generator) for _ in range(100)]
        >>> detector = Fusion([Mahalanobis(), KNN(normalize="none")]).fit(inside)
        >>> outside = [torch.full((5, 4), 3.0)]
        >>> {name: bool(scores[0] < 0) for name, scores in detector.member_scores(outside).items()}
        {'mahalanobis': True, 'knn': True}
    """

    name = "fusion"

    members_: list[Detector]
    means_: Annotated[Tensor, "members"]
    spreads_: Annotated[Tensor, "members"]
    floors_: Annotated[Tensor, "members"]
    length_law_: Annotated[LengthLaw, "members"]
    weights_: Annotated[Tensor, "members"] = torch.ones(0)  # of detectors that were saved before this existed

    def __init__(
        self,
        members: list[Detector] | None = None,
        seed: int = 0,
        device: str = "auto",
        beginnings: bool = False,
        sentences: bool = False,
    ) -> None:
        self.members = members
        self.seed = seed
        self.device = device
        self.beginnings = beginnings
        self.sentences = sentences

    # Class attributes of other detectors; here they depend on the members.

    @property
    def requires(self) -> frozenset[str]:  # type: ignore[override]
        """Everything that any member requires."""
        return frozenset().union(*(member.requires for member in self._get_members()))

    @property
    def aux_requires(self) -> frozenset[str]:
        """What the members require that AUX sequences weigh: `sentences` adds `Coherence` with a weight of its own."""
        members = self._get_members()
        return frozenset().union(
            *(member.requires for member in members if not (self.sentences and isinstance(member, Coherence)))
        )

    @property
    def welcomes(self) -> frozenset[str]:  # type: ignore[override]
        """What the recommended members make use of."""
        return frozenset({_SUMMARY}) if self.members is None and not self.beginnings else frozenset()

    @property
    def aux(self) -> AuxUse:  # type: ignore[override]
        """AUX sequences weigh the members, and are given to those that need them."""
        return "required" if any(member.aux == "required" for member in self.members or []) else "optional"

    @property
    def propagates_nonfinite(self) -> bool:  # type: ignore[override]
        """A score of -inf of one member makes the sum -inf, because no member has a score of +inf."""
        return all(member.propagates_nonfinite for member in self._get_members())

    @property
    def explains(self) -> bool:  # type: ignore[override]
        """Whether a member explains its scores."""
        return any(member.explains for member in self._get_members())

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "device" and self.members is None:  # members that were given have devices of their own
            for member in vars(self).get("members_", []):
                if hasattr(member, "device"):
                    member.device = value

    def member_scores(self, tokens: Any) -> dict[str, Scores]:
        """Return -w_k z_k of each member by its name (`knn-1`, `knn-2` if a method repeats); they sum to the score.

        With `sentences`, the score is the smaller of that of `coherence` and the sum of the others.
        There is one per document, that of the window with the lowest score. They are about 0 for an ordinary sequence;
        the most unusual one for a member is the most negative. Those of an empty sequence are -inf.
        """
        source = self._check_for_scoring(tokens)
        z = self._rate(source)
        worst = find_worst(self._combine(z).numpy(), source)
        return dict(zip(_name_members(self.members_), -z.numpy()[worst].T, strict=True))

    def explain(self, X: Any) -> Explanation:
        """Return what each member adds to minus the score, w_k z_k, and what each token adds to that of its sequence.

        With `sentences`, either `coherence` or all others decide, and the others or `coherence` add 0.
        `members` of the result has the share of each member and its own explanation. The contributions of tokens are
        those to the sum of z_k over the members that explain theirs; `explained` says how much that is.
        """
        source = self._check_for_scoring(X)
        names = _name_members(self.members_)
        if not self.explains:
            raise InputError(f"None of the members ({', '.join(names)}) knows what its tokens contribute; ap-ood does.")
        z = self._rate(source)
        if self.sentences:
            decides = z[:, -1] > z[:, :-1].sum(1)
            z = torch.where(torch.cat([~decides[:, None].expand(-1, len(names) - 1), decides[:, None]], 1), z, 0.0)
        members = zip(names, self.members_, z.T, self.spreads_.tolist(), strict=True)
        return join_shares(source.lengths, [explain_share(*member, source) for member in members])

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        given = self.members
        if given is not None and not (
            isinstance(given, list) and given and all(isinstance(member, Detector) for member in given)
        ):
            raise InputError(f"members must be None or a list of at least one detector, got {given!r}.")
        check_integer("seed", self.seed, least=0)
        check_flag("beginnings", self.beginnings)
        check_flag("sentences", self.sentences)
        if self.beginnings and self.sentences:
            raise InputError("beginnings and sentences cannot be combined: leave out one of them.")
        if self.sentences and any(isinstance(member, Coherence) for member in given or []):
            raise InputError(
                "sentences=True adds the member coherence: leave it out of members, or leave out sentences."
            )
        if self.beginnings and (other := self.requires - {"tokens"}):
            names = " or ".join(sorted(other))
            raise InputError(f"beginnings=True needs members that read tokens alone: a beginning has no {names}.")
        for member in self._get_members():
            member.check_parameters()

    def count_operations(self, source: TokenSource) -> float:
        """Return those of all members."""
        return sum(member.count_operations(source) for member in self._get_members())

    def _get_members(self) -> list[Detector]:
        """Return the fitted members, or the ones to fit, as far as they are known before."""
        if "members_" in vars(self):
            return self.members_
        members = recommend_members(self.seed, self.device) if self.members is None else self.members
        return [*members, Coherence()] if self.sentences else members

    def _choose_members(self, source: TokenSource, aux: TokenSource | None) -> list[Detector]:
        """Return the members to fit, apart from `Coherence`."""
        if self.members is not None:
            return [clone(member) for member in self.members]
        # the summary of a text says nothing about its beginnings
        summary, supervised = _SUMMARY in source.channels and not self.beginnings, aux is not None
        # Directions are known to be enough for texts and sounds; about other vectors nothing is known.
        lengths = source.encoder is None and not lengths_outweigh(source)
        return recommend_members(self.seed, self.device, lengths=lengths, summary=summary, supervised=supervised)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        if len(source) < 2 * LEAST_HELD_OUT:
            raise InputError(
                f"A fusion learns from at least half of the ID sequences and holds out at least {LEAST_HELD_OUT}, "
                f"so it needs {2 * LEAST_HELD_OUT}, got {len(source)}; fit one of its members alone instead."
            )
        parts = hold_out(source, self.seed, beginnings=self.beginnings, whole_texts=self.sentences)
        members = [*self._choose_members(source, aux), *([Coherence()] if self.sentences else [])]
        if any(isinstance(member, Coherence) for member in members):
            check_compared(source, parts.rest, parts.held_out, LEAST_KNOWN)
        names, samples = _name_members(members), []
        few = describe_shortage(len(parts.rest), source.dim)
        with merge_warnings({few: rephrase_shortage(few, len(parts.rest), source)} if few is not None else {}):
            for number, member in enumerate(members):
                own = None if checkpoint is None else checkpoint.part(number)
                samples.append(fit_member(member, parts, aux, own))
        copied = torch.zeros(len(source), dtype=torch.bool)
        for sample in samples:
            if sample.copied is not None:
                copied[sample.numbers] |= sample.copied
        columns = []
        for name, member, sample in zip(names, members, samples, strict=True):
            logs = member.log_distances(sample.scores)
            known = sample.find_new(copied) & (logs > compute_floored_log(logs.new_zeros(())))
            refuse_without_distances(name, logs, known)
            columns.append((logs[known], source.lengths[sample.numbers[known]]))
        self.floors_ = torch.stack([find_floor(logs) for logs, _ in columns])
        columns = [(logs.clamp_min(floor), own) for (logs, own), floor in zip(columns, self.floors_, strict=True)]
        self.length_law_ = self._fit_law(columns, members, samples, parts)
        compared = [
            logs - self.length_law_.compute_allowances(lengths)[:, number]
            for number, (logs, lengths) in enumerate(columns)
        ]
        self.means_ = torch.stack([one.mean() for one in compared])
        spreads = torch.stack([one.std(correction=0) for one in compared])
        for name, mean, spread in zip(names, self.means_.tolist(), spreads.tolist(), strict=True):
            refuse_constant(name, mean, spread)
        self.members_, self.spreads_ = members, spreads
        self._weigh_members(aux, samples, parts)
        warn_of_copies(int(copied.sum()), len(parts.left_out), len(source))

    def _weigh_members(self, aux: TokenSource | None, samples: list[Unseen], parts: HeldOut) -> None:
        """Divide the spreads by the weights of the members, and leave out members that weigh nothing."""
        held = parts.held_out.indices
        inside = self._standardize([sample.get_scores(held) for sample in samples], parts.held_out.lengths)
        summed = len(self.members_) - self.sentences
        outside = None
        if aux is not None:
            scores = [score_unlearnt(member, parts.rest, aux) for member in self.members_[:summed]]
            outside = self._standardize(scores, aux.lengths)
        weights = weigh_members(self.members_[:summed], inside[:, :summed], outside)
        if self.sentences:  # both sides of the maximum have a standard deviation of 1
            weights = torch.cat([weights / (inside[:, :summed] @ weights).std(correction=0), weights.new_ones(1)])
        kept = weights.nonzero().flatten().tolist()
        law = self.length_law_
        self.length_law_ = replace(law, curves=tuple(law.curves[number] for number in kept))
        self.members_ = [self.members_[number] for number in kept]
        self.means_, self.floors_ = self.means_[kept], self.floors_[kept]
        self.weights_ = weights[kept]
        self.spreads_ = self.spreads_[kept] / self.weights_

    def _fit_law(
        self,
        columns: list[tuple[Tensor, Tensor]],
        members: list[Detector],
        samples: list[Unseen],
        parts: HeldOut,
    ) -> LengthLaw:
        """Return how log d of each member depends on the length, from `columns` of floored log d and lengths."""
        if (parts.source.encoder or {}).get("mode") == "output":
            # An output is as long as the model makes it, so an unusual length is a sign like others.
            return LengthLaw.make_flat(len(members))
        if parts.beginnings is None:
            return LengthLaw.fit(columns)
        begun = [
            (member.log_distances(sample.beginnings).clamp_min(floor), parts.beginnings.lengths)
            for member, sample, floor in zip(members, samples, self.floors_, strict=True)
            if sample.beginnings is not None
        ]
        return LengthLaw.fit(columns, begun)

    @property
    def refines(self) -> bool:
        """Whether a member can be refined."""
        return any(True for _ in self._list_refinable())

    def measure(self, tokens: TokenBatch) -> Measured:
        """Return the statistics of the members that can be refined, each name after the number of the member."""
        return {
            f"{number}.{name}": value
            for number, member in self._list_refinable()
            for name, value in member.measure(tokens).items()
        }

    def merge_measured(self, first: Measured, second: Measured) -> Measured:
        """Return the statistics of a union, member by member."""
        merged: dict[str, Tensor] = {}
        for number, member in self._list_refinable():
            own = member.merge_measured(_select_member(first, number), _select_member(second, number))
            merged |= {f"{number}.{name}": value for name, value in own.items()}
        return merged

    def remember(self, tokens: TokenBatch) -> Remembered:
        """Return what the members keep of each sequence, with its length and whether it begins a document."""
        kept = {
            f"{number}.{name}": value
            for number, member in self._list_refinable()
            for name, value in member.remember(tokens).items()
        }
        if not kept:
            return {}
        begins = torch.zeros(len(tokens), dtype=torch.int64)
        begins[torch.from_numpy(find_documents(tokens))] = 1
        return {**kept, "lengths": tokens.lengths, "begins": begins}

    def refine(self, measured: Measured, remembered: Remembered) -> None:
        """Refine the members that can be refined, and learn the scale of those that remember sequences again.

        Weights and the scale of other members stay those of the sample: they are learnt from some thousand sequences,
        and the prototype of a sample of N sequences is off by about a standard deviation over √N.
        """
        if not len(self.weights_):
            raise InputError("This fusion was fitted by an earlier version of apood: fit it again to refine it.")
        for number, member in self._list_refinable():
            member.refine(_select_member(measured, number), _select_member(remembered, number))
        self.members_ = list(self.members_)  # what was cached about them is out of date
        if remembered:
            self._rescale(remembered["lengths"], remembered["begins"].cumsum(0) - 1)

    def _rescale(self, lengths: Tensor, documents: Tensor) -> None:
        """Learn scale and law of the members that remember sequences, given the length and document of each of these.

        A law that was learnt from beginnings, too, stays that of the sample, because beginnings are not remembered.
        """
        chosen = draw_left_out(len(lengths))
        copied = torch.zeros(len(chosen), dtype=torch.bool)
        floors, means, spreads = self.floors_.clone(), self.means_.clone(), self.spreads_.clone()
        for number, (name, member) in enumerate(zip(_name_members(self.members_), self.members_, strict=True)):
            own = member.score_training(chosen, documents)
            if own is None:
                continue
            logs = member.log_distances(own.scores)
            known = logs > compute_floored_log(logs.new_zeros(()))
            refuse_without_distances(name, logs, known)
            floors[number] = find_floor(logs[known])
            logs, compared = logs[known].clamp_min(floors[number]), lengths[chosen[known]]
            if not self.beginnings:
                self.length_law_ = self.length_law_.refit(number, logs, compared)
            logs = logs - self.length_law_.compute_allowances(compared)[:, number]
            means[number], spread = logs.mean(), logs.std(correction=0)
            refuse_constant(name, float(means[number]), float(spread))
            spreads[number] = spread / self.weights_[number]
            copied |= own.copied
        self.floors_, self.means_, self.spreads_ = floors, means, spreads
        warn_of_copies(int(copied.sum()), len(chosen), len(lengths))

    def _list_refinable(self) -> Iterator[tuple[int, Refinable]]:
        for number, member in enumerate(self._get_members()):
            if isinstance(member, Refinable) and member.refines:
                yield number, member

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        for member in self._get_members():
            if member.requires <= {"tokens", *batch.channels}:  # AUX sequences may lack sentences
                member._check_batch(batch, first, where)

    def _score(self, tokens: TokenBatch) -> Tensor:
        if self.members is not None:  # they have devices of their own
            return self._score_here(tokens)
        device = resolve_device(self.device)
        try:
            # sent once for all members: on a CPU, their means of long texts would take longer than the encoder
            sent = tokens.to(device)
            if (summary := tokens.channels.get(_SUMMARY)) is not None:
                sent = sent.with_channels(summary=replace(summary, values=upload(summary.values, device)))
            return self._score_here(sent)
        except torch.OutOfMemoryError:
            pass  # An encoder may take most of the memory. What this try holds is freed when the block is left.
        torch.cuda.empty_cache()
        return self._score_here(tokens.to("cpu"))

    def _score_here(self, tokens: TokenBatch) -> Tensor:
        """Return the scores; members without a device compute on that of the tokens."""
        scores = [member._score_batch(tokens) for member in self.members_]
        return self._combine(self._standardize(scores, tokens.lengths))

    def _rate(self, source: TokenSource) -> Tensor:
        """Return the weighted z-scores `[N, members]` of checked sequences; inf for empty ones."""
        scores = [torch.from_numpy(member._score_source(source)[0]) for member in self.members_]
        return self._standardize(scores, source.lengths)

    def _combine(self, z: Tensor) -> Tensor:
        """Return scores `[N]` from the weighted z-scores `[N, members]` of all members."""
        return -torch.maximum(z[:, :-1].sum(1), z[:, -1]) if self.sentences else -z.sum(1)

    def _standardize(self, scores: list[Tensor], lengths: Tensor) -> Tensor:
        """Return w_k z_k `[N, members]` from the scores of each member, or of the first ones; w_k is 1 at first."""
        count = len(scores)
        logs = torch.stack(
            [member.log_distances(own) for member, own in zip(self.members_[:count], scores, strict=True)], 1
        ).clamp_min(self.floors_[:count])
        allowances = self.length_law_.compute_allowances(lengths)[:, :count]
        return (logs - allowances - self.means_[:count]) / self.spreads_[:count]


def _select_member(measured: Measured, number: int) -> Measured:
    """Return the statistics of one member."""
    prefix = f"{number}."
    return {name.removeprefix(prefix): value for name, value in measured.items() if name.startswith(prefix)}


def _name_members(members: list[Detector]) -> list[str]:
    """Return the names of the methods, with numbers if one repeats."""
    names = [member.name for member in members]
    return [
        name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]
