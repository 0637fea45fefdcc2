"""Generation: prompts are read once, greedy outputs are those of transformers, samples depend on their text alone."""

import json
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_loop import PlainLoop, pick_states
from tiny_models import CAUSAL, ENCODER_DECODER

from apood.encoders.base.pretrained import Kind, LoadedTextModel
from apood.encoders.text import generation
from apood.encoders.text.encoder import TextEncoder
from apood.encoders.text.generation import Prompt, draw_numbers, read_prompts
from apood.encoders.text.model import TextModel, probe_model
from apood.tokens.batch import Ragged

Models = Callable[[str], Path]


def make_text_model(loop: PlainLoop) -> TextModel:
    """Return the model of a loop, which makes states of the same layers."""
    kind: Kind = "causal" if loop.causal else "encoder-decoder"
    probe = probe_model(
        LoadedTextModel(loop.model, loop.model.config, kind), "a", "input", loop.layers, with_head=False
    )
    return TextModel(loop.model, kind, probe.reader)


def get_states(prompt: Prompt, index: int) -> torch.Tensor:
    """Return the states of one prompt, without padding."""
    states, length = prompt.hidden.states[index], int(prompt.padded.lengths[index])
    return states[:length] if prompt.encoder_decoder else states[len(states) - length :]


@pytest.mark.parametrize(
    ("family", "layers"),
    [(family, layers) for family in (*CAUSAL, *ENCODER_DECODER) for layers in (-1, "mix")] + [("llama", 1), ("t5", 1)],
)
def test_a_prompt_is_read_once_for_its_states_and_for_generation(
    models: Models, texts: list[str], family: str, layers: int | str
) -> None:
    loop = PlainLoop(models(family), layers)
    rows = [loop.tokenizer(text)["input_ids"] for text in texts[:6]]
    tokens = Ragged.from_lengths(torch.tensor(list(chain.from_iterable(rows))), [len(row) for row in rows])
    read: list[int] = []
    reader = loop.model.get_input_embeddings() if loop.causal else loop.model.get_encoder()
    hook = reader.register_forward_hook(
        lambda _module, inputs, options, _output: read.append((inputs or [options["input_ids"]])[0].shape[1]),
        with_kwargs=True,
    )
    model = make_text_model(loop)
    read.clear()
    with torch.inference_mode():
        prompt = read_prompts(model, tokens, fill=0)
        beams = loop.model.generate(**prompt.make_arguments(2), num_beams=2, max_new_tokens=4, pad_token_id=0)
        greedy = loop.model.generate(**prompt.make_arguments(), max_new_tokens=4, pad_token_id=0)
    hook.remove()
    # After the prompt, a causal model reads its last token again, and then one new token at a time.
    assert read[0] == max(map(len, rows))
    assert set(read[1:]) == ({1} if loop.causal else set())
    for number, (generated, text) in enumerate(zip(greedy, texts, strict=False)):
        states = get_states(prompt, number)
        torch.testing.assert_close(states, loop.input(text).states, atol=1e-5, rtol=1e-5)
        start = prompt.padded.ids.shape[1] if loop.causal else 1
        plain = loop.output(text, 1, 4).ids
        assert generated[start : start + len(plain)].tolist() == plain
        best = loop.output(text, 2, 4).ids
        assert beams[number][start : start + len(best)].tolist() == best


@pytest.mark.parametrize(("family", "chosen"), [("llama", [4, 1]), ("t5", [4, 1]), ("llama", [0, 1, 2, 3, 4, 5])])
def test_generation_continues_from_selected_prompts(
    models: Models, texts: list[str], family: str, chosen: list[int]
) -> None:
    loop = PlainLoop(models(family))
    rows = [loop.tokenizer(text)["input_ids"] for text in texts[:6]]
    tokens = Ragged.from_lengths(torch.tensor(list(chain.from_iterable(rows))), [len(row) for row in rows])
    with torch.inference_mode():
        prompt = read_prompts(make_text_model(loop), tokens, fill=0)
        some = prompt.select(chosen)
        generated = loop.model.generate(**some.make_arguments(), max_new_tokens=4, pad_token_id=0)
        after = loop.model.generate(**prompt.make_arguments(), max_new_tokens=4, pad_token_id=0)
    start = prompt.padded.ids.shape[1] if loop.causal else 1
    for place, number in enumerate(chosen):
        torch.testing.assert_close(get_states(some, place), get_states(prompt, number))
        plain = loop.output(texts[number], 1, 4).ids
        assert generated[place][start : start + len(plain)].tolist() == plain
        assert after[number][start : start + len(plain)].tolist() == plain


