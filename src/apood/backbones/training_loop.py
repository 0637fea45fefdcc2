"""The training loop of a model: AdamW, warm-up and cosine, clipping, bfloat16 on a GPU, progress, checkpoints."""

import math
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apood.fitting.checkpoint import Checkpoint
from apood.fitting.optimise import cosine
from apood.support.checks import check_integer, check_number
from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.loader import prefetch

__all__ = ["Batch", "Outcome", "Plan", "Point", "train"]

_REPORT_EVERY = 20  # steps between two looks at the loss, each of which makes a GPU wait
_AHEAD = 4  # batches made before they are asked for
_SETTLED = 0.3  # share of what follows the warm-up after which a model must have begun to learn from its inputs
_LEAST_GAP = 0.01  # how much larger the loss with exchanged inputs must be then


class Batch(NamedTuple):
    """The tensors of one step, on the CPU, and how many tokens they hold (for the tokens a second that are shown)."""

    tensors: dict[str, Tensor]
    tokens: int


class Point(NamedTuple):
    """The training so far at the end of a step: the mean loss since the point before it, or what `watch` saw."""

    step: int
    loss: float


@dataclass(frozen=True)
class Plan:
    """How long and how fast a model learns.

    Progress p is the step's share of `steps`, or that of the time spent in `minutes` where it is larger. The learning
    rate rises linearly from 0 while p < `warm_up`, and follows half a cosine from its peak down to 0 at p = 1. So a
    training that `minutes` ends has gone through the whole schedule, but is not reproducible to the bit.

    Attributes:
        steps: how many batches are learned from, at most.
        learning_rate: its peak.
        warm_up: share of the training in which the rate rises.
        weight_decay: of AdamW, for matrices only.
        clip: gradients whose norm is larger are scaled down to it.
        minutes: how long the training may take, over all its resumed parts.
        seed: dropout, and whatever else is drawn during a step, follows from it and from the step's number.
        watch_every: steps between two calls of `watch`.
    """

    steps: int
    learning_rate: float
    warm_up: float = 0.04
    weight_decay: float = 0.01
    clip: float = 1.0
    minutes: float | None = None
    seed: int = 0
    watch_every: int = 1000

    def __post_init__(self) -> None:
        check_integer("The number of steps", self.steps, 1)
        check_integer("The seed", self.seed, 0)
        check_integer("The number of steps between two validations", self.watch_every, 1)
        check_number("The learning rate", self.learning_rate, above=0)
        check_number("The warm-up, a share of the training,", self.warm_up, least=0, below=1)
        check_number("The weight decay", self.weight_decay, least=0)
        check_number("The norm to clip gradients at", self.clip, above=0)
        if self.minutes is not None:
            check_number("The number of minutes", self.minutes, above=0)

    def progress(self, step: int, seconds: float) -> float:
        """The share of the training that is behind us in the middle of `step`, of 0, 1, ..., after so many seconds."""
        spent = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max((step + 0.5) / self.steps, spent))

    def rate(self, progress: float) -> float:
        """The learning rate at a progress between 0 and 1."""
        if progress < self.warm_up:
            return self.learning_rate * progress / self.warm_up
        return self.learning_rate * cosine(progress - self.warm_up, 1 - self.warm_up)


