"""The profiles of the runtime experiment: the sizes, and the single measurements that they consist of."""

from dataclasses import dataclass, replace

__all__ = [
    "AP_OOD", "DEEP_SVDD", "ENCODER", "GENERATION", "KNN", "MAHALANOBIS", "METHODS", "PROFILES", "Case",
    "RuntimeProfile", "choose_profile",
]  # fmt: skip

PROFILES = ("paper", "local")

AP_OOD, MAHALANOBIS, KNN, DEEP_SVDD = "AP-OOD", "Mahalanobis", "KNN", "Deep SVDD"
METHODS = (AP_OOD, MAHALANOBIS, KNN, DEEP_SVDD)
ENCODER, GENERATION = "encoder", "generation"


@dataclass(frozen=True)
class Case:
    """One measurement: of a detector that scores, of the encoder, or of encoder and decoder together.

    `heads` and `queries` belong to AP-OOD and are 0 otherwise.
    """

    what: str
    batch: int
    context: int
    heads: int = 0
    queries: int = 0


@dataclass(frozen=True)
class RuntimeProfile:
    """The sizes of the experiment.

    Attributes:
        batch: the usual number of sequences, as in table 11.
        context: the usual number of tokens per sequence.
        heads: the usual M.
        queries: the usual T.
        batches: batch sizes of figure 8.
        head_counts: values of M in figure 9.
        query_counts: values of T in figure 9.
        model_batches: batch sizes of figure 10.
        contexts: context lengths of figure 10.
        new_tokens: the length of every output.
        beams: of the beam search.
        warm_up: batches that are not measured.
        measured: batches that are measured.
    """

    batch: int
    context: int
    heads: int
    queries: int
    batches: tuple[int, ...]
    head_counts: tuple[int, ...]
    query_counts: tuple[int, ...]
    model_batches: tuple[int, ...]
    contexts: tuple[int, ...]
    new_tokens: int
    beams: int
    warm_up: int = 5
    measured: int = 10

    def within(self, context: int) -> "RuntimeProfile":
        """Return the profile for a model that reads at most `context` tokens."""
        contexts = tuple(size for size in self.contexts if size <= context) or (context,)
        return replace(self, context=min(self.context, context), contexts=contexts)

    def detector_cases(self) -> list[Case]:
        """Return the measurements of detectors: table 11 and figures 7 to 9."""
        usual = (self.heads, self.queries)
        by_batch = [
            Case(method, batch, self.context, *(usual if method == AP_OOD else ()))
            for method in METHODS
            for batch in sorted({*self.batches, self.batch})
        ]
        grid = [
            Case(AP_OOD, self.batch, self.context, heads, queries)
            for heads in self.head_counts
            for queries in self.query_counts
        ]
        return list(dict.fromkeys(by_batch + grid))

    def model_cases(self, *, generates: bool) -> list[Case]:
        """Return the measurements of the model: the rest of table 11, and figure 10."""
        sizes = [(batch, self.context) for batch in sorted({*self.model_batches, self.batch})]
        sizes += [(self.batch, context) for context in sorted({*self.contexts, self.context})]
        parts = (ENCODER, GENERATION) if generates else (ENCODER,)
        return list(dict.fromkeys(Case(part, batch, context) for part in parts for batch, context in sizes))


_PAPER = RuntimeProfile(
    batch=32,
    context=512,
    heads=256,
    queries=4,
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    head_counts=(1, 16, 128, 256, 1024),
    query_counts=(1, 4, 16),
    model_batches=(1, 2, 4, 8, 16, 32, 64, 128),
    contexts=(64, 128, 256, 512, 1024),
    # The paper does not give the length of its outputs; these are the defaults of PEGASUS large.
    new_tokens=256,
    beams=8,
)
_LOCAL_GPU = replace(_PAPER, model_batches=(1, 4, 16, 32, 64), contexts=(128, 256, 512, 1024), new_tokens=16, beams=1)
_LOCAL_CPU = replace(
    _PAPER, batch=8, context=64, model_batches=(1, 4, 8, 16, 32), contexts=(32, 64, 128, 256), new_tokens=8, beams=1
)
_QUICK = RuntimeProfile(
    batch=2,
    context=8,
    heads=4,
    queries=2,
    batches=(1, 2, 4),
    head_counts=(1, 4),
    query_counts=(1, 2),
    model_batches=(1, 2),
    contexts=(4, 8),
    new_tokens=2,
    beams=1,
    warm_up=1,
    measured=2,
)


def choose_profile(name: str, *, gpu: bool, quick: bool) -> RuntimeProfile:
    """Return the sizes: `paper` has the paper's, `local` takes about a minute, `quick` is for a first look."""
    if quick:
        return _QUICK
    if name == "paper":
        return _PAPER
    return _LOCAL_GPU if gpu else _LOCAL_CPU
