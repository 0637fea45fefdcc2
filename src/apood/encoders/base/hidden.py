"""The states of chosen hidden layers, taken while a model runs."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from apood.encoders.base.layers import LAST, Layers

__all__ = ["Capture", "LayerReader", "StackSearch"]

_SMALLEST = 1e-12  # the length of a state that is not zero


class Capture:
    """What one pass has shown of the chosen layers.

    Args:
        layers: the layers.
    """

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._states: Tensor | None = None  # of a single layer, or the sum over layers
        self._count = 0

    def take(self, output: Any) -> None:
        """Take the states `[sequences, longest, D]` of the next chosen layer, which may be the first of its outputs."""
        states = _get_states(output)
        self._count += 1
        if not self._layers.mixed:
            self._states = states
            return
        if self._states is not None:
            states = states.to(self._states.device)  # a large model may be spread over several devices
        # Lengths and sums of half-precision states need float32. One buffer of it is all that a pass holds.
        wide = torch.promote_types(states.dtype, torch.float32)
        lengths = torch.linalg.vector_norm(states, dim=-1, keepdim=True, dtype=wide).clamp_min_(_SMALLEST)
        if self._states is None:
            self._states = states / lengths
        else:
            self._states.addcdiv_(states, lengths)

    def finish(self) -> Tensor:
        """Return the tokens. The pass must have shown every chosen layer once."""
        assert self._states is not None and self._count == len(self._layers.numbers), "a layer was not shown once"
        return self._states.div_(self._count) if self._layers.mixed else self._states


class LayerReader:
    """Makes tokens from chosen hidden layers of a module, while it runs.

    Hooks on the modules of the layers see the states as they are made, so no layer is kept longer than the model
    needs it. If these modules are unknown, the model returns the states of all layers, which takes more memory.

    Args:
        layers: the layers.
        stack: the modules of all layers in their order; None if they are unknown.
        last_is_top: whether the last of the model's `hidden_states` is its last hidden state.
        last_fits: whether its last hidden state is as long as the states of its layers, so that it can be in a mix.
    """

    def __init__(
        self,
        layers: Layers = LAST,
        stack: Sequence[nn.Module] | None = None,
        *,
        last_is_top: bool = True,
        last_fits: bool = True,
    ) -> None:
        self.layers, self._stack, self._last_is_top, self._last_fits = layers, stack, last_is_top, last_fits

    @property
    def needs_all(self) -> bool:
        """Whether the model must return the states of all layers."""
        return self._stack is None and self.layers.numbers != (-1,)

    def make_other(self) -> "LayerReader":
        """Return the reader of the other view of the same module, for summaries."""
        return LayerReader(
            self.layers.other_view, self._stack, last_is_top=self._last_is_top, last_fits=self._last_fits
        )

    def count_kept(self) -> int:
        """Return about how many tensors of states a pass holds until its end."""
        if self.needs_all:
            return self.layers.depth + 1
        return 3 if self.layers.mixed else 1  # the sum may be twice as wide as the states

    @contextmanager
    def watch(self) -> Iterator[Callable[[Tensor, Any], Tensor]]:
        """Watch one pass of this thread; yield a function of `last_hidden_state` and `hidden_states` to call after it.

        The function returns the tokens `[sequences, longest, D]`. Passes of other threads are not seen.
        """
        capture, owner, hooks = Capture(self.layers), threading.get_ident(), []

        def take(output: Any) -> None:
            if threading.get_ident() == owner:
                capture.take(output)

        try:
            for number in self._list_hooked():
                assert self._stack is not None
                if number == 0:
                    hooks.append(self._stack[0].register_forward_pre_hook(_make_input_hook(take), with_kwargs=True))
                else:
                    hooks.append(self._stack[number - 1].register_forward_hook(lambda _m, _i, output: take(output)))
            yield lambda last, hidden: self._finish(capture, last, hidden)
        finally:
            for hook in hooks:
                hook.remove()

    def _takes_last(self, number: int) -> bool:
        """Return whether the states of a layer are the last hidden state, which has gone through the final norm."""
        is_last = self._last_fits if self.layers.mixed else self._last_is_top
        return number == -1 or (number == self.layers.depth and is_last)

    def _list_hooked(self) -> list[int]:
        if self._stack is None:
            return []
        return [number for number in self.layers.numbers if not self._takes_last(number)]

    def _finish(self, capture: Capture, last: Tensor, hidden: Any) -> Tensor:
        if self.needs_all:
            for number in self.layers.numbers:
                capture.take(last if self._takes_last(number) else hidden[number])
        elif self._takes_last(self.layers.numbers[-1]):
            capture.take(last)
        return capture.finish().to(last.dtype)


def _get_states(output: Any) -> Any:
    """Return the states among the outputs of a layer."""
    return output[0] if isinstance(output, tuple) and output else output


def _make_input_hook(take: Callable[[Any], None]) -> Callable[..., None]:
    def hook(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        take(inputs[0] if inputs else named["hidden_states"])

    return hook


class StackSearch:
    """Finds the modules of the layers of a module from one short pass that returns the states of all layers.

    They are the list of modules whose outputs are the model's own `hidden_states`.

    Args:
        module: the encoder, decoder or causal model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._lists = [found for found in module.modules() if isinstance(found, nn.ModuleList) and len(found)]
        self._seen: dict[nn.Module, list[Tensor]] = {}
        self._first: dict[nn.Module, Tensor] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the pass."""
        hooks = []
        try:
            for stack in self._lists:
                hooks.append(stack[0].register_forward_pre_hook(self._note_input, with_kwargs=True))
                hooks += [layer.register_forward_hook(self._note_output) for layer in stack]
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note_input(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        states = inputs[0] if inputs else named.get("hidden_states")
        if isinstance(states, Tensor):
            self._first[module] = states.clone()

    def _note_output(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        states = _get_states(output)
        if isinstance(states, Tensor):
            self._seen.setdefault(module, []).append(states.clone())  # a later layer might change it in place

    def find(self, layers: Layers, last: Tensor, hidden: Sequence[Tensor]) -> LayerReader:
        """Return the reader of `layers`, from the pass's `last_hidden_state` and `hidden_states`."""
        hidden = [_get_states(states) for states in hidden]  # Pegasus-X also has states of whole texts
        last_is_top = torch.equal(hidden[-1], last)
        last_fits = hidden[0].shape == last.shape  # the small OPT makes its last state shorter
        shown = (
            list(stack)
            for stack in self._lists
            if len(stack) == len(hidden) - 1 and self._shows(stack, hidden, last_is_top)
        )
        return LayerReader(layers, next(shown, None), last_is_top=last_is_top, last_fits=last_fits)

    def _shows(self, stack: nn.ModuleList, hidden: Sequence[Tensor], last_is_top: bool) -> bool:
        """Return whether each layer ran once, and the states that it took or gave are those of the model."""
        outputs = [self._seen.get(layer, []) for layer in stack]
        if stack[0] not in self._first or any(len(seen) != 1 for seen in outputs):
            return False
        shown = [self._first[stack[0]], *(seen[0] for seen in outputs)]
        compared = range(len(hidden) - last_is_top)  # the last one has gone through the final norm
        return all(torch.equal(shown[number], hidden[number]) for number in compared)
