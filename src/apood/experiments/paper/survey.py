"""How many sequences a set has and how long they are, before any of them is embedded."""

from typing import NamedTuple

import numpy as np

from apood.data.record import Record
from apood.experiments.paper.stores import Embedding, records_of, refuse_too_few, text_lengths
from apood.experiments.paper.tasks import Task

__all__ = ["Survey", "survey"]

_CHARACTERS_A_TOKEN = 4  # of English, with most tokenizers
_OUTPUT_TOKENS = 64  # a summary or a sentence
_PATCHES = 128  # of a sound


class Survey(NamedTuple):
    """Sequences of a set and tokens of the average one."""

    sequences: int
    tokens: float


def survey(embedding: Embedding, task: Task) -> Survey:
    """Exact numbers for what lies on this machine, where the first record tells whether it can be used at all.

    Of the hub as many are expected as are asked for, each as long as the context.
    """
    longest = int(embedding.options.get("max_tokens", _PATCHES))
    if task.items == "sounds":
        count = sum(isinstance(record, Record) for record in records_of(embedding, task))
        refuse_too_few(embedding.role, count)
        return Survey(count, _PATCHES)
    if not embedding.source.local:
        found = Survey(embedding.limit, longest)
    else:
        lengths = text_lengths(embedding.source, embedding.limit)
        refuse_too_few(embedding.role, len(lengths))
        found = Survey(len(lengths), float(np.minimum(lengths / _CHARACTERS_A_TOKEN, longest).mean()))
    if embedding.mode == "output":
        return Survey(found.sequences, min(_OUTPUT_TOKENS, embedding.options["max_new_tokens"]))
    return found
