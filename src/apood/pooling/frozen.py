"""Pools for queries that no longer change, as a detector has them when it scores.

On a GPU, what depends on the queries alone is computed once, and single sequences go through CUDA graphs: from Python
the launches of one short sequence take twenty times as long as their work. A graph has fixed buffers and launches, and
only the content of the buffers changes. One graph for each power of two of tokens covers all lengths below it.
"""

import weakref
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, Preprocessing, narrow_tokens, round_queries
from apood.pooling.attention import Similarity, attention_pool, check_dimensions, check_pool, has_kernels
from apood.tokens.batch import TokenBatch

__all__ = ["FrozenPool"]

_SHORTEST, _LONGEST = 16, 512  # tokens of the smallest and of the largest graph
_WARM_UP = 3  # runs before a capture: kernels are compiled and loaded there

_Finish = Callable[[Pooled], Tensor]


def _stack(pooled: Pooled) -> Tensor:
    return torch.stack(pooled)


class FrozenPool:
    """`attention_pool` for fixed queries, without gradients: what depends on them alone is computed once.

    On a GPU a single sequence of at most 512 tokens goes through a CUDA graph, captured when a length of its size is
    first seen: no launch from Python, and no new device memory once it is there. May be called from several threads
    and on any CUDA streams; calls that share a graph run one after the other.

    Args:
        queries: `[M heads, T queries, D]`, on the device to compute on.
        beta: inverse temperature.
        similarity: what the attention follows.
        preprocessing: of the tokens.
        exact: as in `attention_pool`.
        finish: the function that `FrozenPool.finish` applies to the pools. It becomes part of the graphs, so it must
            launch the same work each time. By default it stacks values and log masses.
    """

    def __init__(
        self,
        queries: Tensor,
        beta: float,
        similarity: Similarity = "dot",
        preprocessing: Preprocessing | None = None,
        *,
        exact: bool = False,
        finish: _Finish = _stack,
    ) -> None:
        check_pool(queries, beta, similarity)
        self._queries, self._finish, self._exact = queries.detach(), finish, exact
        self._beta, self._similarity, self._preprocessing = beta, similarity, preprocessing or Preprocessing()
        self._fused: dict[torch.dtype, _FusedPool] = {}

    def __call__(self, tokens: TokenBatch) -> Pooled:
        """Return pooled values and log masses, both `[sequences, M]`, on the device of the queries."""
        fused = self._prepare_kernels(tokens)
        if fused is None:
            return self._pool(tokens)
        if _has_graph(tokens):
            return Pooled(*fused.replay(tokens.values, _stack))
        return fused.pool(tokens.values, tokens.offsets)

    def finish(self, tokens: TokenBatch) -> Tensor:
        """Return the function `finish` of the pools of `tokens`."""
        fused = self._prepare_kernels(tokens)
        if fused is None:
            return self._finish(self._pool(tokens))
        if _has_graph(tokens):
            return fused.replay(tokens.values, self._finish)
        return self._finish(fused.pool(tokens.values, tokens.offsets))

    def _pool(self, tokens: TokenBatch) -> Pooled:
        return attention_pool(
            tokens, self._queries, self._beta, self._similarity, self._preprocessing, exact=self._exact
        )

    def _prepare_kernels(self, tokens: TokenBatch) -> "_FusedPool | None":
        """Return what pools such tokens by kernels, or None if there are no kernels for them."""
        check_dimensions(tokens, self._queries)
        if tokens.dtype == torch.float64 or not has_kernels(self._queries.device):
            return None
        if tokens.dtype not in self._fused:
            dtype = self._choose_dtype(tokens.dtype)
            narrows = dtype == torch.float16 != tokens.dtype
            self._fused[tokens.dtype] = _FusedPool(
                self._queries, self._beta, self._similarity, self._preprocessing, dtype, narrows=narrows
            )
        return self._fused[tokens.dtype]

    def _choose_dtype(self, given: torch.dtype) -> torch.dtype:
        """Return the dtype of the products of queries and tokens in the `given` dtype.

        Exact products are those in float32, which take nine times as long as in float16. Queries that were learnt from
        a store in float16 lose nothing there, nor do the directions of tokens in bfloat16 (see `narrow_tokens`).
        """
        if not self._exact:
            return given
        if given == torch.bfloat16 and self._preprocessing.unit and self._are_half():
            return torch.float16
        return torch.float32

    def _are_half(self) -> bool:
        """Return whether float16 holds the queries exactly."""
        return torch.equal(round_queries(self._queries, torch.float16), self._queries)


def _has_graph(tokens: TokenBatch) -> bool:
    return len(tokens) == 1 and 0 < len(tokens.values) <= _LONGEST


