"""Outputs token by token: what is drawn for a text depends on it alone, and greedy ones are those of transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_loop import PlainLoop

from apood.encoders.text import generation
from apood.encoders.text.encoder import TextEncoder
from apood.encoders.text.generation import draws
from apood.tokens.batch import Ragged

Models = Callable[[str], Path]


@pytest.mark.parametrize("mode", ["input", "output"])
@pytest.mark.parametrize("family", ["llama", "opt", "marian", "t5"])
def test_samples_of_a_text_do_not_depend_on_its_batch(models: Models, texts: list[str], family: str, mode: Any) -> None:
    encoder = TextEncoder(models(family), mode=mode, samples=3, max_new_tokens=9, device="cpu")
    together = encoder.encode(texts[:12]).channels["sample_logprobs"]
    assert len({float(count) for count in together.values[:, 1]}) > 3
    for text, rows in zip(texts, together, strict=False):
        torch.testing.assert_close(encoder.encode([text]).channels["sample_logprobs"].values, rows)


def test_numbers_to_draw_with_are_those_of_the_prompt_and_the_seed() -> None:
    prompts = Ragged.from_lengths(torch.arange(40, dtype=torch.int32) % 10, [10, 10, 20])
    numbers = draws(prompts, 50, 60, seed=1)
    assert torch.equal(numbers[0], numbers[1]) and not torch.equal(numbers[0], numbers[2])
    assert torch.equal(draws(prompts.select([2]), 50, 60, seed=1)[0], numbers[2])
    assert not torch.equal(draws(prompts, 50, 60, seed=2), numbers)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert float(numbers[1:].mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("family", ["llama", "marian", "t5"])
def test_outputs_that_have_ended_drop_out_without_a_trace(
    models: Models, texts: list[str], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TextEncoder(models(family), mode="output", samples=3, max_new_tokens=20, device="cpu")
    kept: list[int] = []
    keep = generation._Rows.keep
    monkeypatch.setattr(generation._Rows, "keep", lambda self, rows: (kept.append(len(rows)), keep(self, rows)))
    found = encoder.encode(texts[:12])
    assert kept, "no output ended early"
    monkeypatch.setattr(generation._Rows, "can_forget", False)  # as with the caches of older versions of transformers
    kept.clear()
    expected = encoder.encode(texts[:12])
    assert not kept and torch.equal(found.channels["input_ids"].values, expected.channels["input_ids"].values)
    for name in ("sample_logprobs", "token_logprobs"):
        torch.testing.assert_close(found.channels[name].values, expected.channels[name].values)


def test_numbers_that_are_not_finite_draw_a_token_all_the_same() -> None:
    logits = torch.full((2, 5), torch.nan)
    chosen, logprobs = generation._choose(logits, torch.tensor([0.3, -1.0]), torch.empty(0).long(), sampling=True)
    assert bool((chosen < 5).all()) and bool(logprobs.isnan().all())


def _with_settings(folder: Path, to: Path, **settings: Any) -> Path:
    shutil.copytree(folder, to)
    path = to / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return to


@pytest.mark.parametrize(
    "settings",
    [
        {"bad_words_ids": [[26], [5], [6], [13]], "forced_eos_token_id": 3, "num_beams": 4, "length_penalty": 0.5},
        {"suppress_tokens": [3], "forced_eos_token_id": [9, 7], "renormalize_logits": True},
        {"suppress_tokens": [26, 5, 6, 13], "temperature": 3.0, "do_sample": True},
        {"min_new_tokens": 9},
    ],
    ids=["bad words", "forced ends", "suppressed", "by transformers"],
)
@pytest.mark.parametrize("family", ["llama", "marian"])
def test_settings_hold_for_the_output_and_not_for_samples(
    models: Models, texts: list[str], tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"mode": "output", "samples": 3, "max_new_tokens": 9, "device": "cpu"}
    folder = _with_settings(models(family), tmp_path / family, **settings)
    loop = PlainLoop(folder)
    batch, plain = (TextEncoder(path, **options).encode(texts[:30]) for path in (folder, models(family)))
    expected = [loop.output(text, 1, 9) for text in texts[:30]]
    assert [row.tolist() for row in batch.channels["input_ids"]] == [row.ids for row in expected]
    for states, row in zip(batch, expected, strict=True):
        torch.testing.assert_close(states, row.states, atol=1e-5, rtol=1e-5)
    assert not torch.equal(batch.channels["input_ids"].values, plain.channels["input_ids"].values)
    torch.testing.assert_close(batch.channels["sample_logprobs"].values, plain.channels["sample_logprobs"].values)


@pytest.mark.parametrize("mode", ["input", "output"])
def test_a_batch_that_does_not_fit_into_memory_is_halved(models: Models, texts: list[str], mode: Any) -> None:
    encoder = TextEncoder(models("llama"), mode=mode, max_new_tokens=4, device="cpu")
    expected = encoder.encode(texts[:20])
    sizes: list[int] = []

    def refuse_many(_model: Any, _inputs: Any, options: dict[str, Any]) -> None:
        sizes.append(len(options["input_ids"]))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError

    model = encoder._pass._model.model.base_model
    hook = model.register_forward_pre_hook(refuse_many, with_kwargs=True)
    found = encoder.encode(texts[:20])
    hook.remove()
    assert max(sizes) > 3 and min(sizes) <= 3
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.channels["input_ids"].values, expected.channels["input_ids"].values)


def test_one_text_that_does_not_fit_into_memory_is_an_error(models: Models) -> None:
    encoder = TextEncoder(models("bert"), device="cpu")

    def refuse(_model: Any, _inputs: Any) -> None:
        raise torch.OutOfMemoryError

    encoder._pass._model.model.register_forward_pre_hook(refuse)
    with pytest.raises(torch.OutOfMemoryError):
        encoder.encode(["word1", "word2"])
