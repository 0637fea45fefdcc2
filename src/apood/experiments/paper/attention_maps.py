"""Figure 6: the tokens that the most deviant heads attend to, in one OOD sequence of each set."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from apood.detectors.ap_ood.detector import APOOD
from apood.encoders.base.pretrained import find_pretrained, load_tokenizer
from apood.encoders.text.tokenising import Tokeniser
from apood.evaluation.study import fit_entry
from apood.experiments.paper.experiment import Experiment
from apood.experiments.paper.findings import Findings, Table
from apood.experiments.paper.study_data import Row, StudyData, TableContext
from apood.experiments.paper.tasks import SUMMARIZATION
from apood.pooling import Preprocessing
from apood.pooling.algebra import similarities_and_logits
from apood.report.grid import Block, Cell, Figure, Grid
from apood.report.pictures import WeightedTokens, draw_token_weights

__all__ = ["EXPERIMENTS"]

_ROW = Row("ap-ood", name="AP-OOD", selected=True)
_SHOWN = 3  # tokens named in the table
_IDS = "input_ids"


@dataclass(frozen=True)
class HeadAttention:
    """A deviant head on one sequence: its deviation, and the attention that each token gets from it."""

    dataset: str
    direction: str
    head: int
    deviation: float
    pieces: list[str]
    weights: list[float]

    @property
    def top_tokens(self) -> str:
        """The tokens with the most attention."""
        order = sorted(range(len(self.weights)), key=lambda place: -self.weights[place])[:_SHOWN]
        return ", ".join(f"{self.pieces[place].strip() or '␣'} {self.weights[place]:.0%}" for place in order)


@dataclass(frozen=True)
class AttentionMapsExperiment(Experiment):
    """One fit and a random sequence of each OOD set; outputs if the model generates, else inputs."""

    def rows(self, context: TableContext) -> Sequence[Row]:  # noqa: ARG002
        """Return AP-OOD with the settings of table 1."""
        return [_ROW]

    def run(self, study: StudyData) -> Findings:
        """Return the heads with the largest positive and negative deviation (before it is squared)."""
        (mode,) = study.modes
        split = study.split(mode, 0)
        model = fit_entry(study.resolve(_ROW, mode), split, study.cache).fit_or_load()
        assert isinstance(model, APOOD)
        tokeniser = _load_tokeniser(study)
        found: list[HeadAttention] = []
        for name, source in split.ood.items():
            nonempty = torch.nonzero(source.lengths).flatten()
            if not len(nonempty):  # every output of the model was empty
                continue
            number = int(torch.randint(len(nonempty), (1,), generator=torch.Generator().manual_seed(0)))
            sequence = source.select([int(nonempty[number])])
            pieces = tokeniser.split_pieces(sequence.channels[_IDS].sequence(0))
            found += _find_deviant_heads(model, sequence.values, name, pieces)
        panels = {
            f"{one.dataset}, {one.direction}: head {one.head}, {one.deviation:+.2f}": WeightedTokens(
                one.pieces, one.weights
            )
            for one in found
        }
        return Findings(
            {"mode": mode, "looks": [asdict(one) for one in found]},
            [Table(f"{mode.capitalize()} OOD", _make_grid(found))],
            {"figure": lambda: draw_token_weights(panels)},
        )


def _load_tokeniser(study: StudyData) -> Tokeniser:
    assert study.model is not None
    found = study.model.found or find_pretrained(study.model.given)
    return Tokeniser(load_tokenizer(found), found.name, study.data.settings.max_tokens)


def _find_deviant_heads(model: APOOD, tokens: Tensor, dataset: str, pieces: list[str]) -> list[HeadAttention]:
    kept = model.find_kept(len(tokens))
    preprocessing = Preprocessing(model.unit_tokens_, model.origin_ if bool(model.origin_.any()) else None)
    similarities, logits = similarities_and_logits(
        preprocessing.apply(tokens[kept].float()), model.queries_, model.beta_, model.similarity
    )
    attention = torch.softmax(logits.flatten(1), 1).view_as(logits)
    deviations = (attention * similarities).sum((1, 2)) - model.prototype_
    found = []
    for direction, head in (("positive", int(deviations.argmax())), ("negative", int(deviations.argmin()))):
        weights = [0.0] * len(tokens)
        weights[kept] = attention[head].sum(0).tolist()  # summed over the queries of the head
        found.append(HeadAttention(dataset, direction, head, float(deviations[head]), pieces, weights))
    return found


def _make_grid(found: Sequence[HeadAttention]) -> Grid:
    cells: dict[tuple[str, str], Cell] = {
        (one.dataset, one.direction): (Figure(f"head {one.head}: {one.deviation:+.2f}"), Figure(one.top_tokens))
        for one in found
    }
    legend = (
        "For a random sequence of each OOD set: the heads with the largest positive and negative deviation of the "
        "pooled value from the prototype, and the tokens with the most attention."
    )
    names = list(dict.fromkeys(one.dataset for one in found))
    return Grid([Block(None, names)], ["positive", "negative"], cells, legend)


EXPERIMENTS = (
    AttentionMapsExperiment("attention-maps", SUMMARIZATION, seeds=1, modes=("output", "input"), one_mode=True),
)
