"""What a guard says of one input."""

import math
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Guarded"]


@dataclass(frozen=True)
class Guarded:
    """One input, the decision on it, and what was generated for it.

    Attributes:
        text: the input.
        accepted: whether the input is in-distribution; nothing is generated for one that is not.
        score: its score, higher = more in-distribution; -inf for an input without tokens.
        threshold: the lowest score that is accepted.
        p_value: how unusual the input is: an ID input gets one <= α with probability at most α.
        truncated: whether the input was longer than what the detector looks at, so that it was judged by its beginning.
        output: what was generated; None for a refused input and for an output that is withheld.
        output_accepted: whether the output is in-distribution; None where it was not checked.
        output_score: the score of the output.
        reason: a sentence that says why there is no output; None where there is one.
    """

    text: str
    accepted: bool
    score: float
    threshold: float
    p_value: float
    truncated: bool = False
    output: Any = None
    output_accepted: bool | None = None
    output_score: float | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinities: a score of -inf becomes None."""
        values = asdict(self)
        infinite = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        return values | dict.fromkeys(infinite)
