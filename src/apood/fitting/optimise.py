"""The optimisation loop: Adam, cosine schedule, progress, checkpoints."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from apood.fitting.checkpoint import Checkpoint
from apood.support.progress import progress_bar

__all__ = ["Adam", "Objective", "Outcome", "cosine", "minimise", "warm_up"]

_DECAY_OF_MEANS, _DECAY_OF_SQUARES, _LEAST = 0.9, 0.999, 1e-8


class Adam:
    """Kingma and Ba 2015 (arXiv 1412.6980) over `parameters`, with `weight_decay` / 2 times their squared norm.

    The kernel of `torch.optim.Adam(fused=True)`, called without that class, because the first optimiser of torch in a
    process imports its compiler, which takes longer than many a fit. Its signature is the same in every torch that is
    supported; should one change it, the test that compares both fails.
    """

    def __init__(self, parameters: Sequence[Tensor], weight_decay: float) -> None:
        self._parameters, self._weight_decay = list(parameters), weight_decay
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._counts = [torch.zeros((), device=parameter.device) for parameter in parameters]

    def resume(self, step: int, means: Sequence[Tensor], squares: Sequence[Tensor]) -> None:
        """Goes on after `step` steps that left these moments."""
        for own, saved in zip([*self.means, *self.squares], [*means, *squares], strict=True):
            own.copy_(saved)
        for count in self._counts:
            count.fill_(step)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Moves the parameters by their gradients, which it forgets."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None, "every parameter takes part in the loss"
            gradients.append(parameter.grad)
            parameter.grad = None
        torch._foreach_add_(self._counts, 1)
        torch._fused_adam_(
            self._parameters,
            gradients,
            self.means,
            self.squares,
            [],
            self._counts,
            lr=rate,
            beta1=_DECAY_OF_MEANS,
            beta2=_DECAY_OF_SQUARES,
            weight_decay=self._weight_decay,
            eps=_LEAST,
            amsgrad=False,
            maximize=False,
        )


_REPORT_EVERY = 10  # steps between two looks at the loss
_STATE = ("parameter", "last_good", "mean", "square")  # of each parameter in a checkpoint

Objective = Callable[[int], tuple[Tensor, Tensor]]
"""From the number of a step to its loss and the mean squared distance that is shown beside it, both scalars."""


class Outcome(NamedTuple):
    """How the optimisation ended: `diverged_at` is the step whose loss was no longer finite."""

    loss: float
    distance: float
    diverged_at: int | None


def cosine(step: float, steps: float) -> float:
    """Share of the peak learning rate at `step`: 1 at the start, 0 at the end."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def warm_up(step: int, length: float) -> float:
    """Rises from 0 to 1 over the first `length` steps; always 1 when there are none."""
    return 1.0 if length <= 0 else min(1.0, step / length)


def minimise(
    parameters: Sequence[Tensor],
    objective: Objective,
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    run: str,
    checkpoint: Checkpoint | None,
    label: str,
) -> Outcome:
    """Minimises `objective` + `weight_decay` / 2 times the squared norm over `parameters`, in place.

    A step's batch, learning rate and temperature follow from its number alone, so the state is the
    parameters, Adam's two moments of each and the step. When the loss stops being finite, the parameters
    go back to where they were last seen to be, which is part of the state too.
    """
    adam = Adam(parameters, weight_decay)
    watch = _Watch(parameters)
    first = _resume(parameters, watch.last_good, adam, checkpoint, run)
    with progress_bar(steps, label, initial=first) as progress:
        for step in range(first, steps):
            last = step == steps - 1
            loss, distance = objective(step)
            if step % _REPORT_EVERY == 0 or last:
                watch.look(step, loss, distance)
                if not watch.settle(leaving=0 if last else watch.lag):
                    return watch.broken_off()
                if math.isfinite(watch.loss):  # of a GPU nothing has been seen at the first look
                    progress.set_postfix(loss=f"{watch.loss:.4g}", d2=f"{watch.distance:.3g}", refresh=False)
            loss.backward()  # type: ignore[no-untyped-call]
            del loss, distance  # and with them the batch, before the next one comes
            adam.step(learning_rate * cosine(step, steps))
            progress.update()
            # the last step says how it all ended: it is never skipped
            if checkpoint is not None and not last and checkpoint.is_due():
                if not watch.settle():
                    return watch.broken_off()
                checkpoint.save_if_due(run, step + 1, _state(parameters, watch.last_good, adam))
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        return watch.broken_off(at=steps)
    return Outcome(watch.loss, watch.distance, None)


class _Look(NamedTuple):
    """What was seen at a step: its loss and distance, and the parameters they belong to."""

    step: int
    numbers: Tensor
    arrived: torch.cuda.Event | None
    parameters: list[Tensor]


class _Watch:
    """Looks at the loss now and then, and remembers the last parameters at which it was finite.

    The numbers of a GPU are read one look later, when they have long arrived, so that it never waits for a look; what
    comes of it is the same.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._looks: deque[_Look] = deque()
        self._seen_at = 0
        self.lag = 1 if parameters[0].is_cuda else 0
        self.last_good = [parameter.detach().clone() for parameter in parameters]
        self.loss = self.distance = math.nan

    def look(self, step: int, loss: Tensor, distance: Tensor) -> None:
        """Asks for the numbers of a step, without waiting for them."""
        numbers, arrived = torch.stack([loss.detach(), distance.detach()]), None
        if numbers.is_cuda:
            stream = torch.cuda.current_stream(numbers.device)
            numbers = torch.empty(2, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
            arrived = stream.record_event()
        self._looks.append(
            _Look(step, numbers, arrived, [parameter.detach().clone() for parameter in self._parameters])
        )

    def settle(self, leaving: int = 0) -> bool:
        """Judges all looks but the `leaving` latest: whether the loss was finite in each of them."""
        while len(self._looks) > leaving:
            look = self._looks.popleft()
            if look.arrived is not None:
                look.arrived.synchronize()
            self.loss, self.distance = look.numbers.tolist()
            self._seen_at = look.step
            if not math.isfinite(self.loss):
                return False
            self.last_good = look.parameters
        return True

    def broken_off(self, at: int | None = None) -> Outcome:
        """The end of a fit that diverged, by default where the last look found it: back to the last good parameters."""
        for parameter, good in zip(self._parameters, self.last_good, strict=True):
            parameter.data.copy_(good)
        return Outcome(self.loss, self.distance, self._seen_at if at is None else at)


def _state(parameters: Sequence[Tensor], last_good: Sequence[Tensor], adam: Adam) -> dict[str, Tensor]:
    state = {}
    for number, tensors in enumerate(zip(parameters, last_good, adam.means, adam.squares, strict=True)):
        for name, tensor in zip(_STATE, tensors, strict=True):
            state[f"{number}.{name}"] = tensor.detach()
    return state


def _resume(
    parameters: Sequence[Tensor], last_good: Sequence[Tensor], adam: Adam, checkpoint: Checkpoint | None, run: str
) -> int:
    saved = checkpoint.load(run) if checkpoint is not None else None
    if saved is None:
        return 0
    step, tensors = saved
    found = {name: [tensors[f"{number}.{name}"] for number in range(len(parameters))] for name in _STATE}
    for parameter, value in zip([*parameters, *last_good], [*found["parameter"], *found["last_good"]], strict=True):
        parameter.data.copy_(value)
    adam.resume(step, found["mean"], found["square"])
    return step
