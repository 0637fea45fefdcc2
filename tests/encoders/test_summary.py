"""The channel `summary`: the mean of the layers that tokens are not made of, from the same pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CAUSAL, ENCODER_DECODER, FAMILIES

from apood.data.record import Pair
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import reopen_encoder
from apood.encoders.text.encoder import TextEncoder
from apood.encoders.text.generation import read_prompts
from apood.tokens.identity import same_encoder
from apood.tokens.store import TokenStore

Models = Callable[[str], Path]


def expect_rows(batch: Any, *, sink: bool) -> list[torch.Tensor]:
    """Return the mean states of the sequences of a batch of the other view."""
    return [(states[1:] if sink and len(states) > 1 else states).mean(0, keepdim=True) for states in batch]


@pytest.mark.parametrize(("layers", "other"), [("mix", -1), ("mix:0,2", -1), (-1, "mix"), (1, "mix")])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_summary_is_the_mean_of_the_other_view(
    models: Models, texts: list[str], family: str, layers: Any, other: Any
) -> None:
    batch = TextEncoder(models(family), layers=layers, device="cpu").encode(texts[:40])
    found, wanted = (
        batch.channels["summary"],
        TextEncoder(models(family), layers=other, device="cpu").encode(texts[:40]),
    )
    assert found.values.dtype == torch.float32 and found.lengths.tolist() == [1] * 40
    for row, expected in zip(found, expect_rows(wanted, sink=family in CAUSAL), strict=True):
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", ["output", "reference"])
@pytest.mark.parametrize("layers", ["mix", -1])
@pytest.mark.parametrize("family", ["llama", "gpt2", "t5", "marian"])
def test_summaries_of_outputs_and_targets(
    models: Models, texts: list[str], family: str, layers: Any, mode: Any
) -> None:
    items = [Pair(a, b) for a, b in zip(texts[:20], texts[40:60], strict=True)] if mode == "reference" else texts[:20]
    options: dict[str, Any] = {"mode": mode, "max_new_tokens": 9, "device": "cpu"}
    batch = TextEncoder(models(family), layers=layers, **options).encode(items)
    wanted = TextEncoder(models(family), layers=-1 if layers == "mix" else "mix", **options).encode(items)
    for row, expected in zip(batch.channels["summary"], expect_rows(wanted, sink=False), strict=True):
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-5)


def test_only_kept_tokens_count_and_a_sequence_without_any_has_no_summary(models: Models) -> None:
    texts = ["word1 word2", "", "word3"]
    bert = TextEncoder(models("bert"), layers=-1, special_tokens=False, device="cpu").encode(texts)
    mixed = TextEncoder(models("bert"), layers="mix", special_tokens=False, device="cpu").encode(texts)
    assert mixed.channels["summary"].lengths.tolist() == [1, 0, 1]
    torch.testing.assert_close(mixed.channels["summary"].sequence(0)[0], bert.sequence(0).mean(0))
    # The first token of GPT-2's texts is special here, so it is left out already.
    last = TextEncoder(models("gpt2"), layers=-1, special_tokens=False, device="cpu").encode(texts)
    mixed = TextEncoder(models("gpt2"), layers="mix", special_tokens=False, device="cpu").encode(texts)
    torch.testing.assert_close(mixed.channels["summary"].sequence(0)[0], last.sequence(0).mean(0))
    assert len(TextEncoder(models("llama"), device="cpu").encode([]).channels["summary"]) == 0
    assert TextEncoder(models("llama"), device="cpu").encode([""]).channels["summary"].lengths.tolist() == [0]


@pytest.mark.parametrize("layers", ["mix", -1])
@pytest.mark.parametrize("family", ["bert", "llama", *ENCODER_DECODER])
def test_a_summary_does_not_depend_on_neighbours(models: Models, texts: list[str], family: str, layers: Any) -> None:
    encoder = TextEncoder(models(family), layers=layers, device="cpu")
    together = encoder.encode(texts[:60]).channels["summary"]
    turned = encoder.encode(texts[:60][::-1]).channels["summary"]
    for index in (0, 13, 59):
        alone = encoder.encode([texts[index]]).channels["summary"].values
        torch.testing.assert_close(together.sequence(index), alone, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(turned.sequence(59 - index), alone, atol=1e-6, rtol=1e-5)


def test_no_tokens_change_and_no_pass_is_added(models: Models, texts: list[str]) -> None:
    with_summary, without = (TextEncoder(models("llama"), summary=summary, device="cpu") for summary in (True, False))
    assert same_encoder(with_summary.identity, without.identity)
    passes = []
    with_summary._pass.model.model.base_model.register_forward_pre_hook(lambda *_: passes.append(1))
    first, second = with_summary.encode(texts[:20]), without.encode(texts[:20])
    assert torch.equal(first.values, second.values)
    assert "summary" not in second.channels
    assert len(passes) == len(list(with_summary.batches(with_summary.prepare(texts[:20]))))


def test_a_store_keeps_summaries_and_an_encoder_is_reopened_with_them(
    models: Models, texts: list[str], tmp_path: Path
) -> None:
    encoder = TextEncoder(models("bert"), device="cpu")
    embed_to_store(texts[:10], encoder, tmp_path / "store")
    held = TokenStore(tmp_path / "store").select(slice(None)).channels["summary"]
    torch.testing.assert_close(held.values, encoder.encode(texts[:10]).channels["summary"].values)
    assert "summary" in reopen_encoder(encoder.identity, channels={"summary"}).encode(["word1"]).channels
    assert "summary" not in reopen_encoder(encoder.identity).encode(["word1"]).channels


@pytest.mark.parametrize("layers", ["mix", -1])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_pass_that_generation_uses_gives_the_same_summary(
    models: Models, texts: list[str], family: str, layers: Any
) -> None:
    encoder = TextEncoder(models(family), layers=layers, logprobs=False, device="cpu")
    sources = encoder.prepare(texts[:9]).sources
    with torch.inference_mode():
        prompt = read_prompts(encoder._pass.model, sources, fill=0)  # a causal model's are padded on the left
        found = encoder._pass.compute_input(prompt, sources)["summary"]
        some = encoder._pass.compute_input(prompt.select([7, 2]), sources.select([7, 2]))["summary"]
    expected = encoder.encode(texts[:9]).channels["summary"].values
    torch.testing.assert_close(found.values, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(some.values, expected[[7, 2]], atol=1e-5, rtol=1e-5)
