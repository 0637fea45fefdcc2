"""What Deep SVDD and Deep SAD share: an encoder that draws ID sequences together around a centre."""

import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from apood.detectors.contract.base import Detector
from apood.detectors.shared.log_distances import floored_log
from apood.detectors.shared.mean_pooling import Normalize, pooled_vectors
from apood.detectors.shared.pooled_corpus import Standard, standardized, standardized_by
from apood.fitting.checkpoint import Checkpoint, run_digest
from apood.fitting.loop import Outcome, minimise
from apood.support.arguments import number, one_of, whole_number
from apood.support.errors import DivergedWarning, FitWarning
from apood.tokens.batch import TokenBatch
from apood.tokens.loader import shuffled
from apood.tokens.source import TokenSource

__all__ = ["Encoder", "Hypersphere", "Training", "begin", "total_variance"]

_SLOPE = 0.5  # of the activation below 0: measured, smaller ones find less
_MOST_HIDDEN, _MOST_OUTPUTS = 1024, 128
_RATE = 0.04  # learning rate for one input
_CENTRE_MARGIN = 0.1  # least distance of the centre from 0, relative to the spread of an output
_NEAREST = 1e-6  # added to a squared distance before it is inverted, as in the authors' code
_ROWS = 4096  # vectors encoded at once
_COLLAPSED = 1e-4  # variance of the outputs, relative to that at the start; good fits end above 1e-3


class Encoder(NamedTuple):
    """φ(x) = W₂ leaky(W₁ x), with W₁ `[hidden, D]` and W₂ `[outputs, hidden]`."""

    hidden: Tensor
    output: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """The outputs `[N, outputs]`."""
        outputs: Tensor = leaky_relu(vectors @ self.hidden.T, _SLOPE) @ self.output.T
        return outputs

    def distances(self, vectors: Tensor, centre: Tensor) -> Tensor:
        """|φ(x) - c|² `[N]`."""
        return (self(vectors) - centre).square().sum(1)

    @torch.no_grad()
    def of_all(self, vectors: Tensor) -> Tensor:
        """The outputs of a whole corpus, without its hidden layer in memory."""
        return torch.cat([self(part) for part in torch.split(vectors, _ROWS)])


def begin(vectors: Tensor, hidden: int, outputs: int, generator: torch.Generator) -> tuple[Encoder, Tensor]:
    """A random encoder whose outputs have variance 1 in all, and the centre of its outputs, away from 0."""
    dim = vectors.shape[1]
    encoder = Encoder(
        torch.randn(hidden, dim, generator=generator) * math.sqrt(2 / dim),
        torch.randn(outputs, hidden, generator=generator) / math.sqrt(hidden),
    )
    encoder.output.div_(total_variance(encoder.of_all(vectors)) ** 0.5)
    centre = encoder.of_all(vectors).mean(0)
    least = _CENTRE_MARGIN / math.sqrt(outputs)
    centre = torch.where(centre.abs() < least, torch.where(centre < 0, -least, least), centre)
    return encoder, centre


def total_variance(outputs: Tensor) -> float:
    """The variance of the outputs over a corpus, summed over them."""
    return float(outputs.double().var(0, correction=0).sum())


class Training:
    """The loss of a step as a function of its number: mean |φ(x) - c|² of ID, and what AUX add to it."""

    def __init__(
        self,
        encoder: Encoder,
        centre: Tensor,
        corpora: list[tuple[TokenSource, Tensor]],
        aux_weight: float,
        batch_size: int,
        seed: int,
    ) -> None:
        """`corpora` are the ID sequences and, where there are some, the AUX sequences, each with its vectors."""
        self._encoder, self._centre, self._aux_weight = encoder, centre, aux_weight
        self._corpora, self._batch_size, self._seed = corpora, batch_size, seed
        self._batches: list[Iterator[Tensor]] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The loss of a step and its mean squared distance."""
        if self._batches is None:
            self._batches = [self._stream(number, step) for number in range(len(self._corpora))]
        inside, *outside = (self._encoder.distances(next(batches), self._centre) for batches in self._batches)
        distance = loss = inside.mean()
        for distances in outside:
            loss = loss + self._aux_weight * (distances + _NEAREST).reciprocal().mean()
        return loss, distance

    def _stream(self, number: int, first: int) -> Iterator[Tensor]:
        source, vectors = self._corpora[number]
        chosen = shuffled(source, seed=self._seed + number, batch_size=self._batch_size, start=first)
        return (vectors[rows] for rows in chosen)


class Hypersphere(Detector):
    """Base of the detectors whose score is -|φ(z̄) - c|²."""

    aux_weight: float = 0.0

    mean_: Tensor
    scale_: Tensor
    hidden_: Tensor
    output_: Tensor
    centre_: Tensor

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
        """Refuses constructor arguments that make no sense."""
        one_of("normalize", self.normalize, get_args(Normalize))
        for name in ("hidden", "outputs"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least=1)
        whole_number("steps", self.steps, least=1)
        whole_number("batch_size", self.batch_size, least=1)
        if self.learning_rate is not None:
            number("learning_rate", self.learning_rate, above=0)
        number("weight_decay", self.weight_decay, least=0)
        number("aux_weight", self.aux_weight, least=0)
        whole_number("seed", self.seed, least=0)

    def log_distances(self, scores: Tensor) -> Tensor:
        """Of the squared distance."""
        return floored_log(-scores)

    def _fit(self, source: TokenSource, aux: TokenSource | None, checkpoint: Checkpoint | None) -> None:
        run = run_digest({"method": self.name, **self.get_params(deep=False)}, source, aux)
        vectors, standard = standardized(source, self.normalize)
        corpora = [(source, vectors)]
        if aux is not None:
            corpora.append((aux, standardized_by(standard, aux, self.normalize)))
        generator = torch.Generator().manual_seed(self.seed)
        hidden = self.hidden or min(2 * source.dim, _MOST_HIDDEN)
        outputs = self.outputs or min(source.dim, _MOST_OUTPUTS)
        encoder, centre = begin(vectors, hidden, outputs, generator)
        outcome = minimise(
            [weight.requires_grad_() for weight in encoder],
            Training(encoder, centre, corpora, self.aux_weight, self.batch_size, self.seed),
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
        _warn_of_failure(total_variance(encoder.of_all(vectors)), outcome)

    def _score(self, tokens: TokenBatch) -> Tensor:
        vectors = Standard(self.mean_, self.scale_).apply(pooled_vectors(tokens, self.normalize).cpu())
        # in float64 the rounding of a product does not depend on what else is in the batch, as far as anyone can see
        encoder = Encoder(self.hidden_.double(), self.output_.double())
        return -encoder.distances(vectors, self.centre_.double())


def _warn_of_failure(variance: float, outcome: Outcome) -> None:
    """Issues a `FitWarning` for each thing that is clearly wrong; `variance` is that of the outputs, 1 at the start."""
    if outcome.diverged_at is not None:
        warnings.warn(
            f"Training broke off at step {outcome.diverged_at} because the loss was no longer finite, and the last "
            "finite weights were kept; use a smaller learning_rate.",
            DivergedWarning,
            stacklevel=4,
        )
    if variance < _COLLAPSED:
        warnings.warn(
            f"The encoder has collapsed: it maps all ID sequences to nearly one point, with {variance:.1e} of the "
            "variance they had at the start, so that distances from it say little about others; use fewer steps, "
            "fewer hidden units, or more ID sequences.",
            FitWarning,
            stacklevel=4,
        )
