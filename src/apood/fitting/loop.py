"""The optimisation loop: Adam, cosine schedule, progress, checkpoints."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from apood.fitting.checkpoint import Checkpoint
from apood.support.progress import bar

__all__ = ["Objective", "Outcome", "cosine", "minimise", "warm_up"]

_REPORT_EVERY = 10  # steps between two looks at the loss, each of which makes a GPU wait

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
    adam = torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay)
    last_good = [parameter.detach().clone() for parameter in parameters]
    first = _resume(parameters, last_good, adam, checkpoint, run)
    loss_value = distance_value = math.nan
    with bar(steps, label, initial=first) as progress:
        for step in range(first, steps):
            adam.param_groups[0]["lr"] = learning_rate * cosine(step, steps)
            loss, distance = objective(step)
            if step % _REPORT_EVERY == 0 or step == steps - 1:
                loss_value, distance_value = float(loss.detach()), float(distance.detach())
                if not math.isfinite(loss_value):
                    _copy(last_good, parameters)
                    return Outcome(loss_value, distance_value, step)
                _copy(parameters, last_good)
                progress.set_postfix(loss=f"{loss_value:.4g}", d2=f"{distance_value:.3g}", refresh=False)
            adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            progress.update()
            if checkpoint is not None and step + 1 < steps:  # the last step says how it all ended: it is never skipped
                checkpoint.save_if_due(run, step + 1, _state(parameters, last_good, adam))
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        _copy(last_good, parameters)
        return Outcome(loss_value, distance_value, steps)
    return Outcome(loss_value, distance_value, None)


def _copy(origins: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for origin, target in zip(origins, targets, strict=True):
        target.data.copy_(origin.detach())


def _state(parameters: Sequence[Tensor], last_good: Sequence[Tensor], adam: torch.optim.Adam) -> dict[str, Tensor]:
    state = {}
    for number, (parameter, good) in enumerate(zip(parameters, last_good, strict=True)):
        moments = adam.state[parameter]
        state[f"{number}.parameter"], state[f"{number}.last_good"] = parameter.detach(), good
        state[f"{number}.mean"], state[f"{number}.square"] = moments["exp_avg"], moments["exp_avg_sq"]
    return state


def _resume(
    parameters: Sequence[Tensor],
    last_good: Sequence[Tensor],
    adam: torch.optim.Adam,
    checkpoint: Checkpoint | None,
    run: str,
) -> int:
    saved = checkpoint.load(run) if checkpoint is not None else None
    if saved is None:
        return 0
    step, tensors = saved
    for number, (parameter, good) in enumerate(zip(parameters, last_good, strict=True)):
        parameter.data.copy_(tensors[f"{number}.parameter"])
        good.copy_(tensors[f"{number}.last_good"])
        adam.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": tensors[f"{number}.mean"].to(parameter.device),
            "exp_avg_sq": tensors[f"{number}.square"].to(parameter.device),
        }
    return step
