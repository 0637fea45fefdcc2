"""Deep SVDD and Deep SAD: the distance of an encoded sequence from a centre that training draws ID sequences to."""

import math
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from apood.detectors.contract.base import Detector
from apood.detectors.shared.log_distances import compute_floored_log
from apood.detectors.shared.mean_pooling import Normalize, Standard, pool_means, standardize, standardize_by
from apood.fitting.optimise import Checkpoint, Outcome, minimise, run_digest
from apood.support.checks import check_choice, check_integer, check_number
from apood.support.errors import DivergedWarning, FitWarning
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import shuffle_batches
from apood.tokens.source import TokenSource

__all__ = ["DeepSAD", "DeepSVDD", "Encoder", "Training", "start_encoder", "total_variance"]

_SLOPE = 0.5  # of the activation below 0; smaller slopes found fewer outliers
_MOST_HIDDEN, _MOST_OUTPUTS = 1024, 128
_RATE = 0.04  # learning rate times D
_CENTRE_MARGIN = 0.1  # least distance of the centre from 0, relative to the spread of an output
_NEAREST = 1e-6  # added to a squared distance before it is inverted, as in the authors' code
_ROWS = 4096  # vectors encoded at once
_COLLAPSED = 1e-4  # variance of the outputs, relative to that at the start; good fits end above 1e-3


class Encoder(NamedTuple):
    """The network φ(x) = W₂ leaky(W₁ x).

    Attributes:
        hidden: W₁ `[hidden, D]`.
        output: W₂ `[outputs, hidden]`.
    """

    hidden: Tensor
    output: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the outputs `[N, outputs]`."""
        outputs: Tensor = leaky_relu(vectors @ self.hidden.T, _SLOPE) @ self.output.T
        return outputs

    def distances(self, vectors: Tensor, centre: Tensor) -> Tensor:
        """Return |φ(x) - c|² `[N]`."""
        return (self(vectors) - centre).square().sum(1)

    @torch.no_grad()
    def encode_corpus(self, vectors: Tensor) -> Tensor:
        """Return the outputs of a whole corpus, computed in parts so that its hidden layer need not fit into memory."""
        return torch.cat([self(part) for part in torch.split(vectors, _ROWS)])


def start_encoder(vectors: Tensor, hidden: int, outputs: int, generator: torch.Generator) -> tuple[Encoder, Tensor]:
    """Return a random encoder whose outputs have a total variance of 1, and the centre of its outputs, away from 0."""
    dim = vectors.shape[1]
    encoder = Encoder(
        torch.randn(hidden, dim, generator=generator) * math.sqrt(2 / dim),
        torch.randn(outputs, hidden, generator=generator) / math.sqrt(hidden),
    )
    encoder.output.div_(total_variance(encoder.encode_corpus(vectors)) ** 0.5)
    centre = encoder.encode_corpus(vectors).mean(0)
    least = _CENTRE_MARGIN / math.sqrt(outputs)
    centre = torch.where(centre.abs() < least, torch.where(centre < 0, -least, least), centre)
    return encoder, centre


def total_variance(outputs: Tensor) -> float:
    """Return the variance over a corpus, summed over the outputs."""
    return float(outputs.double().var(0, correction=0).sum())


class Training:
    """The loss as a function of the step: the mean of |φ(x) - c|² over ID sequences, plus the AUX term."""

    def __init__(
        self,
        encoder: Encoder,
        centre: Tensor,
        corpora: list[tuple[TokenSource, Tensor]],
        aux_weight: float,
        batch_size: int,
        seed: int,
    ) -> None:
        """`corpora` are the ID sequences and, if there are any, the AUX sequences, each with its pooled vectors."""
        self._encoder, self._centre, self._aux_weight = encoder, centre, aux_weight
        self._corpora, self._batch_size, self._seed = corpora, batch_size, seed
        self._batches: list[Iterator[Tensor]] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of a step and the mean squared distance of its ID sequences."""
        if self._batches is None:
            self._batches = [self._stream(number, step) for number in range(len(self._corpora))]
        inside, *outside = (self._encoder.distances(next(batches), self._centre) for batches in self._batches)
        distance = loss = inside.mean()
        for distances in outside:
            loss = loss + self._aux_weight * (distances + _NEAREST).reciprocal().mean()
        return loss, distance

    def _stream(self, number: int, first: int) -> Iterator[Tensor]:
        source, vectors = self._corpora[number]
        chosen = shuffle_batches(source, seed=self._seed + number, batch_size=self._batch_size, start=first)
        return (vectors[rows] for rows in chosen)


