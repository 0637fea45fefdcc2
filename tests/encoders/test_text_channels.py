"""The channels that come with the states: log-probabilities, samples, class logits, and detectors that read them."""

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plain_loop import PlainLoop, pick_states
from tiny_models import ENDS, word_tokenizer

from apood.detectors.entropy import Entropy
from apood.detectors.logits import MSP
from apood.detectors.perplexity import Perplexity
from apood.encoders.embed import embed_to_store
from apood.encoders.text import model as module
from apood.encoders.text.encoder import TextEncoder
from apood.encoders.text.generation import Generator, draw_numbers, read_prompts
from apood.encoders.text.model import TextModel
from apood.support.errors import InputError
from apood.tokens.batch import Ragged
from apood.tokens.store import TokenStore

Models = Callable[[str], Path]


@pytest.fixture
def prompts() -> Ragged:
    return Ragged.from_lengths(torch.tensor([4, 9, 12, 30, 7, 6, 3], dtype=torch.int32), [4, 1, 2])


def text_model(folder: Path) -> TextModel:
    loop = PlainLoop(folder)
    return TextModel(loop.model, "causal" if loop.causal else "encoder-decoder")


@pytest.mark.parametrize("family", ["llama", "opt", "t5", "bart"])
def test_samples_have_the_log_probabilities_that_the_model_gives_them(
    models: Models, prompts: Ragged, family: str
) -> None:
    model = text_model(models(family))
    with torch.inference_mode():
        generator = Generator(model.model, 6, 1, fill=0)
        tokens, logprobs = generator.sample(read_prompts(model, prompts, 0), draw_numbers(prompts, 5, 6, seed=3))
    assert len(tokens) == len(logprobs) == 15
    assert len({tuple(row.tolist()) for row in tokens}) > 6
    assert set(tokens.lengths.tolist()) > {6}
    loop = PlainLoop(models(family))
    for index, (ids, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        assert int(ids[-1]) in ENDS or len(ids) == 6
        plain = loop.of(prompts.sequence(index // 5)[None].long(), ids.tolist())
        assert float(logprob) == pytest.approx(-plain.loss * len(ids), abs=1e-4)


def test_samples_follow_the_models_distribution(models: Models, tmp_path: Path) -> None:
    """Compare the first tokens of many samples with their probabilities; generation settings must not matter."""
    folder = shutil.copytree(models("gpt2"), tmp_path / "gpt2")
    model: Any = transformers.GPT2LMHeadModel.from_pretrained(folder)
    model.generation_config.update(
        top_k=2, temperature=0.1, do_sample=True, repetition_penalty=3.0, suppress_tokens=[4, 5, 6]
    )
    loaded = TextModel(model, "causal")
    one = Ragged.from_lengths(torch.tensor([5, 9], dtype=torch.int32), [2])
    with torch.inference_mode():
        probability = model(torch.tensor([[5, 9]])).logits[0, -1].softmax(0)
        numbers = draw_numbers(one, 20_000, 1, seed=0)
        tokens, _ = Generator(model, 1, 1, fill=0).sample(read_prompts(loaded, one, 0), numbers)
    share = torch.bincount(tokens.values, minlength=44) / 20_000
    assert float((share - probability).abs().max()) < 0.012


@pytest.mark.parametrize(("family", "mode"), [("llama", "input"), ("t5", "output")])
def test_samples_are_seeded_and_leave_the_random_numbers_alone(
    models: Models, texts: list[str], family: str, mode: Any
) -> None:
    def rows(seed: int, times: int = 1) -> torch.Tensor:
        encoder = TextEncoder(models(family), mode=mode, samples=3, seed=seed, max_new_tokens=5, device="cpu")
        return [encoder.encode(texts[:20]) for _ in range(times)][-1].channels["sample_logprobs"].values

    before = torch.get_rng_state()
    first = rows(0)
    assert first.shape == (60, 2)
    assert torch.equal(first, rows(0, times=2))  # earlier samples do not matter
    assert not torch.equal(first, rows(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_entropy_of_a_store_is_that_of_all_outputs(models: Models, tmp_path: Path) -> None:
    """All outputs of at most two tokens, 44 * 44, can be listed."""
    text, most = "word1 word2 word3", 2
    encoder = TextEncoder(models("marian"), mode="output", samples=4000, max_new_tokens=most, device="cpu")
    embed_to_store([text, text], encoder, tmp_path / "store")
    store = TokenStore(tmp_path / "store")
    samples = store.select([0]).channels["sample_logprobs"].values.double()
    scores = Entropy().fit(store).score_samples(store)
    assert scores[0] == pytest.approx(float((samples[:, 0] / samples[:, 1]).mean()), rel=1e-5)
    weights = samples[:, 0].softmax(0)
    published = Entropy(temperature=1.0).fit(store).score_samples(store)
    assert published[0] == pytest.approx(float((weights * samples[:, 0] / samples[:, 1]).sum()), rel=1e-5)

    loop = PlainLoop(models("marian"))
    ids = torch.tensor([loop.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        starts = torch.tensor([[0]])
        first = loop.model(ids, decoder_input_ids=starts).logits[0, 0].double().log_softmax(0)
        after = torch.stack([torch.tensor([0, token]) for token in range(44)])
        second = loop.model(ids.expand(44, -1), decoder_input_ids=after).logits[:, 1].double().log_softmax(1)
    true = sum(float(first[token].exp() * first[token]) for token in ENDS)
    for one, two in itertools.product([token for token in range(44) if token not in ENDS], range(44)):
        log_probability = float(first[one] + second[one, two])
        true += math.exp(log_probability) * log_probability / 2
    assert scores[0] == pytest.approx(true, abs=4 * float((samples[:, 0] / samples[:, 1]).std()) / math.sqrt(4000))


def test_perplexity_uses_the_log_probabilities(models: Models, texts: list[str]) -> None:
    for mode, family in (("input", "gpt_neox"), ("output", "bart")):
        batch = TextEncoder(models(family), mode=mode, max_new_tokens=5, device="cpu").encode(texts[:20])  # type: ignore[arg-type]
        long = batch.select(batch.channels["token_logprobs"].lengths > 0)
        scores = Perplexity().fit(long).score_samples(long)
        expected = [float(row.double().mean()) for row in long.channels["token_logprobs"]]
        assert scores.tolist() == pytest.approx(expected, rel=1e-6)


def test_log_probabilities_can_be_left_out(models: Models) -> None:
    for family, mode in (("llama", "input"), ("llama", "output"), ("t5", "reference")):
        encoder = TextEncoder(models(family), mode=mode, logprobs=False, max_new_tokens=9, device="cpu")  # type: ignore[arg-type]
        assert "token_logprobs" not in encoder.encode([]).channels


def test_blocks_of_the_vocabulary_change_nothing(models: Models, texts: list[str], monkeypatch: Any) -> None:
    encoder = TextEncoder(models("llama"), device="cpu")
    whole = encoder.encode(texts)
    monkeypatch.setattr(module, "_BLOCK_LOGITS", {"cpu": 44 * 7})
    blocks = encoder.encode(texts)
    torch.testing.assert_close(blocks.channels["token_logprobs"].values, whole.channels["token_logprobs"].values)


def head_variants() -> dict[str, Any]:
    """Models that compute logits from their states in unusual ways."""
    small = {"vocab_size": 44, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.5}  # fmt: skip
    t5 = {"vocab_size": 44, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
          "decoder_start_token_id": 0}  # fmt: skip
    gemma = {"num_key_value_heads": 1, "head_dim": 8, "final_logit_softcapping": 2.0}
    return {
        "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**small, **gemma)),
        "cohere": lambda: transformers.CohereForCausalLM(transformers.CohereConfig(**small, logit_scale=0.3)),
        "granite": lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(**small, logits_scaling=4.0)),
        "untied_t5": lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(**t5, tie_word_embeddings=False)
        ),
        "mt5": lambda: transformers.MT5ForConditionalGeneration(transformers.MT5Config(**t5)),
    }


@pytest.mark.parametrize("name", head_variants())
def test_heads_of_many_kinds(tmp_path: Path, texts: list[str], name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = head_variants()[name]()
    model.save_pretrained(tmp_path)
    word_tokenizer(suffix="[B]", pad_token="[PAD]", eos_token="[B]").save_pretrained(tmp_path)
    model.eval()
    batch = TextEncoder(tmp_path, mode="output", max_new_tokens=5, device="cpu").encode(texts[:5])
    for index, (text, logprobs) in enumerate(zip(texts[:5], batch.channels["token_logprobs"], strict=True)):
        prompt = torch.tensor([word_tokenizer(suffix="[B]")(text)["input_ids"]])
        new = batch.channels["input_ids"].sequence(index).long()[None]
        with torch.no_grad():
            if model.config.is_encoder_decoder:
                loss = model(prompt, labels=new).loss
            else:
                both = torch.cat([prompt, new], 1)
                labels = torch.cat([torch.full_like(prompt, -100), new], 1)
                loss = model(both, labels=labels).loss
        assert float(-logprobs.mean()) == pytest.approx(float(loss), abs=1e-5)


def test_an_unknown_head_is_refused(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = transformers.LlamaForCausalLM.forward

    def scaled(self: Any, *arguments: Any, **options: Any) -> Any:
        output = forward(self, *arguments, **options)
        output.logits = output.logits * 1.1
        return output

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", scaled)
    with pytest.raises(InputError, match=r"LlamaForCausalLM .*logprobs=False"):
        TextEncoder(models("llama"), device="cpu")
    TextEncoder(models("llama"), logprobs=False, device="cpu")


@pytest.mark.parametrize("layers", [-1, 1, "mix"])
def test_a_classifier_gives_logits_beside_its_tokens(models: Models, texts: list[str], layers: int | str) -> None:
    folder = models("bert_classifier")
    batch = TextEncoder(folder, layers=layers, device="cpu").encode(texts)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert batch.channels["logits"].values.shape == (300, 5)
    assert batch.channels["logits"].lengths.tolist() == [1] * 300
    with torch.no_grad():
        for text, logits, states in zip(texts[:20], batch.channels["logits"], batch, strict=False):
            output = model(torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True)
            torch.testing.assert_close(logits, output.logits, atol=1e-5, rtol=1e-5)
            expected = pick_states(output.hidden_states[-1], output.hidden_states, layers)
            torch.testing.assert_close(states, expected[0], atol=1e-5, rtol=1e-5)
    assert len(MSP().fit(batch).score_samples(batch)) == 300


@pytest.mark.parametrize("layers", [-1, "mix"])
@pytest.mark.parametrize("pad", [None, 0])
def test_a_causal_classifier_with_and_without_padding_token(
    models: Models, texts: list[str], tmp_path: Path, pad: int | None, layers: int | str
) -> None:
    config = transformers.AutoConfig.from_pretrained(models("llama"))
    config.pad_token_id, config.num_labels = pad, 3
    model: Any = transformers.LlamaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    batch = TextEncoder(tmp_path, layers=layers, device="cpu").encode(texts[:20])
    with torch.no_grad():
        for text, logits, states in zip(texts[:20], batch.channels["logits"], batch, strict=True):
            output = model(torch.tensor([word_tokenizer()(text)["input_ids"]]))
            torch.testing.assert_close(logits, output.logits, atol=1e-5, rtol=1e-5)
            ids = torch.tensor([word_tokenizer()(text)["input_ids"]])
            inner = model.base_model(ids, output_hidden_states=True)
            expected = pick_states(inner.last_hidden_state, inner.hidden_states, layers)
            torch.testing.assert_close(states, expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [-1, 1, "mix"])
def test_an_encoder_decoder_classifier_gives_its_encoder_and_logits(
    models: Models, texts: list[str], tmp_path: Path, layers: int | str
) -> None:
    config = transformers.AutoConfig.from_pretrained(models("bart"))
    config.num_labels = 3
    model: Any = transformers.BartForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(models("bart"))
    tokenizer.save_pretrained(tmp_path)
    batch = TextEncoder(tmp_path, layers=layers, device="cpu").encode(texts[:20])
    with torch.no_grad():
        for text, logits, states in zip(texts[:20], batch.channels["logits"], batch, strict=True):
            output = model(torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True)
            torch.testing.assert_close(logits, output.logits, atol=1e-5, rtol=1e-5)
            expected = pick_states(output.encoder_last_hidden_state, output.encoder_hidden_states, layers)
            torch.testing.assert_close(states, expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["input", "output"])
@pytest.mark.parametrize("family", ["llama", "t5", "bart"])
def test_a_gpu_gives_the_same_channels(models: Models, texts: list[str], family: str, mode: Any) -> None:
    on_gpu, on_cpu = (
        TextEncoder(models(family), mode=mode, max_new_tokens=5, samples=2, device=device, dtype=torch.float32).encode(
            texts
        )
        for device in ("cuda", "cpu")
    )
    assert torch.equal(on_gpu.offsets, on_cpu.offsets)
    torch.testing.assert_close(on_gpu.values, on_cpu.values, atol=1e-4, rtol=1e-4)
    assert torch.equal(on_gpu.channels["input_ids"].values, on_cpu.channels["input_ids"].values)
    if "token_logprobs" in on_cpu.channels:
        torch.testing.assert_close(
            on_gpu.channels["token_logprobs"].values, on_cpu.channels["token_logprobs"].values, atol=1e-3, rtol=1e-3
        )
    assert on_gpu.channels["sample_logprobs"].values.shape == on_cpu.channels["sample_logprobs"].values.shape