@dataclass
class Outcome:
    """What was done, over all resumed parts: steps, seconds, tokens, and the losses on the way.

    `watched` and `exchanged` are what the functions of these names of `train` returned.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    losses: list[Point] = field(default_factory=list)
    watched: list[Point] = field(default_factory=list)
    exchanged: list[Point] = field(default_factory=list)


def train(
    model: nn.Module,
    batch_of: Callable[[int], Batch],
    loss_of: Callable[[Mapping[str, Tensor]], Tensor],
    plan: Plan,
    *,
    run: str,
    checkpoint: Checkpoint,
    label: str,
    watch: Callable[[], float] | None = None,
    exchanged: Callable[[], float] | None = None,
) -> Outcome:
    """Trains the parameters of `model` that require a gradient, in place, on the device they are on.

    A step's batch, learning rate and dropout follow from its number alone (see `Plan.minutes` for the exception), so
    the state is the parameters, AdamW's two moments of each and the step. It is kept in `checkpoint`, and a training
    whose `run` (see `run_digest`) is there already goes on behind it.

    Args:
        model: left in evaluation mode.
        batch_of: makes the batch of a step; called in another thread, some steps ahead, in order.
        loss_of: the scalar loss of a batch whose tensors are on the model's device.
        plan: how long and how fast.
        run: what the state belongs to.
        checkpoint: where the state is kept; deleting it is the caller's job.
        label: what the progress bar is called.
        watch: a validation loss, kept every `plan.watch_every` steps and shown, on a line of its own, also where no
            bar is: a training may take hours. It may leave the model in evaluation mode.
        exchanged: the same loss with the inputs exchanged among the examples. A model that this costs next to nothing,
            well behind the warm-up, ignores its inputs: the training stops, with its state in `checkpoint`.
    """
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = _optimizer(list(trained.values()), plan)
    done, summed = _resume(trained, optimizer, checkpoint, run, device)
    curves = _curves(done)
    began = time.monotonic() - done.seconds
    with (
        torch.random.fork_rng(devices=[device] if on_gpu else []),
        _Progress(plan, done, label) as progress,
        closing(_batches(batch_of, range(done.steps, plan.steps), device)) as batches,
    ):
        model.train()
        for batch in batches:
            share = plan.progress(done.steps, done.seconds)
            if share == 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(share)
            torch.manual_seed(plan.seed * 1_000_003 + done.steps)
            with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
                loss = loss_of(batch.tensors)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(trained.values(), plan.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            summed += loss.detach()
            done.steps += 1
            done.tokens += batch.tokens
            if done.steps % _REPORT_EVERY == 0:
                done.losses.append(Point(done.steps, _finite(float(summed) / _REPORT_EVERY, done.steps)))
                summed.zero_()
                curves = _curves(done)
            if watch is not None and done.steps % plan.watch_every == 0:
                done.watched.append(Point(done.steps, watch()))
                if exchanged is not None:
                    done.exchanged.append(Point(done.steps, exchanged()))
                curves = _curves(done)
                model.train()
            done.seconds = time.monotonic() - began
            progress.show(done)
            checkpoint.save_if_due(run, done.steps, _state(trained, optimizer, done, summed) | curves)
            if _ignores_its_inputs(plan, done):
                break
        # whatever happens to what the caller makes of the model, the work is not lost
        last = Checkpoint(checkpoint.path, every_seconds=0)
        last.save_if_due(run, done.steps, _state(trained, optimizer, done, summed) | curves)
    if rest := done.steps % _REPORT_EVERY:
        done.losses.append(Point(done.steps, _finite(float(summed) / rest, done.steps)))
    model.eval()
    if _ignores_its_inputs(plan, done):
        raise InputError(
            f"The training failed: at step {done.steps} the model ignores its inputs, since the validation loss with "
            f"those of other examples, {done.exchanged[-1].loss:.4f}, is hardly larger than with its own, "
            f"{done.watched[-1].loss:.4f}; choose a lower learning rate or a longer warm-up."
        )
    return done


def _optimizer(parameters: list[nn.Parameter], plan: Plan) -> torch.optim.AdamW:
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=plan.learning_rate, betas=(0.9, 0.98), fused=True
    )


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise InputError(
            f"The training diverged: its loss was no longer finite at step {step}; "
            "choose a lower learning rate or a longer warm-up."
        )
    return loss


def _ignores_its_inputs(plan: Plan, done: Outcome) -> bool:
    """Known at the steps that are watched; a resumed training goes on to the next of them."""
    if not done.exchanged or done.exchanged[-1].step != done.steps:
        return False
    settled = plan.progress(done.steps, done.seconds) > plan.warm_up + _SETTLED * (1 - plan.warm_up)
    return settled and done.exchanged[-1].loss < (1 + _LEAST_GAP) * done.watched[-1].loss


def _batches(batch_of: Callable[[int], Batch], steps: range, device: torch.device) -> Generator[Batch]:
    """The batches of `steps` on `device`, the next ones being made while one is used."""

    def made(step: int) -> Batch:
        batch = batch_of(step)
        if device.type == "cuda":
            return batch._replace(tensors={name: tensor.pin_memory() for name, tensor in batch.tensors.items()})
        return batch

    for batch in prefetch(map(made, steps), _AHEAD):
        yield batch._replace(
            tensors={name: tensor.to(device, non_blocking=True) for name, tensor in batch.tensors.items()}
        )


class _Progress:
    """A bar over the steps, or over the time where that is what ends the training, and a line for every validation."""

    def __init__(self, plan: Plan, done: Outcome, label: str) -> None:
        self._timed = plan.minutes is not None
        total = math.ceil(60 * plan.minutes) if plan.minutes is not None else plan.steps
        self._bar = progress_bar(total, label, unit="s" if self._timed else "it", initial=self._position(done))
        self._began = time.monotonic()
        self._tokens = done.tokens

    def _position(self, done: Outcome) -> int:
        return int(done.seconds) if self._timed else done.steps

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def show(self, done: Outcome) -> None:
        if done.losses and done.steps % _REPORT_EVERY == 0:
            self._bar.set_postfix_str(self._facts(done), refresh=False)
        self._bar.update(self._position(done) - self._bar.n)
        if done.watched and done.watched[-1].step == done.steps:
            other = f" ({done.exchanged[-1].loss:.4g} with exchanged inputs)" if done.exchanged else ""
            line = f"{self._facts(done)}, validation loss {done.watched[-1].loss:.4g}{other}"
            self._bar.write(f"{line}, {done.seconds / 60:.1f} minutes", file=sys.stderr)

    def _facts(self, done: Outcome) -> str:
        loss = f", loss {done.losses[-1].loss:.4g}" if done.losses else ""
        speed = (done.tokens - self._tokens) / (time.monotonic() - self._began)
        return f"step {done.steps:,}{loss}, {speed:,.0f} tokens/s"


def _state(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.AdamW, done: Outcome, summed: Tensor
) -> dict[str, Tensor]:
    state = {f"parameter.{name}": parameter.detach() for name, parameter in trained.items()}
    for name, parameter in trained.items():
        if parameter in optimizer.state:  # one that no loss depends on has no moments
            moments = optimizer.state[parameter]
            state[f"mean.{name}"], state[f"square.{name}"] = moments["exp_avg"], moments["exp_avg_sq"]
    return state | {
        "done": torch.tensor([done.seconds, done.tokens], dtype=torch.float64),
        "summed": summed,
    }


def _curves(done: Outcome) -> dict[str, Tensor]:
    """Apart from the rest of the state: they become long, and change seldom."""
    return {
        "losses": torch.tensor(done.losses, dtype=torch.float64),
        "watched": torch.tensor(done.watched, dtype=torch.float64),
        "exchanged": torch.tensor(done.exchanged, dtype=torch.float64),
    }


def _resume(
    trained: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    checkpoint: Checkpoint,
    run: str,
    device: torch.device,
) -> tuple[Outcome, Tensor]:
    """What was done before, and the sum of the losses since the last report."""
    saved = checkpoint.load(run)
    if saved is None:
        return Outcome(), torch.zeros((), device=device)
    step, tensors = saved
    for name, parameter in trained.items():
        parameter.data.copy_(tensors[f"parameter.{name}"])
        if f"mean.{name}" in tensors:
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=device),
                "exp_avg": tensors[f"mean.{name}"].to(device),
                "exp_avg_sq": tensors[f"square.{name}"].to(device),
            }
    seconds, tokens = tensors["done"].tolist()
    curves = (
        [Point(int(at), loss) for at, loss in tensors[name].tolist()] for name in ("losses", "watched", "exchanged")
    )
    return Outcome(step, seconds, int(tokens), *curves), tensors["summed"].to(device)
