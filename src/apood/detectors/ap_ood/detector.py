"""AP-OOD: attention pooling for out-of-distribution detection."""

import copy
import math
import warnings
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from apood.detectors.ap_ood.recipe import (
    HeadReduction,
    Recipe,
    RecipeName,
    Regularizer,
    ScoreName,
    StartName,
    choose_sharpness,
    count_weights,
    prepare_start,
    resolve,
)
from apood.detectors.ap_ood.shortfall import Shortfall, compute_score_terms
from apood.detectors.ap_ood.training import (
    Outliers,
    Training,
    estimate_batch_bytes,
    find_failures,
    log_norms,
    pool_corpus,
)
from apood.detectors.contract.base import Detector
from apood.detectors.contract.held_out import HeldOutFit
from apood.detectors.contract.refinable import Measured, Refinable, Remembered
from apood.detectors.contract.renamed import name_renamed
from apood.detectors.shared.explanation import Explanation
from apood.detectors.shared.log_distances import LengthLaw, compute_floored_log
from apood.detectors.shared.mean_pooling import merge_spreads
from apood.fitting.curve import TrainingCurve
from apood.fitting.optimise import Checkpoint, minimise, run_digest
from apood.pooling import (
    FrozenPool,
    Pooled,
    Preprocessing,
    Similarity,
    merge,
    merge_sequences,
    round_queries,
)
from apood.pooling.algebra import similarities_and_logits
from apood.support.checks import check_choice, check_integer
from apood.support.device import check_device, resolve_device
from apood.support.errors import FitWarning, InputError
from apood.tokens.batch import Ragged, TokenBatch, upload
from apood.tokens.loader import Resident, place_on_device
from apood.tokens.source import Subset, TokenSource, spread_evenly, token_budget, trim_ends

__all__ = ["APOOD"]

_LAW_SEQUENCES = 4096  # most ID sequences that the length law is fitted on
_SPARE, _BATCHES = 2**31, 4  # bytes, and batches, that a corpus in GPU memory leaves free for the training
_COMPARED = 512  # ID sequences whose distances show whether attention is too sharp
_SHARP = 2.0  # sharpness that can fail, in long sequences
_FEW_DIRECTIONS = 16  # good fits have 30 or more
_FEW_FOR_QUERIES = 8  # with fewer than T D / 8 sequences, sharp attention is not tried: milder attention is as good
_EXPLAINED = 2**23  # similarities that an explanation holds at once, 64 MB of float64
_FEW_AUX = 64  # AUX sequences with half the weight of many
_BY_HEART = 0.1  # mean d² per head of sequences that heads have learnt by heart; it is 0.4 or more in good fits


