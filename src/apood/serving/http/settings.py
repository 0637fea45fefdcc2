"""The settings of the service and their defaults, which the commands read without loading anything else."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["OnError", "Settings"]

OnError = Literal["refuse", "accept"]
"""What to do with a request that cannot be judged because of an error, a full queue or a missed deadline."""


@dataclass(frozen=True)
class Settings:
    """The limits of a service.

    Attributes:
        deadline: the seconds after its arrival when a request is answered with 504.
        most_bytes: the largest body.
        most_texts: the largest number of texts, or sequences of tokens, of a request.
        most_text_tokens: the largest number of tokens of a text.
        most_tokens: the largest number of tokens in flight.
        shadow: whether nothing is refused that could be read.
        on_error: what to do with a request that cannot be judged because of an error, a full queue or a missed
            deadline.
    """

    deadline: float = 10.0
    most_bytes: int = 1 << 20
    most_texts: int = 256
    most_text_tokens: int = 8192
    most_tokens: int = 1 << 18
    shadow: bool = False
    on_error: OnError = "refuse"
