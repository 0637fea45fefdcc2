"""The training loop of both backbones: AdamW, warm-up and cosine, clipping, bfloat16 on a GPU, checkpoints.

It is not transformers' `Trainer`, which needs accelerate, an additional dependency.
"""

import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from apood.fitting.optimise import Checkpoint, cosine
from apood.support.checks import check_integer, check_number
from apood.support.errors import InputError
from apood.support.files import write_json
from apood.support.progress import progress_bar
from apood.support.version import __version__
from apood.tokens.loader import prefetch

__all__ = ["Batch", "History", "Point", "Schedule", "seed_weights", "train", "write_report"]

_REPORT_EVERY = 20  # steps between two reads of the loss; each read makes a GPU wait
_AHEAD = 4  # batches made in advance
_SETTLED = 0.3  # share of the training after the warm-up by which a model must use its inputs
_LEAST_GAP = 0.01  # relative increase of the loss with exchanged inputs that shows this
_CURVES = ("losses", "validation", "exchanged")


class Batch(NamedTuple):
    """The tensors of one step, on the CPU, and the number of tokens in them, for the speed that is shown."""

    tensors: dict[str, Tensor]
    tokens: int


class Point(NamedTuple):
    """A loss at the end of a step: the mean since the point before, or a validation loss."""

    step: int
    loss: float


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a model learns.

    Progress p is the larger of two shares: the step's share of `steps`, and the share of `minutes` that has passed.
    The learning rate rises linearly from 0 while p < `warm_up`, then follows half a cosine from its peak to 0 at p = 1.
    So a training that `minutes` ends has gone through the whole schedule, but it cannot be reproduced bit by bit.

    Attributes:
        steps: largest number of batches.
        learning_rate: its peak.
        warm_up: share of the training in which the rate rises.
        weight_decay: of AdamW, for matrices only.
        clip: largest norm of the gradients; larger ones are scaled down.
        minutes: longest duration, over all resumed parts.
        seed: determines, with the number of the step, dropout and everything else that a step draws.
        validate_every: steps between two validations.
    """

    steps: int
    learning_rate: float
    warm_up: float = 0.04
    weight_decay: float = 0.01
    clip: float = 1.0
    minutes: float | None = None
    seed: int = 0
    validate_every: int = 1000

    def __post_init__(self) -> None:
        check_integer("The number of steps", self.steps, 1)
        check_integer("The seed", self.seed, 0)
        check_integer("The number of steps between two validations", self.validate_every, 1)
        check_number("The learning rate", self.learning_rate, above=0)
        check_number("The warm-up, a share of the training,", self.warm_up, least=0, below=1)
        check_number("The weight decay", self.weight_decay, least=0)
        check_number("The norm to clip gradients at", self.clip, above=0)
        if self.minutes is not None:
            check_number("The number of minutes", self.minutes, above=0)

    def progress(self, step: int, seconds: float) -> float:
        """Return the share of the training that is done in the middle of `step` (from 0), `seconds` after the start."""
        spent = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max((step + 0.5) / self.steps, spent))

    def rate(self, progress: float) -> float:
        """Return the learning rate at a progress between 0 and 1."""
        if progress < self.warm_up:
            return self.learning_rate * progress / self.warm_up
        return self.learning_rate * cosine(progress - self.warm_up, 1 - self.warm_up)


@dataclass
class History:
    """A training so far, over all resumed parts.

    Attributes:
        steps: number of steps.
        seconds: duration.
        tokens: number of tokens that were learned from.
        losses: mean training losses.
        validation: validation losses.
        exchanged: validation losses with exchanged inputs.
    """

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    losses: list[Point] = field(default_factory=list)
    validation: list[Point] = field(default_factory=list)
    exchanged: list[Point] = field(default_factory=list)

    def summarize(self) -> dict[str, Any]:
        """Return the facts that a report lists."""
        return {"steps": self.steps, "minutes": self.seconds / 60, "loss": self.losses[-1].loss}


@contextmanager
def seed_weights(seed: int) -> Iterator[None]:
    """Seed the draws on the CPU inside the block. Afterwards all generators are as they were before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))  # not torch.manual_seed, which seeds GPUs, too
        yield