class APOOD(Refinable, Detector):
    """Attention pooling for OOD detection, unsupervised and with auxiliary outliers.

    Hofmann et al., ICLR 2026. M heads W_j of T queries each pool a sequence Z by attention over all its (token, query)
    pairs, h_j(Z) = Tr(W_jᵀ Z softmax(β Zᵀ W_j)), and compare the result with the prototype μ_j, the pooled value of the
    whole training corpus:

        d²_j(Z) = (h_j(Z) - μ_j)²
        s(Z)     = Σ_j (-d²_j(Z) + log |W_j|²)      score="sum"
        s_t(Z)   = Σ_j (-ν log(1 + d²_j(Z) / ν) + log |W_j|²), ν = 3    score="student"
        s_min(Z) = min_j (-d²_j(Z) + log |W_j|²)    score="min"

    The heads minimise mean_n Σ_j d²_j(Z_n) - Σ_j log |W_j|², with μ of each batch and gradient through it. AUX
    sequences add λ mean -log(1 - exp(-d²)). At β = 0 this can represent the Mahalanobis distance.

    `recipe="paper"` follows the publication to the letter, and `recipe="reference"` the code that its authors published
    (github.com/ml-jku/ap-ood), which pools β a where the paper pools a. `recipe="robust"`, the default, departs from
    both so that it works on any backbone without tuning. Each argument that is not None overrides a setting of the
    recipe:

    | argument         | robust                               | paper                 | reference                  |
    | ---------------- | ------------------------------------ | --------------------- | -------------------------- |
    | `heads`          | 2D // queries (≥ 32); on a GPU D     | D // queries          | D // queries               |
    | `queries`        | 8; on a GPU 16                       | 1                     | 1                          |
    | `beta`           | `sharpness` / spread of similarities | 1 / √D                | 1                          |
    | `sharpness`      | ½ log median length, 0.7 to 3        | none                  | none                       |
    | `similarity`     | dot                                  | dot                   | dot                        |
    | `regularizer`    | logdet: keeps heads apart            | norm                  | norm                       |
    | `score`          | student                              | sum                   | sum                        |
    | `normalize`      | tokens                               | none                  | none                       |
    | `head_reduction` | mean: loss per head                  | sum                   | mean                       |
    | `aux_weight`     | 1                                    | 1                     | 10                         |
    | `steps`          | 300                                  | 1000                  | 1000                       |
    | `batch_size`     | 64 (at most 2²⁷ numbers)             | 512                   | 512                        |
    | `learning_rate`  | 0.001, cosine                        | 0.01, cosine          | 0.01, cosine               |
    | `start`          | mahalanobis                          | normal                | normal; with AUX scaled    |
    | (tokens)         | sinks left out, centred, whitened    | as they are           | as they are                |
    | (h)              | Σ p a                                | Σ p a                 | Σ p β a                    |
    | (beta warm-up)   | from 0 over the first half           | none                  | none                       |
    | (μ in the score) | mean of h over sequences             | attention over corpus | attention over corpus      |
    | (loss with AUX)  | mean of ID + λ mean of AUX - R       | sums over N + N'      | mean of ID + λ mean of AUX |
    | (lengths)        | distance relative to ID ones as long | as they are           | as they are                |

    The more tokens a sequence averages over, the nearer it is: log d falls with log S. The robust recipe learns how
    from the training sequences and compares each sequence with ID sequences of its length; otherwise long foreign
    documents look more ordinary than short ID ones. Attention is sharp for long sequences, in which few tokens may be
    foreign, and mild for short ones; for fewer than T D / 8 sequences, a sharpness of 2 or more that follows from the
    length is halved. More heads and queries find more, but take a CPU eight times as long.

    The euclidean similarity attends by -|z - w|²/2; its robust start is at random tokens, without whitening. W and its
    norms live in the space of the tokens after preprocessing.

    Args:
        heads: M, or "auto" for the number that the recipe sets.
        queries: T, queries per head.
        beta: inverse temperature of the attention; 0 is mean pooling.
        sharpness: beta without a unit: beta times the standard deviation of the token similarities at the start. Larger
            is sharper: 0 is mean pooling.
        similarity: "dot" or "euclidean".
        score: "sum" over heads; "student", its robust variant, in which no single head can decide alone; or "min",
            which has a provable bound but is weaker in practice.
        regularizer: "norm", Σ log |W_j|², or "logdet", which also keeps heads apart.
        recipe: "robust", "paper" or "reference".
        normalize: "tokens" (scale each to length 1) or "none".
        aux_weight: λ, the weight of AUX sequences in the loss; the robust recipe multiplies it by N' / (N' + 64),
            because a few outliers teach their own peculiarities.
        head_reduction: "mean" or "sum" of d² over heads in the loss.
        steps: number of gradient steps.
        batch_size: sequences per step.
        learning_rate: peak learning rate of Adam.
        start: where W starts. "mahalanobis": the Mahalanobis distance of centred and whitened tokens under a random
            rotation; "normal": N(0, 1); "scaled": N(0, 1/D), from where AUX sequences are near enough to teach.
        seed: seed of the initial weights and of the batches.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...

    Attributes:
        queries_: W `[M, T, D]` in the space of the preprocessed tokens, with the whitening included, and for
            recipe="reference" multiplied by β: Σ p β a is the attention of β W at an inverse temperature of 1.
        prototype_: μ `[M]`.
        log_norms_: log |W_j|² `[M]` of the weights in the whitened space.
        origin_: the mean token `[D]` that is subtracted; zeros if tokens are not centred.
        beta_: β after the warm-up; 1 for recipe="reference", where β is part of `queries_`.
        unit_tokens_: whether tokens are scaled to length 1.
        score_: how the score reduces d² over heads: "sum", "student" or "min".
        mean_distance_: mean d² per head over the ID sequences; about 1 after a good fit.
        length_law_: how log distances of ID sequences depend on their length; flat if tokens are whitened and
            `mean_distance_` is below 0.1: training sequences that heads have learnt by heart do not show it.
        training_curve_: the loss, and the mean d² per head of its batch, at up to 100 steps.
        fit_warnings_: the warnings that `fit` issued.

    Examples:
        >>> import torch
        >>> from apood import APOOD
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(8, 4, generator=generator) + 3 for _ in range(100)]
        >>> detector = APOOD(steps=20, device="cpu").fit(inside[:60]).calibrate(inside[60:])
        >>> foreign = inside[0].clone()
        >>> foreign[:3] *= -1  # three tokens of another kind
        >>> detector.predict([inside[0], foreign])
        array([ 1, -1])
    """

    name = "ap-ood"
    aux = "optional"
    has_held_out_fit = True
    explains = True
    propagates_nonfinite = True
    renamed_parameters = MappingProxyType({"temperature": "sharpness"})

    queries_: Annotated[Tensor, "M T D"]
    prototype_: Annotated[Tensor, "M"]
    log_norms_: Annotated[Tensor, "M"]
    origin_: Annotated[Tensor, "D"]
    beta_: float
    unit_tokens_: bool
    score_: ScoreName | None = None  # detectors that were saved before this existed have that of their recipe
    mean_distance_: float
    length_law_: LengthLaw
    training_curve_: TrainingCurve = TrainingCurve()  # detectors that were saved before these two existed have none
    fit_warnings_: list[str] = []  # noqa: RUF012 - never changed in place

    @name_renamed
    def __init__(
        self,
        heads: int | Literal["auto"] = "auto",
        queries: int | None = None,
        beta: float | None = None,
        sharpness: float | None = None,
        similarity: Similarity = "dot",
        score: ScoreName | None = None,
        regularizer: Regularizer | None = None,
        recipe: RecipeName = "robust",
        normalize: Literal["tokens", "none"] | None = None,
        aux_weight: float | None = None,
        head_reduction: HeadReduction | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        start: StartName | None = None,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.heads = heads
        self.queries = queries
        self.beta = beta
        self.sharpness = sharpness
        self.similarity = similarity
        self.score = score
        self.regularizer = regularizer
        self.recipe = recipe
        self.normalize = normalize
        self.aux_weight = aux_weight
        self.head_reduction = head_reduction
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.start = start
        self.seed = seed
        self.device = device

    @property
    def pools_tokens(self) -> bool:  # type: ignore[override]
        """Whether sinks are left out: by the robust recipe, because the others are followed to the letter."""
        return self._resolve_recipe().adapted

    @property
    def _score_name(self) -> ScoreName:
        return self._resolve_recipe().score if self.score_ is None else self.score_

    def _resolve_recipe(self, *, supervised: bool = False) -> Recipe:
        return resolve(
            self.recipe,
            supervised=supervised,
            on_gpu=resolve_device(self.device).type == "cuda",
            heads=None if self.heads == "auto" else self.heads,
            queries=self.queries,
            beta=self.beta,
            sharpness=self.sharpness,
            score=self.score,
            similarity=self.similarity,
            regularizer=self.regularizer,
            head_reduction=self.head_reduction,
            aux_weight=self.aux_weight,
            start=self.start,
            unit_tokens=None if self.normalize is None else self.normalize == "tokens",
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_device(self.device)
        self._resolve_recipe()
        if self.beta is not None and self.sharpness is not None:
            raise InputError("beta and sharpness say the same thing in different units: give one of them.")
        if self.normalize is not None:
            check_choice("normalize", self.normalize, ("tokens", "none"))
        check_integer("seed", self.seed, least=0)

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return the logarithm of the best possible score minus the score, which is Σ_j d²_j for "sum"."""
        return compute_floored_log(self._best_score().to(scores) - scores)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:
        """Return the paper's grid: β, every T that divides D, with M T = D, and λ if there are AUX sequences."""
        betas = sorted({1 / math.sqrt(dim), 0.25, 0.5, 1.0, 2.0})
        sizes = [{"queries": queries, "heads": dim // queries} for queries in (1, 4, 16, 64) if dim % queries == 0]
        weights: list[dict[str, Any]] = [{"aux_weight": weight} for weight in (0.1, 1.0, 10.0)] if supervised else [{}]
        return [{"beta": beta} | size | weight for beta in betas for size in sizes for weight in weights]

    def held_out_fit(self, tokens: TokenSource) -> HeldOutFit:
        """Return the paper's loss and the mean d² per head of held-out ID sequences. Each window counts as one."""
        summed = copy.copy(self)
        summed.score_ = "sum"
        # The score is s = Σ_j (log |W_j|² - d²_j). Windows count alone, as in `mean_distance_`.
        loss = -float(summed._score_sequences(tokens).mean())
        distance = (loss + float(self.log_norms_.double().sum())) / len(self.log_norms_)
        return HeldOutFit(loss, distance, self.mean_distance_)

    def count_operations(self, source: TokenSource) -> float:
        """Return the operations of all steps: per step, three products of the tokens of a batch and all queries."""
        recipe = self._resolve_recipe()
        heads, queries, dim = count_weights(recipe, source.dim)
        tokens = min(recipe.batch_size, len(source)) * float(source.lengths.double().mean())
        return 6.0 * dim * heads * queries * recipe.steps * tokens

    def _place(self, source: TokenSource, aux: TokenSource | None) -> tuple[TokenSource, TokenSource | None]:
        """Move all tokens to the memory of the GPU, if there is one with enough room."""
        given, recipe = [source] if aux is None else [source, aux], self._resolve_recipe()
        spare = _SPARE + _BATCHES * sum(estimate_batch_bytes(own, recipe) for own in given if len(own))
        own, *outliers = place_on_device(given, resolve_device(self.device), spare)
        return own, (outliers[0] if outliers else None)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        recipe = self._resolve_recipe(supervised=aux is not None)
        if recipe.adapted and aux is not None:
            recipe = replace(recipe, aux_weight=recipe.aux_weight * len(aux) / (len(aux) + _FEW_AUX))
        sharpness = choose_sharpness(source.lengths)
        milder = replace(recipe, sharpness=sharpness / 2)
        may_fail = recipe.beta is None and recipe.sharpness == "length" and sharpness >= _SHARP
        if may_fail and len(source) < recipe.queries * source.dim / _FEW_FOR_QUERIES:
            # Heads will know these sequences by heart, whose distances then do not show whether attention has failed.
            found = self._train(source, aux, milder, checkpoint)
        else:
            found = self._train(source, aux, recipe, checkpoint)
            if may_fail and self._is_too_sharp(source):
                part = None if checkpoint is None else checkpoint.part(1)
                found = self._train(source, aux, milder, part)
        self.fit_warnings_ = [str(one) for one in found]
        for one in found:
            warnings.warn(one, stacklevel=3)

    def _is_too_sharp(self, source: TokenSource) -> bool:
        """Return whether so few directions decide the distances of ID sequences that attention must have failed.

        Sharp attention may single out tokens that vary from sequence to sequence and mean nothing, such as a piece of
        the vocabulary in which a model parks its own attention. All heads then see the same few tokens, and the
        logarithm of the sum of their d² spreads like that of k squares: about √(2/k).
        """
        some = Subset(source, spread_evenly(len(source), _COMPARED))
        scores = [self._score(batch).cpu().double() for batch in some.batches(token_budget(source.dim))]
        return float(self.log_distances(torch.cat(scores)).std()) > math.sqrt(2 / _FEW_DIRECTIONS)

    def _train(
        self, source: TokenSource, aux: TokenSource | None, recipe: Recipe, checkpoint: Checkpoint | None
    ) -> list[FitWarning]:
        """Learn all attributes but `fit_warnings_`, and return what went wrong."""
        device = resolve_device(self.device)
        # with the resolved recipe, because it depends on the device
        run = run_digest({"method": self.name, **self.get_params(deep=False), "resolved": vars(recipe)}, source, aux)
        generator = torch.Generator().manual_seed(int(self.seed))
        start = prepare_start(source, recipe, generator, device)
        weights = start.weights.clone().requires_grad_()
        training = Training(source, aux, recipe, start, weights, int(self.seed))
        place = f"tokens in the memory of {device}" if isinstance(source, Resident) else "tokens streamed"
        try:
            outcome = minimise(
                [weights],
                training,
                steps=recipe.steps,
                learning_rate=recipe.learning_rate,
                run=run,
                checkpoint=checkpoint,
                label="fit" if device.type == "cpu" else f"fit, {place}",
            )
        finally:
            training.close()
        weights = weights.detach()
        queries = round_queries(start.queries(weights), source.dtype)  # so that scores do not depend on the device
        sample = spread_evenly(len(source), _LAW_SEQUENCES)
        corpus = pool_corpus(source, queries, start.beta, recipe, start, sample)
        mu = corpus.mean if recipe.mean_prototype else corpus.prototype
        self.queries_, self.prototype_ = queries.cpu(), mu.float().cpu()
        self.log_norms_ = log_norms(weights).cpu()
        self.origin_ = (
            torch.zeros(source.dim) if start.preprocessing.origin is None else start.preprocessing.origin.cpu()
        )
        self.beta_, self.unit_tokens_, self.score_ = start.beta, recipe.unit_tokens, recipe.score
        self.mean_distance_ = float((corpus.variance + (corpus.mean - mu).square()).mean())
        self.training_curve_ = outcome.curve
        self.length_law_ = LengthLaw()
        # What heads know by heart is at a distance of almost 0, which says nothing about new sequences. Only in the
        # whitened space is d² about 1 otherwise.
        whitened = recipe.similarity == "dot" and recipe.start == "mahalanobis"
        if recipe.adapted and not (whitened and self.mean_distance_ < _BY_HEART):
            shortfall = Shortfall(recipe.score, self.prototype_, self.log_norms_)
            distances = shortfall.from_values(corpus.sample.cpu()).double()
            self.length_law_ = LengthLaw.fit([(compute_floored_log(distances), source.lengths[sample])])
        nearest = training.measure_aux_distance()
        outliers = None if nearest is None else Outliers(float(nearest), recipe)
        return find_failures(weights, corpus.variance, self.mean_distance_, len(source), outcome, outliers)

    @torch.no_grad()
    def measure(self, tokens: TokenBatch) -> Measured:
        """Return the pool of all sequences together, and number, mean and scatter of h, per head."""
        device = resolve_device(self.device)
        kept = trim_ends(tokens, first=self.skips_first_, last=self.skips_last_).to(device)
        pooled = Pooled(*(x.double() for x in self._pool(kept.dtype)(kept)))
        value, log_mass = merge_sequences(pooled)
        mean = pooled.value.mean(0)
        found = {"value": value, "log_mass": log_mass, "mean": mean, "scatter": (pooled.value - mean).square().sum(0)}
        return {"count": torch.tensor(float(len(kept)), dtype=torch.float64)} | {k: x.cpu() for k, x in found.items()}

    def merge_measured(self, first: Measured, second: Measured) -> Measured:
        """Return the pool, and number, mean and scatter of h, of a union."""
        value, log_mass = merge(*(Pooled(own["value"], own["log_mass"]) for own in (first, second)))
        return {**merge_spreads(first, second), "value": value, "log_mass": log_mass}

    def refine(self, measured: Measured, remembered: Remembered) -> None:  # noqa: ARG002
        """Replace the prototype by that of everything. Queries and the space they live in stay as they were trained."""
        mean, variance = measured["mean"], measured["scatter"] / measured["count"]
        mu = mean if self._resolve_recipe().mean_prototype else measured["value"]
        self.prototype_ = mu.float()
        self.mean_distance_ = float((variance + (mean - mu).square()).mean())

    def _score(self, tokens: TokenBatch) -> Tensor:
        distances = self._pool(tokens.dtype).finish(tokens)
        best, factors = self._best_score(), self._length_factors(tokens.lengths)  # computed while the GPU is busy
        return best - distances * upload(factors, distances.device)  # still there: whoever reads it waits

    def _explain(self, tokens: TokenBatch) -> Explanation:
        """Return the contributions of tokens, c_s = Σ_j c_sj with c_sj = (h_j - μ_j) Σ_t p_jts (a_jts - μ_j).

        It is large if a token draws attention and pulls the pooled value away from the prototype, and negative if it
        pulls it back. For score="student" the part of each head is scaled like its d² in the score. For score="min"
        only the head that decides has a part. All parts are scaled by the correction for the length.
        """
        factors = self._length_factors(tokens.lengths)
        parts = [factor * self._explain_sequence(z) for z, factor in zip(tokens, factors, strict=True)]
        heads = Ragged(torch.cat(parts), tokens.offsets)
        contributions = heads.values.sum(1)
        totals = torch.stack([part.sum() for part in Ragged(contributions, tokens.offsets)])
        return Explanation(Ragged(contributions, tokens.offsets), totals, heads)

    def _explain_sequence(self, sequence: Tensor) -> Tensor:
        """Return the contributions of the tokens per head `[S, M]`, float64, without the correction for the length."""
        device = resolve_device(self.device)
        queries, prototype, norms = (
            self._copy_on(device, name).double() for name in ("queries_", "prototype_", "log_norms_")
        )
        z = self._make_preprocessing(device).apply(sequence.to(device).double())
        pulls = []
        block = max(1, _EXPLAINED // (queries.shape[1] * len(z)))
        for own, centres in zip(torch.split(queries, block), torch.split(prototype, block), strict=True):
            a, logits = similarities_and_logits(z, own, self.beta_, self.similarity)
            weights = torch.softmax(logits.flatten(1), 1).view_as(logits)
            pulls.append((weights * (a - centres[:, None, None])).sum(1))
        pull = torch.cat(pulls)
        deviation = pull.sum(1, keepdim=True)
        squares = deviation.square()
        if self._score_name == "min":
            handicaps = (norms - norms.amin())[:, None]
            decides = torch.zeros_like(squares)
            decides[(squares - handicaps).argmax()] = 1
            return (decides * (deviation * pull - handicaps / len(sequence))).T.cpu()
        scales = compute_score_terms(squares, self._score_name) / squares.clamp_min(torch.finfo(squares.dtype).tiny)
        return (scales * deviation * pull).T.cpu()

    def _pool(self, dtype: torch.dtype) -> FrozenPool:
        """Return the pool of tokens in `dtype`, which gives the shortfall of each sequence."""
        device = resolve_device(self.device)
        return self._get_cached(("pool", device, dtype), lambda: self._make_pool(device, dtype))

    def _make_pool(self, device: torch.device, dtype: torch.dtype) -> FrozenPool:
        queries, prototype, norms = (self._copy_on(device, name) for name in ("queries_", "prototype_", "log_norms_"))
        # queries that were learnt from tokens of another dtype keep all digits, so that scores are the same everywhere
        exact = not torch.equal(round_queries(self.queries_, dtype), self.queries_)
        shortfall = Shortfall(self._score_name, prototype, norms)
        preprocessing = self._make_preprocessing(device)
        return FrozenPool(queries, self.beta_, self.similarity, preprocessing, exact=exact, finish=shortfall)

    def _make_preprocessing(self, device: torch.device) -> Preprocessing:
        return Preprocessing(self.unit_tokens_, self._copy_on(device, "origin_") if bool(self.origin_.any()) else None)

    def _best_score(self) -> Tensor:
        """Return the score at a distance of 0."""
        key = "best score"
        return self._get_cached(key, lambda: (torch.amin if self._score_name == "min" else torch.sum)(self.log_norms_))

    def _length_factors(self, lengths: Tensor) -> Tensor:
        """Return the factor per sequence that corrects its distance for its length: above 1 for a long sequence."""
        if self.length_law_.is_flat:  # a shortcut, because a single sequence is scored in microseconds
            return torch.ones(len(lengths), dtype=torch.float64)
        return (-self.length_law_.compute_allowances(lengths)[:, 0]).exp()