class DeepSVDD(Detector):
    """Deep SVDD: a small network maps mean tokens near a centre; minus the squared distance to it.

        s(Z) = -|φ(z̄) - c|²

    Ruff et al. 2018, "Deep One-Class Classification" (ICML), the one-class objective:

        min over W of mean_n |φ(z̄_n; W) - c|² + λ/2 |W|²

    As published, c is the mean of φ over the ID sequences before training, with no coordinate near 0, and
    φ(x) = W₂ leaky(W₁ x) has no bias terms and an unbounded activation; otherwise there would be weights that map
    every input to c.

    Departures: the input is the mean token, each dimension with mean 0 and variance 1 over the ID sequences (dimensions
    that are constant up to rounding stay small). The weights start at random, not from an autoencoder; W₂ is scaled so
    that the outputs have a total variance of 1. The learning rate follows a cosine and is 0.04 / D, so that a step
    changes a hidden unit by the same amount for every D. Training is short: with more steps the encoder fits each
    training sequence and finds fewer outliers, until it collapses, which a `FitWarning` reports. The AP-OOD paper does
    not describe its setup of this method.

    Args:
        normalize: "none" as published; "tokens" or "pooled" to compare directions only.
        hidden: number of hidden units; None for 2 D, at most 1024.
        outputs: number of outputs; None for D, at most 128.
        steps: number of gradient steps.
        batch_size: sequences per step.
        learning_rate: peak learning rate of Adam; None for 0.04 / D.
        weight_decay: λ.
        seed: seed of the initial weights and of the batches.

    Attributes:
        mean_: mean `[D]` of the mean-pooled ID sequences, float64.
        scale_: standard deviation `[D]` of the mean-pooled ID sequences, float64.
        hidden_: W₁ `[hidden, D]`.
        output_: W₂ `[outputs, hidden]`.
        centre_: c `[outputs]`.

    Examples:
        >>> import torch
        >>> from apood import DeepSVDD
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(5, 4, generator=generator) for _ in range(50)]
        >>> near, far = DeepSVDD(steps=20).fit(inside).score_samples([torch.zeros(5, 4), torch.full((5, 4), 9.0)])
        >>> bool(near > far)
        True
    """

    name = "deep-svdd"
    pools_tokens = True

    aux_weight: float = 0.0  # an argument of Deep SAD

    mean_: Annotated[Tensor, "D"]
    scale_: Annotated[Tensor, "D"]
    hidden_: Annotated[Tensor, "hidden D"]
    output_: Annotated[Tensor, "outputs hidden"]
    centre_: Annotated[Tensor, "outputs"]

    def __init__(
        self,
        normalize: Normalize = "none",
        hidden: int | None = None,
        outputs: int | None = None,
        steps: int = 300,
        batch_size: int = 128,
        learning_rate: float | None = None,
        weight_decay: float = 1e-6,
        seed: int = 0,
    ) -> None:
        self.normalize = normalize
        self.hidden = hidden
        self.outputs = outputs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed

    def check_parameters(self) -> None:
        """Raise `InputError` if a constructor argument is not allowed."""
        check_choice("normalize", self.normalize, get_args(Normalize))
        for name in ("hidden", "outputs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=1)
        check_integer("steps", self.steps, least=1)
        check_integer("batch_size", self.batch_size, least=1)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)
        check_number("aux_weight", self.aux_weight, least=0)
        check_integer("seed", self.seed, least=0)

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return short and long training, each with every normalization."""
        return [{"steps": steps, "normalize": normalize} for steps in (100, 300) for normalize in get_args(Normalize)]

    def log_distances(self, scores: Tensor) -> Tensor:
        """Return the logarithms of the squared distances."""
        return compute_floored_log(-scores)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        run = run_digest({"method": self.name, **self.get_params(deep=False)}, source, aux)
        vectors, standard = standardize(source, self.normalize)
        corpora = [(source, vectors)]
        if aux is not None:
            corpora.append((aux, standardize_by(standard, aux, self.normalize)))
        generator = torch.Generator().manual_seed(int(self.seed))
        hidden = self.hidden or min(2 * source.dim, _MOST_HIDDEN)
        outputs = self.outputs or min(source.dim, _MOST_OUTPUTS)
        encoder, centre = start_encoder(vectors, hidden, outputs, generator)
        outcome = minimise(
            [weight.requires_grad_() for weight in encoder],
            Training(encoder, centre, corpora, self.aux_weight, self.batch_size, int(self.seed)),
            steps=self.steps,
            learning_rate=self.learning_rate or _RATE / source.dim,
            weight_decay=self.weight_decay,
            run=run,
            checkpoint=checkpoint,
            label="fit",
        )
        self.mean_, self.scale_ = standard
        self.hidden_, self.output_ = (weight.detach() for weight in encoder)
        self.centre_ = centre
        _warn_of_failure(total_variance(encoder.encode_corpus(vectors)), outcome)

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = Standard(self.mean_, self.scale_).apply(pool_means(tokens, self.normalize).cpu())
        # in float64 the rounding of a product depends on the other sequences of a batch only in digits that do not show
        encoder = Encoder(self.hidden_.double(), self.output_.double())
        return -encoder.distances(vectors, self.centre_.double())


class DeepSAD(DeepSVDD):
    """Deep SAD: Deep SVDD, whose network also learns to keep AUX sequences away from the centre.

        s(Z) = -|φ(z̄) - c|²

    Ruff et al. 2019, "Deep Semi-Supervised Anomaly Detection" (arXiv 1906.02694), without labelled normal sequences:

        min over W of mean_n |φ(z̄_n; W) - c|² + η mean_m (|φ(x̄_m; W) - c|² + ε)⁻¹ + λ/2 |W|²

    with x̄_m the mean tokens of the AUX sequences and ε = 1e-6 as in the authors' code.

    Departures: both terms are means, where the publication divides both sums by N + N', so that 8 AUX sequences have
    the same weight as 8,000; the other departures are those of `DeepSVDD`. AUX sequences are optional, because without
    them the method is Deep SVDD, as the authors point out. The outputs have a total variance of 1 at the start, so that
    η means the same on all data: 0.01 equals the published 1 for 10 outputs of variance 1 each, and larger values let a
    few AUX sequences do harm. The AP-OOD paper does not describe its setup of this method.

    Args:
        normalize: "none" as published; "tokens" or "pooled" to compare directions only.
        aux_weight: η, the weight of AUX sequences in the loss.
        hidden: number of hidden units; None for 2 D, at most 1024.
        outputs: number of outputs; None for D, at most 128.
        steps: number of gradient steps.
        batch_size: sequences per step, of either kind.
        learning_rate: peak learning rate of Adam; None for 0.04 / D.
        weight_decay: λ.
        seed: seed of the initial weights and of the batches.

    Attributes:
        mean_: mean `[D]` of the mean-pooled ID sequences, float64.
        scale_: standard deviation `[D]` of the mean-pooled ID sequences, float64.
        hidden_: W₁ `[hidden, D]`.
        output_: W₂ `[outputs, hidden]`.
        centre_: c `[outputs]`.

    Examples:
        >>> import torch
        >>> from apood import DeepSAD
        >>> generator = torch.Generator().manual_seed(0)
        >>> inside = [torch.randn(5, 4, generator=generator) for _ in range(50)]
        >>> outside = [torch.randn(5, 4, generator=generator) + 2 for _ in range(8)]
        >>> detector = DeepSAD(steps=20).fit(inside, aux=outside)
        >>> near, far = detector.score_samples([torch.zeros(5, 4), torch.full((5, 4), 2.0)])
        >>> bool(near > far)
        True
    """

    name = "deep-sad"
    aux = "optional"

    def __init__(
        self,
        normalize: Normalize = "none",
        aux_weight: float = 0.01,
        hidden: int | None = None,
        outputs: int | None = None,
        steps: int = 300,
        batch_size: int = 128,
        learning_rate: float | None = None,
        weight_decay: float = 1e-6,
        seed: int = 0,
    ) -> None:
        super().__init__(normalize, hidden, outputs, steps, batch_size, learning_rate, weight_decay, seed)
        self.aux_weight = aux_weight

    def hyperparameter_space(self, dim: int, *, supervised: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return every normalization with light and heavy AUX weights, or with short and long training without AUX."""
        name, values = ("aux_weight", (0.01, 0.1, 1.0)) if supervised else ("steps", (100, 300))
        return [{name: value, "normalize": normalize} for value in values for normalize in get_args(Normalize)]


def _warn_of_failure(variance: float, outcome: Outcome) -> None:
    """Issue a `FitWarning` per failure; `variance` is the total variance of the outputs, which starts at 1."""
    if outcome.diverged_at is not None:
        warnings.warn(
            f"Training broke off at step {outcome.diverged_at} because the loss was no longer finite, and the last "
            "finite weights were kept; use a smaller learning_rate.",
            DivergedWarning,
            stacklevel=4,
        )
    if variance < _COLLAPSED:
        warnings.warn(
            f"The encoder has collapsed: it maps all ID sequences to nearly one point, with {variance:.1e} of their "
            "initial variance, so that distances from it say little about other sequences; use fewer steps, fewer "
            "hidden units, or more ID sequences.",
            FitWarning,
            stacklevel=4,
        )