@pytest.mark.parametrize("known", [True, False], ids=["after a cache", "without a cache"])
@pytest.mark.parametrize(
    ("family", "layers"), [*((family, layers) for family in CAUSAL for layers in (-1, "mix")), ("llama", 1)]
)
def test_a_causal_model_reads_on_after_prompts(
    models: Models, texts: list[str], family: str, known: bool, layers: int | str
) -> None:
    loop = PlainLoop(models(family), layers)
    rows = [loop.tokenizer(text)["input_ids"] for text in texts[:5]]
    tokens = Ragged.from_lengths(torch.tensor(list(chain.from_iterable(rows))), [len(row) for row in rows])
    model = make_text_model(loop)
    after = torch.randint(4, 44, (5, 3), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        prompt = read_prompts(model, tokens, fill=0)
        found = model.read_on(prompt.padded, prompt.cache if known else None, after).states
        for number, row in enumerate(rows):
            whole = torch.tensor([*row, *after[number].tolist()])[None]
            hidden = loop.model.base_model(whole, output_hidden_states=True, use_cache=False)
            states = pick_states(hidden.last_hidden_state, hidden.hidden_states, layers)
            wanted = states[0, len(row) - 1 : len(row) + 2]
            torch.testing.assert_close(found[number], wanted, atol=1e-5, rtol=1e-5)


def test_settings_against_repeating_the_prompt_work(models: Models, texts: list[str]) -> None:
    loop = PlainLoop(models("bart"))
    ids = torch.tensor(loop.tokenizer(" ".join(texts[:3]))["input_ids"])
    settings = {"max_new_tokens": 12, "encoder_no_repeat_ngram_size": 1, "pad_token_id": 0, "eos_token_id": 3}
    with torch.inference_mode():
        prompt = read_prompts(TextModel(loop.model, "encoder-decoder"), Ragged.from_lengths(ids, [len(ids)]), fill=0)
        generated = loop.model.generate(**prompt.make_arguments(), **settings)
        free = loop.model.generate(**prompt.make_arguments(), **settings | {"encoder_no_repeat_ngram_size": 0})
        plain = loop.model.generate(input_ids=ids[None], **settings)
    assert generated.tolist() == plain.tolist() != free.tolist()


@pytest.mark.parametrize(
    ("family", "mode"),
    [("llama", "input"), ("llama", "output"), ("opt", "output"), ("marian", "input"), ("t5", "output")],
)
def test_samples_of_a_text_do_not_depend_on_its_batch(models: Models, texts: list[str], family: str, mode: Any) -> None:
    encoder = TextEncoder(models(family), mode=mode, samples=3, max_new_tokens=9, device="cpu")
    together = encoder.encode(texts[:12]).channels["sample_logprobs"]
    assert len({float(count) for count in together.values[:, 1]}) > 3
    for text, rows in zip(texts, together, strict=False):
        torch.testing.assert_close(encoder.encode([text]).channels["sample_logprobs"].values, rows)


def test_drawn_numbers_depend_on_the_prompt_and_the_seed_only() -> None:
    prompts = Ragged.from_lengths(torch.arange(40, dtype=torch.int32) % 10, [10, 10, 20])
    numbers = draw_numbers(prompts, 50, 60, seed=1)
    assert torch.equal(numbers[0], numbers[1]) and not torch.equal(numbers[0], numbers[2])
    assert torch.equal(draw_numbers(prompts.select([2]), 50, 60, seed=1)[0], numbers[2])
    assert not torch.equal(draw_numbers(prompts, 50, 60, seed=2), numbers)
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert float(numbers[1:].mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("family", ["llama", "marian", "t5"])
def test_dropping_ended_outputs_changes_nothing(
    models: Models, texts: list[str], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = TextEncoder(models(family), mode="output", samples=3, max_new_tokens=20, device="cpu")
    kept: list[int] = []
    keep = generation._Rows.select
    monkeypatch.setattr(generation._Rows, "select", lambda self, rows: (kept.append(len(rows)), keep(self, rows)))
    found = encoder.encode(texts[:12])
    assert kept, "no output ended early"
    monkeypatch.setattr(generation._Rows, "can_select", False)  # like the caches of older versions of transformers
    kept.clear()
    expected = encoder.encode(texts[:12])
    assert not kept and torch.equal(found.channels["input_ids"].values, expected.channels["input_ids"].values)
    for name in ("sample_logprobs", "token_logprobs"):
        torch.testing.assert_close(found.channels[name].values, expected.channels[name].values)


def test_logits_that_are_not_finite_still_give_a_token() -> None:
    logits = torch.full((2, 5), torch.nan)
    chosen, logprobs = generation._choose_tokens(
        logits, torch.tensor([0.3, -1.0]), torch.empty(0).long(), sampling=True
    )
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
def test_generation_settings_apply_to_the_output_and_not_to_samples(
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

    model = encoder._pass.model.model.base_model
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

    encoder._pass.model.model.register_forward_pre_hook(refuse)
    with pytest.raises(torch.OutOfMemoryError):
        encoder.encode(["word1", "word2"])
