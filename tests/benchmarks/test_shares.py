"""What detection costs beside an encoder, in miniature."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import shares
from benchmarks.shares import LAST, PASSES, compare_passes, measure_model, open_encoder
from benchmarks.timing import Timing

Models = Callable[[str], Path]


def test_the_pass_that_others_are_compared_with_reads_one_layer_alone(models: Models, texts: list[str]) -> None:
    open_one = partial(open_encoder, str(models("llama")), device="cpu", max_tokens=16)
    found = {name: open_one(**options) for name, options in PASSES.items()}
    layers = {name: encoder.identity["layers"] for name, encoder in found.items()}
    extra = {name: encoder.encode(texts[:2]).channels.keys() - {"text", "input_ids"} for name, encoder in found.items()}
    last, mix, defaults = PASSES
    assert last == LAST and layers == {last: "-1", mix: "mix", defaults: "mix"}
    assert extra == {last: set(), mix: set(), defaults: {"summary", "sentences"}}


def test_a_cost_is_the_median_of_ratios_to_that_pass(
    models: Models, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = {}

    def time_passes(contenders: Mapping[str, Callable[[], Any]]) -> dict[str, Timing]:
        ran.update({name: len(run()) for name, run in contenders.items()})
        rounds = ([10.0, 20.0, 40.0], [11.0, 23.0, 42.0], [12.0, 30.0, 52.0])
        return {name: Timing(own, None) for name, own in zip(contenders, rounds, strict=True)}

    monkeypatch.setattr(shares, "measure", time_passes)
    open_one = partial(open_encoder, str(models("bert")), device="cpu", max_tokens=16)
    _, mix, defaults = PASSES
    assert compare_passes(open_one, texts[:3]) == {mix: "1.100", defaults: "1.300"}
    assert ran == dict.fromkeys(PASSES, 3)


@pytest.mark.filterwarnings("ignore")  # of a detector of few texts
@pytest.mark.usefixtures("few_steps")
def test_every_row_is_measured(models: Models, texts: list[str]) -> None:
    options: dict[str, Any] = {"device": "cpu", "count": 2, "train": 44, "max_tokens": 16, "seconds": 0}
    rows = dict(measure_model(str(models("bert")), texts, **options))
    passes, fits, scores = (re.compile(start) for start in ("a pass with .*, to one with the last", "fit of", "scores"))
    assert [sum(bool(kind.match(name)) for name in rows) for kind in (passes, fits, scores)] == [2, 2, 2]
    assert len(rows) == 6 and all(float(figure.removesuffix(" s")) >= 0 for figure in rows.values())
