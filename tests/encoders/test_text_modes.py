"""The modes of TextEncoder, against the models themselves, run on one text at a time."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from plain_loop import PlainLoop
from tiny_models import CAUSAL, ENCODER_DECODER, ENDS, WORDS, word_tokenizer

from apood.data.record import Pair
from apood.encoders.text.encoder import TextEncoder
from apood.support.errors import InputError
from apood.tokens.batch import decode_texts
from apood.tokens.identity import same_encoder

Models = Callable[[str], Path]
GENERATING = (*CAUSAL, *ENCODER_DECODER)
LAST_AND_MIX: list[tuple[str, int | str]] = [(family, layers) for family in GENERATING for layers in (-1, "mix")]
NEW = 9


@pytest.fixture(scope="session")
def few(texts: list[str]) -> list[str]:
    return texts[:12]


@pytest.fixture(scope="session")
def pairs(texts: list[str]) -> list[Pair]:
    return [Pair(source, target) for source, target in zip(texts[:12], texts[40:52], strict=True)]


def close(batch: Any, expected: list[Any]) -> None:
    assert [row.tolist() for row in batch.channels["input_ids"]] == [plain.ids for plain in expected]
    for states, plain in zip(batch, expected, strict=True):
        torch.testing.assert_close(states, plain.states, atol=1e-5, rtol=1e-5)


def mean_losses(batch: Any) -> torch.Tensor:
    return torch.stack([-row.mean() for row in batch.channels["token_logprobs"]])


@pytest.mark.parametrize(
    ("family", "layers"),
    [*LAST_AND_MIX, *((family, layers) for family in ("llama", "t5") for layers in (0, 1, 3, "mix:0,2", "mix:2,3"))],
)
def test_input(models: Models, few: list[str], family: str, layers: int | str) -> None:
    encoder, loop = TextEncoder(models(family), layers=layers, device="cpu"), PlainLoop(models(family), layers)
    batch, expected = encoder.encode(few), [loop.input(text) for text in few]
    close(batch, expected)
    assert ("token_logprobs" in batch.channels) == (family in CAUSAL)
    if family in CAUSAL:
        rows = batch.channels["token_logprobs"]
        assert torch.equal(rows.lengths, batch.lengths - 1)
        for row, plain in zip(rows, expected, strict=True):
            assert (plain.loss is None) == (len(row) == 0)
            if plain.loss is not None:
                assert float(-row.mean()) == pytest.approx(plain.loss, abs=1e-5)


@pytest.mark.parametrize(
    ("family", "layers", "beams"),
    [
        *((family, layers, 1) for family, layers in LAST_AND_MIX),
        ("llama", 1, 1),
        ("t5", 0, 1),
        ("t5", 1, 1),
        ("llama", -1, 3),
        ("t5", -1, 3),
        ("llama", "mix:1,2", 3),
        ("t5", "mix", 3),
    ],
)
def test_output(models: Models, few: list[str], family: str, layers: int | str, beams: int) -> None:
    folder = models(family)
    encoder = TextEncoder(folder, mode="output", layers=layers, beams=beams, max_new_tokens=NEW, device="cpu")
    loop = PlainLoop(folder, layers)
    batch, expected = encoder.encode(few), [loop.output(text, beams, NEW) for text in few]
    close(batch, expected)
    torch.testing.assert_close(
        mean_losses(batch), torch.tensor([plain.loss for plain in expected]), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(batch.channels["token_logprobs"].lengths, batch.lengths)
    shown = [loop.tokenizer.decode(plain.ids, skip_special_tokens=True) for plain in expected]
    assert decode_texts(batch.channels["output_text"]) == shown
    assert decode_texts(batch.channels["text"]) == few


@pytest.mark.parametrize(("family", "layers"), [*LAST_AND_MIX, ("llama", 1), ("t5", 1), ("t5", "mix:0,2")])
def test_reference(models: Models, pairs: list[Pair], family: str, layers: int | str) -> None:
    encoder = TextEncoder(models(family), mode="reference", layers=layers, device="cpu", max_new_tokens=32)
    loop = PlainLoop(models(family), layers)
    batch, expected = encoder.encode(pairs), [loop.reference(*pair) for pair in pairs]
    close(batch, expected)
    torch.testing.assert_close(
        mean_losses(batch), torch.tensor([plain.loss for plain in expected]), atol=1e-5, rtol=1e-5
    )
    assert decode_texts(batch.channels["output_text"]) == [pair.target for pair in pairs]
    assert decode_texts(batch.channels["text"]) == [pair.source for pair in pairs]


def test_outputs_of_random_models_end_early_or_are_cut(models: Models, texts: list[str]) -> None:
    """The tests of outputs rely on outputs that end early and on outputs that are cut."""
    ids = TextEncoder(models("llama"), mode="output", max_new_tokens=NEW, device="cpu").encode(texts)
    rows = [row.tolist() for row in ids.channels["input_ids"]]
    assert {1, 4, NEW} <= {len(row) for row in rows}
    assert all(row[-1] in ENDS or len(row) == NEW for row in rows)
    assert not any(token in ENDS for row in rows for token in row[:-1])
    assert any(row[-1] not in ENDS for row in rows)


@pytest.mark.parametrize(
    ("family", "side", "mode"),
    [("gpt2", "left", "input"), ("llama", "right", "output"), ("t5", "left", "input"), ("t5", "left", "output")],
)
def test_the_padding_side_of_the_tokenizer_does_not_matter(
    models: Models, few: list[str], tmp_path: Path, family: str, side: str, mode: Any
) -> None:
    folder = shutil.copytree(models(family), tmp_path / family)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = tokenizer.truncation_side = side
    tokenizer.save_pretrained(folder)
    loop = PlainLoop(folder)
    batch = TextEncoder(folder, mode=mode, max_new_tokens=NEW, device="cpu").encode(few)
    close(batch, [loop.input(text) if mode == "input" else loop.output(text, 1, NEW) for text in few])


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_one_text_is_a_batch_too(models: Models, family: str) -> None:
    encoder = TextEncoder(models(family), mode="output", max_new_tokens=4, samples=2, device="cpu")
    batch = encoder.encode(["word1"])
    close(batch, [PlainLoop(models(family)).output("word1", 1, 4)])
    assert len(encoder.encode([])) == 0


def test_an_output_that_ends_at_once_has_the_state_of_its_end(models: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(models("marian"), tmp_path / "marian")
    model = transformers.MarianMTModel.from_pretrained(folder)
    model.final_logits_bias[0, 3] = 100
    model.save_pretrained(folder)
    batch = TextEncoder(folder, mode="output", device="cpu").encode(["word1 word2", "word3"])
    assert batch.lengths.tolist() == [1, 1]
    assert batch.channels["input_ids"].values.tolist() == [3, 3]
    assert batch.channels["token_logprobs"].values.tolist() == pytest.approx([0, 0], abs=1e-3)
    assert decode_texts(batch.channels["output_text"]) == ["", ""]
    bare = TextEncoder(folder, mode="output", special_tokens=False, device="cpu").encode(["word1 word2", "word3"])
    assert bare.lengths.tolist() == [0, 0]
    assert bare.channels["token_logprobs"].lengths.tolist() == [1, 1]


def test_texts_without_tokens_have_no_output(models: Models) -> None:
    """Llama's tokenizer adds none here, BART's two."""
    empty = ["", " \n", "word1"]
    llama = TextEncoder(models("llama"), mode="output", samples=2, max_new_tokens=3, device="cpu").encode(empty)
    assert (llama.lengths > 0).tolist() == [False, False, True]
    assert llama.channels["sample_logprobs"].lengths.tolist() == [0, 0, 2]
    assert decode_texts(llama.channels["output_text"])[:2] == ["", ""]
    assert bool((TextEncoder(models("bart"), mode="output", device="cpu").encode(empty).lengths > 0).all())
    pairs = [Pair("", "word1 word2"), Pair("word1", ""), Pair("word1", "word2")]
    held = TextEncoder(models("llama"), mode="reference", max_new_tokens=9, device="cpu").encode(pairs)
    assert held.lengths.tolist() == [0, 0, 1]
    assert TextEncoder(models("bart"), mode="reference", device="cpu").encode(pairs).lengths.tolist() == [4, 2, 3]


@pytest.mark.parametrize("options", [{"mode": "output"}, {"mode": "reference"}, {"samples": 2}])
def test_an_output_must_leave_room_for_the_text(models: Models, options: dict[str, Any]) -> None:
    assert TextEncoder(models("llama"), max_new_tokens=62, device="cpu", **options).max_tokens == 2
    with pytest.raises(InputError, match=r"63 tokens .*'llama'.* 64 tokens"):
        TextEncoder(models("llama"), max_new_tokens=63, device="cpu", **options)


def test_special_tokens_can_be_left_out(models: Models, few: list[str]) -> None:
    whole, bare = (
        TextEncoder(models("bert"), special_tokens=kept, device="cpu").encode([*few, "unheard-of"])
        for kept in (True, False)
    )
    assert torch.equal(bare.lengths, whole.lengths - 2)
    assert bare.channels["input_ids"].sequence(-1).tolist() == [1]  # an unknown word is a word
    for states, all_states in zip(bare, whole, strict=True):
        assert torch.equal(states, all_states[1:-1])


def test_special_tokens_left_out_of_outputs_keep_their_log_probabilities(models: Models, pairs: list[Pair]) -> None:
    whole, bare = (
        TextEncoder(models("bart"), mode="reference", special_tokens=kept, device="cpu").encode(pairs)
        for kept in (True, False)
    )
    assert torch.equal(bare.lengths, whole.lengths - 2)
    assert torch.equal(bare.channels["token_logprobs"].values, whole.channels["token_logprobs"].values)
    for states, all_states in zip(bare, whole, strict=True):
        assert torch.equal(states, all_states[1:-1])


def test_a_template_goes_around_every_text(models: Models) -> None:
    folder = models("bert")
    template = "word1 {text} word2"
    batch = TextEncoder(folder, template=template, device="cpu").encode(["word3 {text}", ""])
    plain = TextEncoder(folder, device="cpu").encode(["word1 word3 {text} word2", "word1 word2"])
    assert torch.equal(batch.values, plain.values)
    assert decode_texts(batch.channels["text"]) == ["word3 {text}", ""]


def test_cutting_keeps_the_end_of_the_template(models: Models) -> None:
    encoder = TextEncoder(models("bert"), template="word1 {text} word2 word3", max_tokens=8, on_long="beginning")
    batch = encoder.encode([" ".join(WORDS[4:9]), " ".join(WORDS[4:7]), "word9"])
    assert encoder.truncated == 1
    pieces = [encoder.pieces(row) for row in batch.channels["input_ids"]]
    assert "".join(pieces[0]) == "[A] word1 word4 word5 word6 word2 word3 [B]"
    assert pieces[0] == pieces[1]


def test_long_sources_and_targets_are_cut_and_counted_once_per_pair(models: Models) -> None:
    encoder = TextEncoder(models("bart"), mode="reference", max_tokens=6, max_new_tokens=5, device="cpu")
    long, short = " ".join(WORDS[:9]), "word1"
    batch = encoder.encode([Pair(long, long), Pair(short, long), Pair(long, short), Pair(short, short)])
    assert encoder.truncated == 3
    assert batch.lengths.tolist() == [5, 5, 3, 3]
    assert batch.channels["input_ids"].sequence(0).tolist()[-1] == 3  # the end of the target is kept


def test_a_causal_prompt_leaves_room_for_the_output(models: Models) -> None:
    encoder = TextEncoder(models("gpt2"), mode="output", max_new_tokens=20, device="cpu")
    assert (encoder.max_tokens, encoder.max_new_tokens) == (44, 20)
    encoder.encode([" ".join(WORDS * 3)])
    assert encoder.truncated == 1
    assert TextEncoder(models("gpt2"), device="cpu").max_tokens == 64
    assert TextEncoder(models("bart"), mode="output", max_new_tokens=100, device="cpu").max_new_tokens == 64


def test_the_models_own_settings_apply_to_its_output(
    models: Models, few: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(models("pegasus"), tmp_path / "pegasus")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"no_repeat_ngram_size": 1, "do_sample": True, "temperature": 5.0, "num_beams": 4, "max_length": 5}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    encoder = TextEncoder(folder, mode="output", max_new_tokens=NEW, device="cpu")
    capfd.readouterr()
    batch = encoder.encode(few)
    assert capfd.readouterr() == ("", "")  # no warning about settings that contradict each other
    for row in batch.channels["input_ids"]:
        assert len(set(row.tolist())) == len(row)
    assert torch.equal(batch.values, encoder.encode(few).values)
    close(batch, [PlainLoop(folder).output(text, 1, NEW) for text in few])
    unset = TextEncoder(models("pegasus"), mode="output", max_new_tokens=NEW, device="cpu")
    assert not same_encoder(unset.identity, encoder.identity)
    inputs = [TextEncoder(path, device="cpu").identity for path in (folder, models("pegasus"))]
    assert same_encoder(*inputs)


def test_the_identity_holds_all_that_changes_the_states(models: Models) -> None:
    folder = models("t5")
    plain = TextEncoder(folder, device="cpu").identity
    assert set(plain) == {"model", "revision", "layers", "mode", "max_tokens", "on_long", "fingerprint", "folder"}
    assert same_encoder(plain, TextEncoder(folder, logprobs=False, samples=2, device="cpu").identity)
    output = {"mode": "output", "device": "cpu"}
    others: list[dict[str, Any]] = [
        {"device": "cpu", "template": "word1 {text}"},
        {"device": "cpu", "special_tokens": False},
        output,
        {"mode": "reference", "device": "cpu"},
        {**output, "beams": 2},
        {**output, "max_new_tokens": 5},
    ]
    identities = [plain, *(TextEncoder(folder, **options).identity for options in others)]
    for place, one in enumerate(identities):
        assert not any(same_encoder(one, other) for other in identities[:place])


def refused(model: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        TextEncoder(model, **{"device": "cpu", **options})
    return str(error.value)


def test_modes_that_a_model_cannot_do_are_refused(models: Models, tmp_path: Path) -> None:
    message = refused(models("bert"), mode="output")
    assert "'bert' (BertModel)" in message and "no mode output" in message
    assert "no mode reference" in refused(models("bert_classifier"), mode="reference")
    assert "no samples" in refused(models("roberta"), samples=3)
    headless = tmp_path / "headless"
    transformers.AutoModel.from_pretrained(models("llama")).save_pretrained(headless)
    word_tokenizer().save_pretrained(headless)
    assert "(LlamaModel)" in refused(headless, mode="output")
    assert "token_logprobs" not in TextEncoder(headless, device="cpu").encode(["word1 word2"]).channels


def test_bad_arguments_of_modes_are_refused(models: Models) -> None:
    t5 = models("t5")
    assert "mode must be one of" in refused(t5, mode="both")
    assert "got 2 in mode input" in refused(t5, beams=2)
    assert "max_new_tokens must be at least 1" in refused(t5, mode="output", max_new_tokens=0)
    assert "samples must be a whole number" in refused(t5, samples=1.5)
    assert "{text} exactly once" in refused(t5, template="Summarise:")
    assert "{text} exactly once" in refused(t5, template="{text} {text}")
    assert "special tokens and tokens of the template" in refused(t5, template="word1 word2 {text}", max_tokens=3)
    assert "Layer 3 of 'bart' does not exist" in refused(models("bart"), mode="output", layers=3)


@pytest.mark.parametrize("given", [["word1"], [Pair("word1", 5)], [("word1", "word2")]])
def test_other_items_than_pairs_are_refused(models: Models, given: Any) -> None:
    with pytest.raises(InputError, match="index 0"):
        TextEncoder(models("t5"), mode="reference", device="cpu").encode(given)


def test_a_decoder_without_a_start_token_is_refused(models: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(models("t5"), tmp_path / "t5")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decoder_start_token_id": None}))
    assert "decoder_start_token_id" in refused(folder, mode="reference")


def test_a_template_needs_a_tokenizer_that_can_keep_its_end(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    assert "cannot keep ' b'" in refused(tmp_path, template="a {text} b")
    assert TextEncoder(tmp_path, template="a {text}", device="cpu").encode(["b"]).lengths.tolist() == [4]
