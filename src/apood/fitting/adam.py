"""Adam, one fused kernel a step, which never makes a GPU wait."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Adam"]

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
