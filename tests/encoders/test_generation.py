"""Prompts that are read once: their states, and generation that goes on from them."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from plain_loop import PlainLoop
from tiny_models import CAUSAL, ENCODER_DECODER

from apood.encoders.text.generation import read_prompts
from apood.encoders.text.model import TextModel
from apood.tokens.batch import Ragged

Models = Callable[[str], Path]


@pytest.mark.parametrize("layer", [-1, 1])
@pytest.mark.parametrize("family", (*CAUSAL, *ENCODER_DECODER))
def test_a_prompt_is_read_once_for_its_states_and_for_generation(
    models: Models, texts: list[str], family: str, layer: int
) -> None:
    """The user's own model, whose settings stay, as what guards it uses it."""
    loop = PlainLoop(models(family), layer)
    rows = [loop.tokenizer(text)["input_ids"] for text in texts[:6]]
    tokens = Ragged.from_lengths(torch.tensor(list(chain.from_iterable(rows))), [len(row) for row in rows])
    read: list[int] = []
    reader = loop.model.get_input_embeddings() if loop.causal else loop.model.get_encoder()
    hook = reader.register_forward_hook(
        lambda _module, inputs, options, _output: read.append((inputs or [options["input_ids"]])[0].shape[1]),
        with_kwargs=True,
    )
    kind = "causal" if loop.causal else "encoder-decoder"
    with torch.inference_mode():
        prompt = read_prompts(TextModel(loop.model, kind, layer), tokens, fill=0)  # type: ignore[arg-type]
        beams = loop.model.generate(**prompt.arguments(2), num_beams=2, max_new_tokens=4, pad_token_id=0)
        greedy = loop.model.generate(**prompt.arguments(), max_new_tokens=4, pad_token_id=0)
    hook.remove()
    # After the prompt itself, a causal model is given no more than its last token and then one at a time.
    assert read[0] == max(map(len, rows))
    assert set(read[1:]) == ({1} if loop.causal else set())
    for number, (generated, text) in enumerate(zip(greedy, texts, strict=False)):
        states = prompt.sequence(number)
        torch.testing.assert_close(states, loop.input(text).states, atol=1e-5, rtol=1e-5)
        start = prompt.padded.ids.shape[1] if loop.causal else 1
        plain = loop.output(text, 1, 4).ids
        assert generated[start : start + len(plain)].tolist() == plain
        best = loop.output(text, 2, 4).ids
        assert beams[number][start : start + len(best)].tolist() == best


@pytest.mark.parametrize("chosen", [[4, 1], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("family", (*CAUSAL, *ENCODER_DECODER))
def test_some_of_the_prompts_that_were_read_go_on_alone(
    models: Models, texts: list[str], family: str, chosen: list[int]
) -> None:
    loop = PlainLoop(models(family))
    rows = [loop.tokenizer(text)["input_ids"] for text in texts[:6]]
    tokens = Ragged.from_lengths(torch.tensor(list(chain.from_iterable(rows))), [len(row) for row in rows])
    kind = "causal" if loop.causal else "encoder-decoder"
    with torch.inference_mode():
        prompt = read_prompts(TextModel(loop.model, kind), tokens, fill=0)  # type: ignore[arg-type]
        some = prompt.select(chosen)
        generated = loop.model.generate(**some.arguments(), max_new_tokens=4, pad_token_id=0)
        after = loop.model.generate(**prompt.arguments(), max_new_tokens=4, pad_token_id=0)
    start = prompt.padded.ids.shape[1] if loop.causal else 1
    for place, number in enumerate(chosen):
        torch.testing.assert_close(some.sequence(place), prompt.sequence(number))
        plain = loop.output(texts[number], 1, 4).ids
        assert generated[place][start : start + len(plain)].tolist() == plain
        assert after[number][start : start + len(plain)].tolist() == plain


@pytest.mark.parametrize("layer", [-1, 1])
@pytest.mark.parametrize("known", [True, False], ids=["behind a cache", "from the start"])
@pytest.mark.parametrize("family", CAUSAL)
def test_a_causal_model_reads_on_behind_prompts(
    models: Models, texts: list[str], family: str, known: bool, layer: int
) -> None:
    loop = PlainLoop(models(family), layer)
    rows = [loop.tokenizer(text)["input_ids"] for text in texts[:5]]
    tokens = Ragged.from_lengths(torch.tensor(list(chain.from_iterable(rows))), [len(row) for row in rows])
    model = TextModel(loop.model, "causal", layer)
    behind = torch.randint(4, 44, (5, 3), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        prompt = read_prompts(model, tokens, fill=0)
        found = model.read_on(prompt.padded, prompt.cache if known else None, behind).states
        for number, row in enumerate(rows):
            whole = torch.tensor([*row, *behind[number].tolist()])[None]
            hidden = loop.model.base_model(whole, output_hidden_states=True, use_cache=False)
            states = hidden.last_hidden_state if layer == -1 else hidden.hidden_states[layer]
            wanted = states[0, len(row) - 1 : len(row) + 2]
            torch.testing.assert_close(found[number], wanted, atol=1e-5, rtol=1e-5)


def test_settings_that_forbid_to_repeat_the_prompt_know_the_prompt(models: Models, texts: list[str]) -> None:
    loop = PlainLoop(models("bart"))
    ids = torch.tensor(loop.tokenizer(" ".join(texts[:3]))["input_ids"])
    settings = {"max_new_tokens": 12, "encoder_no_repeat_ngram_size": 1, "pad_token_id": 0, "eos_token_id": 3}
    with torch.inference_mode():
        prompt = read_prompts(TextModel(loop.model, "encoder-decoder"), Ragged.from_lengths(ids, [len(ids)]), fill=0)
        generated = loop.model.generate(**prompt.arguments(), **settings)
        free = loop.model.generate(**prompt.arguments(), **settings | {"encoder_no_repeat_ngram_size": 0})
        plain = loop.model.generate(input_ids=ids[None], **settings)
    assert generated.tolist() == plain.tolist() != free.tolist()
