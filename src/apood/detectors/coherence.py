"""Coherence: whether every sentence of a text fits the rest of it."""

import math
import warnings
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from apood.detectors.contract.base import Detector
from apood.detectors.contract.data_checks import refuse_huge, refuse_nonfinite
from apood.detectors.shared.log_distances import LengthLaw, compute_floored_log
from apood.detectors.shared.mean_pooling import (
    EIGENVALUE_FLOOR,
    compute_covariance,
    inverse_root,
    measure_vectors,
    merge_spreads,
    shrink,
)
from apood.detectors.shared.side_channel import find_sequences_with
from apood.fitting.optimise import Checkpoint
from apood.support.errors import DataWarning, InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import count_documents, find_documents, make_document_mask
from apood.tokens.source import Subset, TokenSource, token_budget

__all__ = ["Coherence", "check_compared"]

_CHANNEL = "sentences"
_SHRINKAGE = 0.5  # of the covariance: directions of rare words are noise
_LEAST = 20  # ID texts of several sentences; fewer say nothing about what is usual
_LAW_TEXTS = 4096  # most ID texts that the laws are learnt from
_SMALLEST = 1e-6  # a difference from what is usual that counts as none


class Coherence(Detector):
    """Coherence: how well the sentence that fits least fits the rest of its text.

        s(Z) = a(n) - max_i z_i
        u_i = P (v_i - μ) / |P (v_i - μ)|
        c_i = u_i · Σ_{j≠i} u_j / |Σ_{j≠i} u_j|
        z_i = (m(l_i) - c_i) / e(l_i)

    v_i is the mean input embedding of sentence i, l_i its number of tokens and n the number of sentences. P whitens the
    sentences of the ID texts, whose mean is μ. c_i is the cosine of a sentence and the rest of its text. m(l) and e(l)
    are its mean and its mean deviation for ID sentences of l tokens, because short ones fit less well, and a(n) is the
    mean of the largest z_i of ID texts of n sentences. 0 is usual. A text of one sentence has the score 0: there is
    nothing to compare it with. Each further window of a long text has the score 0, too, so the score of such a text is
    at most 0.

    This finds one foreign sentence in an ordinary text, such as an injected instruction, which hardly changes the mean
    of the text. It does not tell whether the text as a whole is foreign: use it beside another method, not instead.

    Input embeddings are used because they know nothing of the other sentences. In hidden states, attention has made a
    foreign sentence look like its surroundings.

    Not a published method.

    Attributes:
        centre_: μ `[E]`, float64.
        whitening_: P `[E, E]`, float64.
        misfit_: minus the mean of m(l) over the ID sentences.
        log_spread_: the mean of log e(l) over the ID sentences.
        worst_: the mean of max z_i over the ID texts.
        sentence_law_: how -m(l) depends on l.
        spread_law_: how log e(l) depends on l.
        count_law_: how max z_i depends on n.

    Examples:
        >>> import torch
        >>> from apood import Coherence, TokenBatch
        >>> from apood.tokens.batch import Ragged
        >>> generator = torch.Generator().manual_seed(0)
        >>> def make_texts(topics):  # four sentences of five tokens each
        ...     rows = topics + torch.randn(len(topics), 4, 8, generator=generator)
        ...     rows = torch.cat([torch.full_like(rows[..., :1], 5), rows], 2).flatten(0, 1)
        ...     return TokenBatch.without_tokens(sentences=Ragged.from_lengths(rows, [4] * len(topics)))
        >>> topics = 3 * torch.randn(200, 1, 8, generator=generator)
        >>> foreign = topics[:50] + 6 * torch.eye(4)[:, :1]  # the first sentence has another topic
        >>> detector = Coherence().fit(make_texts(topics[100:]))
        >>> inside, outside = (detector.score_samples(make_texts(own)) for own in (topics[:50], foreign))
        >>> bool(inside.mean() > outside.mean() + 1)
        True
    """

    name = "coherence"
    requires = frozenset({_CHANNEL})

    centre_: Annotated[Tensor, "E"]
    whitening_: Annotated[Tensor, "E E"]
    misfit_: float
    log_spread_: float
    worst_: float
    sentence_law_: LengthLaw
    spread_law_: LengthLaw
    count_law_: LengthLaw

    def rate_sentences(self, X: Any) -> Ragged:
        """Return z_i of each sentence: how much less it fits the rest of its text than is usual; 0 for a single one."""
        source = self._check_for_scoring(X)
        first, where = 0, "the data to rate"
        rates, counts = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0, dtype=torch.int64)]
        for batch in source.batches(token_budget(source.dim)):
            refuse_nonfinite(batch, self.requires, first, where)
            self._check_batch(batch, first, where)
            first += len(batch)
            rates.append(self._rate(batch.channels[_CHANNEL]))
            counts.append(batch.channels[_CHANNEL].lengths)
        return Ragged.from_lengths(torch.cat(rates), torch.cat(counts))

    def _check_batch(self, batch: TokenBatch, first: int, where: str) -> None:
        rows = batch.channels[_CHANNEL]
        if rows.values.ndim != 2 or rows.values.shape[1] < 2:
            raise InputError(
                f"A row of {_CHANNEL} must be the number of tokens of a sentence and a vector, got shape "
                f"{list(rows.values.shape[1:])} in {where}."
            )
        wrong = find_sequences_with(rows.values[:, 0] < 1, rows)
        if bool(wrong.any()):
            number = first + int(wrong.nonzero()[0])
            raise InputError(f"Sequence {number} of {where} has a sentence with less than one token.")

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:  # noqa: ARG002
        begins = torch.zeros(len(source), dtype=torch.bool)
        begins[torch.from_numpy(find_documents(source))] = True
        total: dict[str, Tensor] | None = None
        first, sentences = 0, []
        with progress_bar(len(source), "sentences", "seq") as progress:
            for batch in source.batches(token_budget(source.dim)):
                refuse_huge(batch.channels[_CHANNEL], _CHANNEL, first, "the ID data")
                # further windows repeat a sentence of the first one
                rows = batch.channels[_CHANNEL].select(begins[first : first + len(batch)])
                first += len(batch)
                progress.update(len(batch))
                sentences.append(rows.lengths)
                if len(rows):
                    part = measure_vectors(rows.values[:, 1:].cpu().double())
                    total = part if total is None else merge_spreads(total, part)
        assert total is not None, "the first sequence begins a text"
        several = (torch.cat(sentences) > 1).nonzero().flatten()
        if len(several) < _LEAST:
            raise InputError(
                f"coherence compares the sentences of a text, so it needs at least {_LEAST} ID texts of two or more "
                f"sentences, got {len(several)} among {len(begins.nonzero())}: these texts can only be judged as a "
                "whole."
            )
        _, self.centre_, covariance = compute_covariance(total)
        self.whitening_ = inverse_root(shrink(covariance, _SHRINKAGE), EIGENVALUE_FLOOR)
        places = torch.linspace(0, len(several) - 1, min(len(several), _LAW_TEXTS), dtype=torch.float64).long()
        # with all windows of a text, because the first one has all its sentences, and batches are cut by tokens
        some = Subset(source, make_document_mask(source, several[places]))
        counts, tokens, fits = [], [], []  # small, unlike the vectors
        for batch in some.batches(token_budget(source.dim)):
            rows = batch.channels[_CHANNEL]
            rows = rows.select(rows.lengths > 1)
            if len(rows):
                counts.append(rows.lengths)
                tokens.append(rows.values[:, 0].cpu().double())
                fits.append(self._compare(rows))
        self._learn_usual(torch.cat(counts), torch.cat(tokens), torch.cat(fits))

    def _learn_usual(self, counts: Tensor, tokens: Tensor, fits: Tensor) -> None:
        """Learn what is usual for texts of several sentences.

        Args:
            counts: the number of sentences of each text.
            tokens: the number of tokens of each sentence.
            fits: c_i of each sentence.
        """
        misfits = -fits
        self.sentence_law_ = LengthLaw.fit([(misfits, tokens)])
        misfits = misfits - self.sentence_law_.compute_allowances(tokens)[:, 0]
        differences = (misfits - misfits.mean()).abs().clamp_min(_SMALLEST).log()
        self.spread_law_ = LengthLaw.fit([(differences, tokens)])
        spread = differences - self.spread_law_.compute_allowances(tokens)[:, 0]
        # the logarithm of the mean deviation, of which the mean of the logarithms falls short
        self.misfit_, self.log_spread_ = float(misfits.mean()), float(spread.exp().mean().log())
        worst = torch.segment_reduce(self._standardize(tokens, fits), "max", lengths=counts)
        self.count_law_ = LengthLaw.fit([(worst, counts)])
        self.worst_ = float((worst - self.count_law_.compute_allowances(counts)[:, 0]).mean())

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return minus the scores; no distance for a sequence of one sentence, about which nothing is known."""
        # only such a sequence, a text or a further window of one, has a score of exactly 0
        return torch.where(scores == 0, compute_floored_log(torch.zeros_like(scores)), -scores)

    def _score(self, tokens: TokenBatch) -> Tensor:
        rows = tokens.channels[_CHANNEL]
        usual = self.worst_ + self.count_law_.compute_allowances(rows.lengths)[:, 0]
        worst = torch.segment_reduce(self._rate(rows), "max", lengths=rows.lengths)
        return torch.where(rows.lengths > 1, usual - worst, 0.0)

    def _rate(self, rows: Ragged) -> Tensor:
        """Return z_i of each sentence, 0 for those that are alone."""
        rated = self._standardize(rows.values[:, 0].cpu().double(), self._compare(rows))
        return torch.where((rows.lengths == 1).repeat_interleave(rows.lengths), 0.0, rated)

    def _standardize(self, tokens: Tensor, fits: Tensor) -> Tensor:
        """Return z_i of sentences from their numbers of tokens and c_i."""
        usual = self.misfit_ + self.sentence_law_.compute_allowances(tokens)[:, 0]
        spread = (self.log_spread_ + self.spread_law_.compute_allowances(tokens)[:, 0]).exp()
        return (-fits - usual) / spread

    def _compare(self, rows: Ragged) -> Tensor:
        """Return c_i of each sentence: the cosine of its vector and the sum of the others of its text."""
        vectors = rows.values[:, 1:].cpu().double()
        if vectors.shape[1] != len(self.centre_):
            raise InputError(
                f"The sentences have vectors of {vectors.shape[1]} numbers, this coherence detector was fitted on "
                f"{len(self.centre_)}."
            )
        centred = vectors - self.centre_
        # only directions count, and squares of huge numbers would be infinite
        own = normalize((centred / centred.abs().amax(1, keepdim=True).clamp_min(1)) @ self.whitening_)
        # sums of one text after the other do not depend on its neighbours
        sums = torch.segment_reduce(own, "sum", lengths=rows.lengths).repeat_interleave(rows.lengths, 0)
        return (own * normalize(sums - own)).sum(1)


def check_compared(source: TokenSource, learnt: TokenSource, held_out: TokenSource, least_held_out: int) -> None:
    """Raise `InputError` if a fusion with `Coherence` has too few texts of several sentences; warn if most have one.

    Args:
        source: all ID sequences.
        learnt: those to learn from.
        held_out: those that are held out, at random.
        least_held_out: how many texts of several sentences must be among these.
    """
    compared = _count_compared(held_out)
    if _count_compared(learnt, _LEAST) < _LEAST or compared < least_held_out:
        raise InputError(
            f"coherence compares the sentences of a text, so a fusion needs at least {_LEAST} ID texts of two or more "
            f"sentences to learn from, and {least_held_out} among those that it holds out, got "
            f"{_count_compared(learnt)} and {compared} among {count_documents(source)} texts: give more, or judge "
            "texts as a whole, without sentences and the member coherence."
        )
    share = compared / count_documents(held_out)
    if share < 0.5:
        warnings.warn(
            f"About {share:.0%} of the texts have several sentences. The others have no sentence to compare with the "
            "rest, so a foreign one is not noticed in them.",
            DataWarning,
            stacklevel=5,
        )


def _count_compared(source: TokenSource, enough: float = math.inf) -> int:
    """Return how many sequences have several sentences, at least `enough` if there are so many."""
    count = 0
    for batch in source.batches(token_budget(source.dim)):
        count += int((batch.channels[_CHANNEL].lengths > 1).sum())
        if count >= enough:
            break
    return count
