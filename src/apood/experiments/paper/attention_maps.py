"""Figure 6: for an OOD sequence of each set, the tokens that its most deviant heads look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apood.detectors.ap_ood.detector import APOOD
from apood.encoders.base.pretrained import find_pretrained, load_tokenizer
from apood.encoders.text.tokenising import Tokeniser
from apood.evaluation.fit_cache import CachedFit
from apood.experiments.paper.bench import Experiment
from apood.experiments.paper.entries import Entry
from apood.experiments.paper.findings import Findings, Table
from apood.experiments.paper.study import Scene, Study
from apood.experiments.paper.tasks import SUMMARIZATION
from apood.pooling import Preprocessing
from apood.pooling.algebra import similarities_and_logits
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.token_weights import WeightedTokens, token_weights_of

__all__ = ["ATTENTION_MAPS_BENCH", "AttentionMaps"]

_ROW = Entry("AP-OOD", "ap-ood", selected=True)
_SHOWN = 3  # tokens named in the table
_IDS = "input_ids"


@dataclass(frozen=True)
class HeadLook:
    """A head that deviates on a sequence: by how much, and how much attention it gives to each token."""

    dataset: str
    direction: str
    head: int
    deviation: float
    pieces: list[str]
    weights: list[float]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return vars(self)

    @property
    def most(self) -> str:
        """The tokens that it looks at most."""
        order = sorted(range(len(self.weights)), key=lambda place: -self.weights[place])[:_SHOWN]
        return ", ".join(f"{self.pieces[place].strip() or '␣'} {self.weights[place]:.0%}" for place in order)


@dataclass(frozen=True)
class AttentionMaps(Experiment):
    """One fit, one random sequence of each OOD set; of the output where the model generates, else of the input."""

    def rows(self, scene: Scene) -> Sequence[Entry]:  # noqa: ARG002
        """AP-OOD with the settings of table 1."""
        return [_ROW]

    def carry_out(self, study: Study) -> Findings:
        """The heads with the largest positive and negative deviation before it is squared."""
        (mode,) = study.modes
        data = study.split(mode, 0)
        model = CachedFit(_ROW.detector(study, mode, 0), data.train, None, study.cache).fit_or_load()
        assert isinstance(model, APOOD) and study.model is not None
        tokeniser = _tokeniser(study)
        looks: list[HeadLook] = []
        for name, source in data.ood.items():
            filled = torch.nonzero(source.lengths).flatten()
            if not len(filled):  # where a model had nothing to say, there is nothing to look at
                continue
            number = int(torch.randint(len(filled), (1,), generator=torch.Generator().manual_seed(0)))
            sequence = source.select([int(filled[number])])
            pieces = tokeniser.pieces(sequence.channels[_IDS].sequence(0))
            looks += _looks(model, sequence.values, name, pieces)
        panels = {
            f"{look.dataset}, {look.direction}: head {look.head}, {look.deviation:+.2f}": WeightedTokens(
                look.pieces, look.weights
            )
            for look in looks
        }
        results = {"mode": mode, "looks": [look.as_json() for look in looks]}
        return Findings(
            results, [Table(f"{mode.capitalize()} OOD", _grid(looks))], {"figure": lambda: token_weights_of(panels)}
        )


def _tokeniser(study: Study) -> Tokeniser:
    assert study.model is not None
    found = study.model.found or find_pretrained(study.model.given)
    return Tokeniser(load_tokenizer(found), found.name, study.settings.max_tokens)


def _looks(model: APOOD, tokens: Tensor, dataset: str, pieces: list[str]) -> list[HeadLook]:
    skipped = int(model.skips_first_ and len(tokens) > 1)
    preprocessing = Preprocessing(model.unit_tokens_, model.origin_ if bool(model.origin_.any()) else None)
    similarities, logits = similarities_and_logits(
        preprocessing.apply(tokens[skipped:].float()), model.queries_, model.beta_, model.similarity
    )
    attention = torch.softmax(logits.flatten(1), 1).view_as(logits)
    deviations = (attention * similarities).sum((1, 2)) - model.prototype_
    found = []
    for direction, head in (("positive", int(deviations.argmax())), ("negative", int(deviations.argmin()))):
        weights = [0.0] * skipped + attention[head].sum(0).tolist()  # over the queries of the head
        found.append(HeadLook(dataset, direction, head, float(deviations[head]), pieces, weights))
    return found


def _grid(looks: Sequence[HeadLook]) -> Grid:
    cells: dict[tuple[str, str], Cell] = {
        (look.dataset, look.direction): (Figure(f"head {look.head}: {look.deviation:+.2f}"), Figure(look.most))
        for look in looks
    }
    legend = (
        "For a random sequence of each OOD set the heads with the largest positive and negative deviation of the "
        "pooled value from the prototype, and the tokens with the most attention."
    )
    names = list(dict.fromkeys(look.dataset for look in looks))
    return Grid([Block(None, names)], ["positive", "negative"], cells, legend)


ATTENTION_MAPS_BENCH = AttentionMaps("attention-maps", SUMMARIZATION, seeds=1, modes=("output", "input"), one_mode=True)