class _FusedPool:
    """Pools of tokens by kernels, whose products are in one dtype, to which the queries are rounded.

    If it `narrows`, tokens are given in bfloat16, and products are in float16. Otherwise tokens are cast.
    """

    def __init__(
        self,
        queries: Tensor,
        beta: float,
        similarity: str,
        preprocessing: Preprocessing,
        dtype: torch.dtype,
        *,
        narrows: bool,
    ) -> None:
        from apood.pooling.fused import prepare_queries  # not every machine has Triton

        self.device, self.dim = queries.device, queries.shape[2]
        self.given, self._narrows = torch.bfloat16 if narrows else dtype, narrows
        with torch.inference_mode(False):  # otherwise no call outside of inference mode could use it
            self.prepared = prepare_queries(queries, beta, similarity, preprocessing, dtype)
        if self.device.type == "cuda":
            # other streams may be the next to read it
            torch.cuda.current_stream(self.device).synchronize()
        self._graphs: dict[tuple[int, bool], _GraphOfOne] = {}  # of a size and of one of two functions
        self._lock = Lock()

    def pool(self, values: Tensor, offsets: Tensor) -> Pooled:
        """Return (h, L) of a batch."""
        from apood.pooling.kernels.launch import make_plan, tune

        values = self.narrow(values.to(self.device, self.given, non_blocking=True).contiguous())
        columns = len(self.prepared.columns.weights)
        tuning = tune(values, columns, len(offsets) - 1)
        return self.run(values, make_plan(offsets, values, columns, tuning), tuning)

    def narrow(self, values: Tensor) -> Tensor:
        """Return tokens of the dtype `given` in that of the products."""
        return narrow_tokens(values) if self._narrows else values

    def run(self, values: Tensor, plan: Any, tuning: Any) -> Pooled:
        """Return (h, L) of tokens on the device of the pool, in the dtype of its products."""
        from apood.pooling.kernels.forward import compute_token_stats, pool_forward

        columns, beta, unit, origin, euclidean = self.prepared
        stats = compute_token_stats(values, unit, origin, euclidean)
        return Pooled(*pool_forward(values, columns, stats, beta, plan, tuning))

    def replay(self, values: Tensor, function: _Finish) -> Tensor:
        """Return `function` of the pool of a single sequence by its graph, which is captured if there is none yet.

        The function is `_stack` or the one that the `FrozenPool` was made with, so that there are few graphs.
        """
        longest = max(_SHORTEST, 1 << (len(values) - 1).bit_length())
        key = (longest, function is _stack)
        with self._lock:  # a graph has one set of buffers
            graph = self._graphs.get(key)
            if graph is None:
                with torch.inference_mode(False):  # otherwise no call outside of inference mode could write its buffers
                    graph = self._graphs[key] = _GraphOfOne(self, longest, function)
            return graph(values)


class _GraphOfOne:
    """Pools one sequence at a time, of at most `longest` tokens; what lies behind its end is old, and never read.

    In Triton's interpreter, on a CPU, the same work runs without a graph.
    """

    def __init__(self, pool: _FusedPool, longest: int, function: _Finish) -> None:
        from apood.pooling.kernels.launch import make_plan, tune

        # not the pool itself: a reference cycle would leave the end of the graph to the garbage collector
        self._pool, self._function = weakref.proxy(pool), function
        self._values = torch.zeros(longest, pool.dim, dtype=pool.given, device=pool.device)
        self._length = torch.full((), longest, dtype=torch.int64, device=pool.device)
        columns = len(pool.prepared.columns.weights)
        values = pool.narrow(self._values)
        self._tuning = tune(values, columns, 1, captured=True)
        plan = make_plan(torch.tensor([0, longest]), values, columns, self._tuning)
        self._cuts = plan.items[:, :2]
        self._plan = replace(plan, items=plan.items.clone())
        self._captured: tuple[torch.cuda.CUDAGraph, Tensor, torch.cuda.Event] | None = None
        if pool.device.type == "cuda":
            graph, result = _capture(self._run, pool.device)
            last_call = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._captured = graph, result, last_call
            weakref.finalize(self, _retire, graph, last_call).atexit = False

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the function of (h, L) of `tokens [S, D]`."""
        if self._captured is None:
            self._fill(tokens)
            return self._run()
        graph, result, last_call = self._captured
        # The last call may have been on another stream that still reads the buffers. The caller holds the lock of the
        # pool, so that the event is always that of the last call.
        stream = torch.cuda.current_stream(self._values.device)
        stream.wait_event(last_call)
        self._fill(tokens)
        graph.replay()
        own = result.clone()  # on the current stream, as all of this
        last_call.record(stream)
        return own

    def _fill(self, tokens: Tensor) -> None:
        self._values[: len(tokens)].copy_(tokens, non_blocking=True)
        self._length.fill_(len(tokens))

    def _run(self) -> Tensor:
        # items behind the end become empty, and empty pools are neutral
        torch.minimum(self._cuts, self._length, out=self._plan.items[:, :2])
        return self._function(self._pool.run(self._pool.narrow(self._values), self._plan, self._tuning))


# The end of a CUDA graph calls functions of CUDA that a thread must not call while it captures: they would invalidate
# the capture. Graphs end at any time, also inside of a capture, where Python's garbage collector may find a detector
# in a reference cycle. So the graphs and events that are no longer used wait here until no capture is under way.
_capturing = Lock()
_retired: list[object] = []


def _retire(*resources: object) -> None:
    """Keep these alive while there is a capture in any thread, this one included."""
    _retired.extend(resources)
    if _capturing.acquire(blocking=False):
        try:
            _retired.clear()
        finally:
            _capturing.release()


def _capture(run: Callable[[], Tensor], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Return a graph of what `run` launches, and the tensor that it writes its result to."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # On this stream, because torch's own one for captures belongs to the first GPU that captured. Other threads of
        # a service may allocate meanwhile.
        with _capturing, torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            result = run()
        _retire()  # drops what was kept during the capture
    return graph, result