def train(
    model: nn.Module,
    make_batch: Callable[[int], Batch],
    compute_loss: Callable[[Mapping[str, Tensor]], Tensor],
    schedule: Schedule,
    *,
    run: str,
    checkpoint: Checkpoint,
    label: str,
    validate: Callable[[], float] | None = None,
    validate_exchanged: Callable[[], float] | None = None,
) -> History:
    """Train the parameters of `model` that require a gradient, in place, on their device.

    A step's batch, learning rate and dropout follow from its number alone (except with `Schedule.minutes`), so the
    state is the parameters, AdamW's moments and the step. It is kept in `checkpoint`. If that already has a state of
    the same `run` (see `run_digest`), the training continues from there.

    Args:
        model: left in evaluation mode.
        make_batch: returns the batch of a step. It is called in another thread, some steps ahead, in order.
        compute_loss: returns the scalar loss of a batch whose tensors are on the model's device.
        schedule: how long and how fast.
        run: digest of everything that determines the result.
        checkpoint: where the state is kept; the caller deletes it.
        label: name of the progress bar.
        validate: returns a validation loss. It is written to standard error every `schedule.validate_every` steps,
            even if that is not a terminal, since a training may take hours. It may leave the model in evaluation mode.
        validate_exchanged: returns the validation loss with the inputs exchanged among the examples. If it is hardly
            larger, well after the warm-up, the model ignores its inputs: the training stops with an error, and its
            state stays in `checkpoint`.
    """
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = _make_optimizer(list(trained.values()), schedule)
    summed = torch.zeros((), device=device)  # of the losses since the last report
    history = _resume(checkpoint.load(run), trained, optimizer, summed)
    began = time.monotonic() - history.seconds

    def save(place: Checkpoint) -> None:
        if place.is_due():
            place.save_if_due(run, history.steps, _collect_state(trained, optimizer, summed, history))

    with (
        torch.random.fork_rng(devices=[device] if on_gpu else []),
        _make_bar(schedule, history, label) as bar,
        closing(_load_batches(make_batch, range(history.steps, schedule.steps), device)) as batches,
    ):
        model.train()
        for batch in batches:
            share = schedule.progress(history.steps, history.seconds)
            if share == 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(share)
            torch.manual_seed((int(schedule.seed) * 1_000_003 + history.steps) % 2**63)
            with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
                loss = compute_loss(batch.tensors)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(trained.values(), schedule.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            summed += loss.detach()
            history.steps += 1
            history.tokens += batch.tokens
            if history.steps % _REPORT_EVERY == 0:
                _report_loss(history, summed, _REPORT_EVERY)
            if validate is not None and history.steps % schedule.validate_every == 0:
                history.validation.append(Point(history.steps, validate()))
                if validate_exchanged is not None:
                    history.exchanged.append(Point(history.steps, validate_exchanged()))
                model.train()
            history.seconds = time.monotonic() - began
            _show(bar, schedule, history)
            save(checkpoint)
            if _ignores_inputs(schedule, history):
                break
        save(Checkpoint(checkpoint.path, every_seconds=0))  # whatever the caller does next, the work is not lost
    if rest := history.steps % _REPORT_EVERY:
        _report_loss(history, summed, rest)
    model.eval()
    if _ignores_inputs(schedule, history):
        raise InputError(
            f"The training failed: at step {history.steps} the model ignores its inputs. The validation loss with the "
            f"inputs of other examples, {history.exchanged[-1].loss:.4f}, is hardly larger than with its own, "
            f"{history.validation[-1].loss:.4f}; choose a lower learning rate or a longer warm-up."
        )
    return history


def write_report(folder: Path, report: Mapping[str, Any], recipe: Any, device: torch.device, *packages: str) -> None:
    """Write training.json: the report, the recipe (a dataclass), the versions of the packages and the device."""
    details = {
        "recipe": asdict(recipe),
        "versions": {"apood": __version__} | {name: version(name) for name in ("torch", "transformers", *packages)},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    write_json(folder / "training.json", {**report, **details})


def _make_optimizer(parameters: list[nn.Parameter], schedule: Schedule) -> torch.optim.AdamW:
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=schedule.learning_rate, betas=(0.9, 0.98), fused=True
    )


def _report_loss(history: History, summed: Tensor, count: int) -> None:
    loss = float(summed) / count
    if not math.isfinite(loss):
        raise InputError(
            f"The training diverged: its loss was no longer finite at step {history.steps}; "
            "choose a lower learning rate or a longer warm-up."
        )
    history.losses.append(Point(history.steps, loss))
    summed.zero_()


def _ignores_inputs(schedule: Schedule, history: History) -> bool:
    """Return whether the validation at this step shows that the model ignores its inputs.

    An earlier validation does not count, so that a resumed training goes on to the next one.
    """
    if not history.exchanged or history.exchanged[-1].step != history.steps:
        return False
    settled = schedule.warm_up + _SETTLED * (1 - schedule.warm_up)
    hardly_larger = history.exchanged[-1].loss < (1 + _LEAST_GAP) * history.validation[-1].loss
    return hardly_larger and schedule.progress(history.steps, history.seconds) > settled


def _load_batches(make_batch: Callable[[int], Batch], steps: range, device: torch.device) -> Generator[Batch]:
    """Yield the batches of `steps` on `device`. The next ones are made in the meantime."""

    def make_pinned(step: int) -> Batch:
        batch = make_batch(step)
        if device.type == "cuda":
            return batch._replace(tensors={name: tensor.pin_memory() for name, tensor in batch.tensors.items()})
        return batch

    for batch in prefetch(map(make_pinned, steps), _AHEAD):
        yield batch._replace(
            tensors={name: tensor.to(device, non_blocking=True) for name, tensor in batch.tensors.items()}
        )


def _make_bar(schedule: Schedule, history: History, label: str) -> "tqdm[Any]":
    """Return a bar over the steps, or over the seconds if the time is limited."""
    if schedule.minutes is None:
        return progress_bar(schedule.steps, label, initial=history.steps)
    return progress_bar(math.ceil(60 * schedule.minutes), label, unit="s", initial=int(history.seconds))


def _show(bar: "tqdm[Any]", schedule: Schedule, history: History) -> None:
    """Update the bar, and write a line if there was a validation at this step."""
    loss = f", loss {history.losses[-1].loss:.4g}" if history.losses else ""
    facts = f"step {history.steps:,}{loss}, {history.tokens / history.seconds:,.0f} tokens/s"
    if history.steps % _REPORT_EVERY == 0:
        bar.set_postfix_str(facts, refresh=False)
    bar.update((history.steps if schedule.minutes is None else int(history.seconds)) - bar.n)
    if history.validation and history.validation[-1].step == history.steps:
        other = f" ({history.exchanged[-1].loss:.4g} with exchanged inputs)" if history.exchanged else ""
        line = f"{facts}, validation loss {history.validation[-1].loss:.4g}{other}, {history.seconds / 60:.1f} minutes"
        bar.write(line, file=sys.stderr)


def _collect_state(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.AdamW, summed: Tensor, history: History
) -> dict[str, Tensor]:
    state = {f"parameter.{name}": parameter.detach() for name, parameter in trained.items()}
    for index, moments in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
    state |= {name: torch.tensor(getattr(history, name), dtype=torch.float64) for name in _CURVES}
    return state | {"summed": summed, "counts": torch.tensor([history.seconds, history.tokens], dtype=torch.float64)}


def _resume(
    saved: tuple[int, dict[str, Tensor]] | None,
    trained: Mapping[str, nn.Parameter],
    optimizer: torch.optim.AdamW,
    summed: Tensor,
) -> History:
    """Put the saved state back, and return the history that belongs to it."""
    if saved is None:
        return History()
    step, state = saved
    for name, parameter in trained.items():
        parameter.data.copy_(state[f"parameter.{name}"])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    summed.copy_(state["summed"])
    seconds, tokens = state["counts"].tolist()
    curves = ([Point(int(at), loss) for at, loss in state[name].tolist()] for name in _CURVES)
    return History(step, seconds, int(tokens), *curves)
