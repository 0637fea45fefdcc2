"""The optimisation loop of the trained detectors: Adam, cosine schedule, progress, and checkpoints on disk."""

import glob
import hashlib
import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.fitting.curve import CurvePoint, TrainingCurve
from apood.support.errors import ArtefactError
from apood.support.files import atomic_file, is_temporary, source_digest
from apood.support.progress import progress_bar
from apood.support.sealed import pack_sealed, read_sealed
from apood.support.threads import ThreadRace
from apood.support.version import __version__
from apood.tokens.digests import sample_digest
from apood.tokens.identity import drop_location
from apood.tokens.source import TokenSource

__all__ = ["Adam", "Checkpoint", "Objective", "Outcome", "cosine", "minimise", "run_digest", "warm_up"]


def run_digest(settings: Mapping[str, Any], *sources: TokenSource | None) -> str:
    """Return a digest of a fit: its code, settings and data (encoder, lengths and 16 evenly spaced sequences)."""
    digest = hashlib.sha256(_canonical([__version__, source_digest(), settings]))
    for source in sources:
        if source is not None:
            digest.update(_canonical(source.encoder and drop_location(source.encoder)))
            digest.update(sample_digest(source).encode())
    return digest.hexdigest()


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, default=str).encode()


@dataclass
class Checkpoint:
    """A file that holds the last state of a fit: named tensors and their step. It is never half-written.

    Pass it to `fit`. If the process is killed, the same call continues from the file. The result of the fit does not
    depend on the checkpoint.

    Attributes:
        path: the file.
        every_seconds: how often the state is saved, and so how much work a kill may cost.

    Examples:
        >>> from pathlib import Path
        >>> import torch
        >>> from apood import Checkpoint
        >>> checkpoint = Checkpoint(Path("fit.checkpoint"), every_seconds=0)
        >>> checkpoint.save_if_due("my run", 3, {"weights": torch.ones(2)})
        >>> checkpoint.load("my run")
        (3, {'weights': tensor([1., 1.])})
        >>> checkpoint.delete()
        >>> checkpoint.exists()
        False
    """

    path: Path
    every_seconds: float = 5.0
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def load(self, run: str) -> tuple[int, dict[str, Tensor]] | None:
        """Return the step and the tensors of the last state of this `run` (see `run_digest`), None if there is none."""
        for leftover in self.path.parent.glob(f"{glob.escape(self.path.name)}.*"):
            if is_temporary(leftover):  # of a killed process
                leftover.unlink()
        if not self.path.exists():
            return None
        try:
            facts, tensors = read_sealed(self.path)
        except (OSError, ValueError) as error:
            raise ArtefactError(
                f"The checkpoint {self.path} cannot be read ({error}); delete it to start over."
            ) from error
        if facts.get("run") != run:
            raise ArtefactError(
                f"The checkpoint {self.path} belongs to a fit with other settings, data or version of apood; "
                "delete it or choose another place to start over."
            )
        return int(facts["step"]), tensors

    def is_due(self) -> bool:
        """Return whether the last state is older than `every_seconds`."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def save_if_due(self, run: str, step: int, tensors: dict[str, Tensor]) -> None:
        """Replace the file if it is older than `every_seconds`."""
        if not self.is_due():
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as temporary:
                temporary.write_bytes(pack_sealed(tensors, {"run": run, "step": str(step)}))
        except OSError as error:
            raise ArtefactError(
                f"The fit stopped at step {step} because its state could not be kept in {self.path}: "
                f"{error.strerror or error}."
            ) from error
        self._saved_at = time.monotonic()

    def part(self, number: int) -> "Checkpoint":
        """Return the checkpoint of a fit that is part of this one, in a file beside it."""
        return Checkpoint(self.path.with_name(f"{self.path.name}.part-{number}"), self.every_seconds)

    def exists(self) -> bool:
        """Return whether there is a file of this fit or of its parts."""
        return bool(self.list_files())

    def delete(self) -> None:
        """Delete the files of this fit and of its parts, once the fit is complete and saved."""
        for file in self.list_files():
            file.unlink(missing_ok=True)

    def list_files(self) -> list[Path]:
        """Return the files with a name that `part` makes; others that begin alike are not touched."""
        own = re.compile(re.escape(self.path.name) + r"(\.part-\d+)*")
        folder = self.path.parent
        return sorted(path for path in folder.iterdir() if own.fullmatch(path.name)) if folder.is_dir() else []


_LOOK_EVERY = 10  # steps
_STATE = ("parameter", "last_good", "mean", "square")  # the tensors of each parameter in a checkpoint
_CURVE = "curve"  # the points of the curve there, a row each

Objective = Callable[[int], tuple[Tensor, Tensor]]
"""A function from the number of a step to two scalars: its loss, and the mean squared distance to show beside it."""


class Outcome(NamedTuple):
    """The end of an optimisation.

    Attributes:
        loss: the last loss that was looked at.
        distance: the mean squared distance at the same step.
        diverged_at: the step at which the loss was no longer finite, None if it always was.
        curve: the losses and distances that were looked at, thinned out.
    """

    loss: float
    distance: float
    diverged_at: int | None
    curve: TrainingCurve = TrainingCurve()


def cosine(step: float, steps: float) -> float:
    """Return the share of the peak learning rate at `step`: 1 at the start, 0 at the end."""
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def warm_up(step: int, length: float) -> float:
    """Return a factor that rises from 0 to 1 over the first `length` steps; 1 if `length` is 0."""
    return 1.0 if length <= 0 else min(1.0, step / length)


class Adam:
    """Adam (Kingma and Ba 2015, arXiv 1412.6980) with `weight_decay` / 2 times the squared norm of the parameters.

    A step is one fused kernel and never makes a GPU wait. It is the kernel of `torch.optim.Adam(fused=True)`, called
    without that class, because the first optimiser of torch in a process imports its compiler, which takes longer than
    many fits. The kernel's signature is the same in every supported torch; a test compares both.

    Attributes:
        means: the running mean of the gradient of each parameter.
        squares: the running mean of its square.
    """

    def __init__(self, parameters: Sequence[Tensor], weight_decay: float) -> None:
        self._parameters, self._weight_decay = list(parameters), weight_decay
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._counts = [torch.zeros((), device=parameter.device) for parameter in parameters]

    def set_step(self, step: int) -> None:
        """Continue after `step` steps; the moments are set by whoever kept them."""
        for count in self._counts:
            count.fill_(step)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move the parameters by their gradients, and clear these."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None, "every parameter takes part in the loss"
            gradients.append(parameter.grad)
            parameter.grad = None
        torch._foreach_add_(self._counts, 1)
        torch._fused_adam_(
            self._parameters, gradients, self.means, self.squares, [], self._counts, lr=rate, beta1=0.9, beta2=0.999,
            weight_decay=self._weight_decay, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


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
    """Minimise `objective` + `weight_decay` / 2 times the squared norm over `parameters`, in place.

    The batch, the learning rate and the temperature of a step follow from its number, so the state in a checkpoint is
    the step, the parameters, their last values with a finite loss, Adam's two moments, and the curve so far. If the
    loss stops being finite, the parameters get those last values back.

    Args:
        parameters: the tensors to change.
        objective: the loss of a step.
        steps: the number of steps.
        learning_rate: the learning rate at the start; it falls to 0 along a cosine.
        weight_decay: the weight of the squared norm.
        run: the digest of the fit (see `run_digest`), without which its checkpoint is not read.
        checkpoint: where to keep the state, if at all.
        label: the label of the progress bar.
    """
    state = _State(parameters, Adam(parameters, weight_decay))
    saved = checkpoint.load(run) if checkpoint is not None else None
    first = 0 if saved is None else state.restore(*saved)
    race = ThreadRace(on_cpu=not parameters[0].is_cuda)
    with progress_bar(steps, label, initial=first) as progress:
        for step in range(first, steps):
            is_last = step == steps - 1
            with race.piece():
                loss, distance = objective(step)
                if step % _LOOK_EVERY == 0 or is_last:
                    state.look(step, loss, distance)
                    if not state.settle(leaving=0 if is_last else state.lag):
                        return state.end_diverged()
                    if math.isfinite(state.loss):  # on a GPU it is not known yet at the first look
                        progress.set_postfix(loss=f"{state.loss:.4g}", d2=f"{state.distance:.3g}", refresh=False)
                loss.backward()  # type: ignore[no-untyped-call]
                del loss, distance  # and the batch with them, before the next one is read
                state.adam.step(learning_rate * cosine(step, steps))
            progress.update()
            # The last step is never saved: it has to run again to tell how the fit ended.
            if checkpoint is not None and not is_last and checkpoint.is_due():
                if not state.settle():
                    return state.end_diverged()
                checkpoint.save_if_due(run, step + 1, state.tensors())
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        return state.end_diverged(at=steps)
    return state.end()


class _Look(NamedTuple):
    """The loss and the distance of a step, and the parameters that they belong to."""

    step: int
    numbers: Tensor
    arrived: torch.cuda.Event | None
    parameters: list[Tensor]


class _State:
    """The state of an optimisation, with the last parameters at which the loss was seen to be finite.

    The loss is looked at every few steps. The numbers of a GPU are read one look later, when they have arrived, so
    that it never waits. The result is the same.

    Attributes:
        adam: the optimiser.
        last_good: the last parameters with a finite loss.
        lag: how many looks are read later.
        loss: the last loss that was read, NaN before the first.
        distance: the distance at the same step.
        points: the steps that were read and had a finite loss.
    """

    def __init__(self, parameters: Sequence[Tensor], adam: Adam) -> None:
        self._parameters, self.adam = parameters, adam
        self._looks: deque[_Look] = deque()
        self._seen_at = 0
        self.last_good = self._copy_parameters()
        self.lag = 1 if parameters[0].is_cuda else 0
        self.loss = self.distance = math.nan
        self.points: list[CurvePoint] = []

    def _copy_parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    def look(self, step: int, loss: Tensor, distance: Tensor) -> None:
        """Ask for the numbers of a step without waiting for them."""
        numbers, arrived = torch.stack([loss.detach(), distance.detach()]), None
        if numbers.is_cuda:
            stream = torch.cuda.current_stream(numbers.device)
            numbers = torch.empty(2, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
            arrived = stream.record_event()
        self._looks.append(_Look(step, numbers, arrived, self._copy_parameters()))

    def settle(self, leaving: int = 0) -> bool:
        """Read all looks but the `leaving` latest; return whether the loss was finite in all of them."""
        while len(self._looks) > leaving:
            look = self._looks.popleft()
            if look.arrived is not None:
                look.arrived.synchronize()
            self.loss, self.distance = look.numbers.tolist()
            self._seen_at = look.step
            if not math.isfinite(self.loss):
                return False
            self.last_good = look.parameters
            self.points.append(CurvePoint(look.step, self.loss, self.distance))
        return True

    def end(self, diverged_at: int | None = None) -> Outcome:
        """Return the outcome."""
        return Outcome(self.loss, self.distance, diverged_at, TrainingCurve.thin_out(self.points))

    def end_diverged(self, at: int | None = None) -> Outcome:
        """Restore the last good parameters and return the outcome; `at` is by default the step of the last look."""
        for parameter, good in zip(self._parameters, self.last_good, strict=True):
            parameter.data.copy_(good)
        return self.end(diverged_at=self._seen_at if at is None else at)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        curve = torch.tensor(self.points, dtype=torch.float64).view(-1, len(CurvePoint._fields))
        return self._state_tensors() | {_CURVE: curve}

    def _state_tensors(self) -> dict[str, Tensor]:
        groups = (self._parameters, self.last_good, self.adam.means, self.adam.squares)
        return {
            f"{number}.{name}": tensor.detach()
            for name, tensors in zip(_STATE, groups, strict=True)
            for number, tensor in enumerate(tensors)
        }

    def restore(self, step: int, tensors: Mapping[str, Tensor]) -> int:
        """Continue after `step` steps that left these tensors, and return `step`."""
        for name, tensor in self._state_tensors().items():
            tensor.copy_(tensors[name])
        self.points = [CurvePoint(int(number), *rest) for number, *rest in tensors[_CURVE].tolist()]
        self.adam.set_step(step)
        return step
