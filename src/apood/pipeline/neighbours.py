"""The texts of the nearest training sequences, for users who hold the training texts themselves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from apood.encoders.opening import AnyTextEncoder
from apood.explain.text_explanation import MemberPart, TextExplanation
from apood.pipeline.copies import choose_documents, sketch_texts
from apood.pipeline.facts import Facts
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.documents import number_documents
from apood.tokens.source import split

__all__ = ["TrainingTexts"]


class TrainingTexts:
    """The texts that `TextDetector.fit` was given, by the numbers of the sequences that the detector learnt from.

    Args:
        texts: the texts, in the order in which `fit` was given them.
        encoder: the encoder of the detector, which says how many windows each text has.
        facts: what the detector knows about its training texts. Other texts are refused.
        hold_out: the share of the texts that was held out.
        seed: the seed that decided which.
    """

    def __init__(self, texts: Sequence[str], encoder: AnyTextEncoder, facts: Facts, hold_out: float, seed: int) -> None:
        prepared = encoder.prepare(texts)
        # `apood build --skip-bad` leaves out texts that are too long.
        used = np.array([number for number in range(len(texts)) if number not in prepared.refused], dtype=np.int64)
        windows = torch.zeros(len(used)) if prepared.windows is None else prepared.windows
        sequences = TokenBatch.without_tokens(window=Ragged.from_lengths(windows.int(), [1] * len(windows)))
        rest, _ = split(sequences, hold_out, seed)
        self._texts, self._numbers = texts, used[number_documents(sequences)[rest.indices.numpy()]]
        learnt = list(dict.fromkeys(self._numbers.tolist()))
        if facts.training is None or facts.sketches is None:
            raise InputError("The detector keeps nothing about its training texts that these could be compared with.")
        compared = [texts[learnt[place]] for place in choose_documents(len(learnt)).tolist()]
        same = facts.training.sequences == len(self._numbers)
        if not (same and np.array_equal(sketch_texts(compared), facts.sketches)):
            raise InputError("These are not the texts that the detector was fitted on, in the same order.")

    def add_to(self, explanation: TextExplanation) -> TextExplanation:
        """Return the explanation with the numbers of neighbours among these texts, and with their texts."""
        return replace(explanation, members=[self._name(member) for member in explanation.members])

    def _name(self, member: MemberPart) -> MemberPart:
        numbers = tuple(int(self._numbers[number]) for number in member.neighbours)
        return replace(member, neighbours=numbers, neighbour_texts=tuple(self._texts[number] for number in numbers))
