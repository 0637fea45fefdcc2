"""Which hidden layers tokens are made of: how they are named, and what `auto` chooses for a kind of model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from apood.encoders.base.pretrained import Kind
from apood.support.checks import shorten
from apood.support.errors import InputError

__all__ = ["LAST", "Layers", "LayersLike", "check_layers", "resolve_layers"]

LayersLike = str | int | Sequence[int]
"""What names layers: `auto`, `mix`, one number, a list of numbers, or a text such as `-1` or `mix:4,5,6`."""

# What `auto` stands for. What a decoder reads is the last layer of its encoder, which carries everything; the last
# layer of other models was trained for one task, such as to name the next token.
_AUTO: dict[Kind, str] = {
    "causal": "mix",
    "encoder": "mix",
    "classifier": "mix",
    "encoder-decoder": "-1",
}

_NUMBER = re.compile(r"[+-]?\d{1,9}")  # no model has a layer with more digits


@dataclass(frozen=True)
class Layers:
    """The hidden layers that tokens are made of.

    Attributes:
        numbers: the layers, counted from the bottom: 0 is the embedding layer. A single layer may be -1, the last
            hidden state as the model returns it.
        mixed: whether a token is the mean over the layers of their states, each scaled to length 1.
        depth: the number of layers of the model, without the embedding layer.
    """

    numbers: tuple[int, ...]
    mixed: bool
    depth: int

    def __str__(self) -> str:
        """Return the only text that names these layers, as in the identity of an encoder."""
        if not self.mixed:
            return str(self.numbers[0])
        if self.numbers == tuple(range(1, self.depth + 1)):
            return "mix"
        return f"mix:{','.join(map(str, self.numbers))}"

    @property
    def other_view(self) -> "Layers":
        """The layers that a summary is made of: the last one beside a mix, and the mix of all beside a single one."""
        if self.mixed or self.depth == 0:
            return LAST
        return Layers(tuple(range(1, self.depth + 1)), True, self.depth)


LAST = Layers((-1,), False, 1)
"""The last hidden state as the model returns it."""


def check_layers(given: Any) -> None:
    """Raise InputError if `given` cannot name layers of any model."""
    _parse(given)


def resolve_layers(given: LayersLike, kind: Kind, depth: int, name: str, mode: str = "input") -> Layers:
    """Return the layers that `given` names in the model `name`, which has `depth` layers beside the embedding layer.

    -1 alone stays; all other layers are counted from the bottom, so that each has one number. In other modes than
    `input` the states are those of a decoder, which names the next token, as a causal model does.
    """
    maker: Kind = kind if mode == "input" else "causal"
    numbers, mixed = _parse(_AUTO[maker] if isinstance(given, str) and given.strip() == "auto" else given)
    if numbers is None:
        return Layers(_refuse_none(tuple(range(1, depth + 1)), name), True, depth)
    for number in numbers:
        if not -depth - 1 <= number <= depth:
            raise InputError(f"Layer {number} of {name!r} does not exist: allowed are {-depth - 1} to {depth}.")
    if not mixed:
        return Layers(tuple(number if number >= -1 else number + depth + 1 for number in numbers), False, depth)
    return Layers(tuple(sorted({number % (depth + 1) for number in numbers})), True, depth)


def _refuse_none(numbers: tuple[int, ...], name: str) -> tuple[int, ...]:
    if not numbers:
        raise InputError(f"The model {name!r} has no layers but its embeddings, so they cannot be mixed: use layers=0.")
    return numbers


def _parse(given: Any) -> tuple[tuple[int, ...] | None, bool]:
    """Return the numbers that are named, None for all or for those that `auto` stands for, and whether they mix."""
    if isinstance(given, str):
        kind, colon, listed = given.strip().partition(":")
        if not colon and kind in ("auto", "mix"):
            return None, True
        if not colon and _NUMBER.fullmatch(kind):
            return (int(kind),), False
        parts = [part.strip() for part in listed.split(",")]
        if kind != "mix" or not all(_NUMBER.fullmatch(part) for part in parts):
            raise _make_error(given)
        return tuple(map(int, parts)), True
    if _is_number(given):
        return (int(given),), False
    if isinstance(given, bytes | bytearray | dict | set | frozenset):
        raise _make_error(given)
    try:
        numbers = tuple(given)
    except TypeError as error:
        raise _make_error(given) from error
    if not numbers or not all(map(_is_number, numbers)):
        raise _make_error(given)
    return tuple(map(int, numbers)), True


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and abs(int(value)) < 10**9


def _make_error(given: Any) -> InputError:
    return InputError(
        "layers must be auto, mix, the number of a layer, or several numbers as a list or as a text like mix:4,5,6, "
        f"got {shorten(given)}."
    )
