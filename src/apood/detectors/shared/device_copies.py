"""What a detector has learnt, on the device where tokens lie: copied there once."""

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["copy_on"]

# by the very tensor, not by an equal one: a copy is never older than what was learnt, and gone with it
_COPIES: MutableMapping[Tensor, dict[torch.device, Tensor]] = WeakIdKeyDictionary()


def copy_on(device: torch.device, learnt: Tensor) -> Tensor:
    """`learnt`, which must not change, on `device`: itself, or a copy that is made when it is first asked for."""
    if learnt.device == device:
        return learnt
    copies = _COPIES.setdefault(learnt, {})
    if device not in copies:
        copies[device] = learnt.to(device)
    return copies[device]
