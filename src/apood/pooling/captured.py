"""Pools for queries that no longer change, on a GPU: prepared once, and single sequences through CUDA graphs.

From Python the launches of one short sequence take twenty times as long as their work. A graph has fixed buffers and
launches, and only their content changes: one for each power of two of tokens covers all lengths below it.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled
from apood.pooling.fused import columns_of
from apood.pooling.kernels.forward import pool_forward, token_stats
from apood.pooling.kernels.launch import plan_batch, tune
from apood.pooling.kernels.plan import Plan
from apood.pooling.kernels.tuning import Tuning
from apood.pooling.preprocessing import Preprocessing

__all__ = ["PreparedPool"]

_SHORTEST, _LONGEST = 16, 512  # tokens of the smallest and of the largest graph
_WARM_UP = 3  # runs before a capture: kernels are compiled and loaded there
_ONE_CAPTURE = Lock()  # at a time, lest the first to end let the collector loose on another


class PreparedPool:
    """Pools of tokens in one dtype; 16-bit ones meet queries rounded to it."""

    def __init__(
        self, queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing, dtype: torch.dtype
    ) -> None:
        self.device, self.dtype, self.dim = queries.device, dtype, queries.shape[2]
        self._unit, self._euclidean = preprocessing.unit, similarity == "euclidean"
        self._origin = None if preprocessing.origin is None else preprocessing.origin.to(queries.device, torch.float32)
        self.columns = columns_of(queries, dtype, self._origin, self._euclidean)
        self._beta = torch.full((), beta, dtype=torch.float32, device=queries.device)
        self._alone: dict[tuple[int, Callable[[Pooled], Tensor]], _OneSequence] = {}
        self._lock = Lock()

    def __call__(self, values: Tensor, offsets: Tensor) -> Pooled:
        """(h, L) of a batch, on the device of the queries."""
        if _has_a_graph(values, offsets):
            return Pooled(*self._through_a_graph(values, _stacked))
        values = values.to(self.device, self.dtype, non_blocking=True).contiguous()
        count = len(self.columns.weights)
        tuning = tune(values, count, len(offsets) - 1)
        return Pooled(*self.run(values, plan_batch(offsets, values, count, tuning), tuning))

    def then(self, values: Tensor, offsets: Tensor, function: Callable[[Pooled], Tensor]) -> Tensor:
        """`function` of what a call gives, as part of the same graph where there is one."""
        if _has_a_graph(values, offsets):
            return self._through_a_graph(values, function)
        return function(self(values, offsets))

    def run(self, values: Tensor, plan: Plan, tuning: Tuning) -> tuple[Tensor, Tensor]:
        """(h, L) of tokens in the dtype and on the device of the pool."""
        stats = token_stats(values, self._unit, self._origin, self._euclidean)
        return pool_forward(values, self.columns, stats, self._beta, plan, tuning)

    def _through_a_graph(self, values: Tensor, function: Callable[[Pooled], Tensor]) -> Tensor:
        longest = max(_SHORTEST, 1 << (len(values) - 1).bit_length())
        with self._lock:  # buffers are shared
            one = self._alone.get((longest, function))
            if one is None:
                with torch.inference_mode(False):  # else no call outside of inference mode could write its buffers
                    one = self._alone[longest, function] = _OneSequence(self, longest, function)
            return one(values)


def _has_a_graph(values: Tensor, offsets: Tensor) -> bool:
    return len(offsets) == 2 and 0 < len(values) <= _LONGEST


def _stacked(pooled: Pooled) -> Tensor:
    return torch.stack(pooled)


class _OneSequence:
    """One sequence at a time, of at most `longest` tokens; what lies behind its end is old, and never looked at."""

    def __init__(self, pool: PreparedPool, longest: int, function: Callable[[Pooled], Tensor]) -> None:
        self._pool, self._function = pool, function
        self._values = torch.zeros(longest, pool.dim, dtype=pool.dtype, device=pool.device)
        self._length = torch.full((), longest, dtype=torch.int64, device=pool.device)
        count = len(pool.columns.weights)
        self._tuning = tune(self._values, count, 1, captured=True)
        plan = plan_batch(torch.tensor([0, longest]), self._values, count, self._tuning)
        self._cuts = plan.items[:, :2]
        self._plan = replace(plan, items=plan.items.clone())
        self._result = self._run()
        self._graph = self._captured() if pool.device.type == "cuda" else None

    def __call__(self, tokens: Tensor) -> Tensor:
        """The function of (h, L) of `tokens [S, D]`."""
        self._values[: len(tokens)].copy_(tokens, non_blocking=True)
        self._length.fill_(len(tokens))
        if self._graph is None:  # in the interpreter
            self._result = self._run()
        else:
            self._graph.replay()
        return self._result.clone()

    def _run(self) -> Tensor:
        # items behind the end become empty, and empty pools are neutral
        torch.minimum(self._cuts, self._length, out=self._plan.items[:, :2])
        return self._function(Pooled(*self._pool.run(self._values, self._plan, self._tuning)))

    def _captured(self) -> torch.cuda.CUDAGraph:
        with torch.cuda.device(self._values.device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self._run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # other threads of a service may allocate meanwhile
            with _ONE_CAPTURE, _nothing_collected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._result = self._run()
        return graph


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """The end of an older graph, that of a detector which is gone, would spoil the capture of this one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
