"""`apood embed` and `apood score` on raw inputs: options, bad records and errors."""

import json
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from processes import Program

from apood.detectors.contract.artefact import load_detector
from apood.encoders.text.encoder import TextEncoder
from apood.tokens.batch import decode_texts
from apood.tokens.store import TokenStore


def rows_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def texts_in(folder):
    return decode_texts(TokenStore(folder).select(slice(None)).channels["text"])


@pytest.fixture(scope="module")
def language_model(tmp_path_factory, model):
    """A tiny random Llama with the words of the other model."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def bad_lines(tmp_path, texts):
    """A file with seven bad lines among good ones."""
    lines = [json.dumps({"text": text}) for text in texts["test"][:10]]
    for place in (9, 7, 6, 5, 3, 2, 1):
        lines.insert(place, '{"text": ' if place % 2 else '{"txt": "word1"}')
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "bad.jsonl"


def test_a_bad_record_loses_nothing_before_it(apood, refused, model, bad_lines, texts, tmp_path):
    command = ("embed", bad_lines, "--model", model, "--out", tmp_path / "store")
    sentence = refused(*command)
    assert sentence.startswith(f"Line 2 of '{bad_lines}' is not valid JSON")
    assert "--skip-bad" in sentence and sentence.endswith(
        f"; 1 text is in {tmp_path / 'store'}; add --resume to the same command to continue."
    )
    assert refused(*command, "--resume").endswith(
        f"; 1 text is in {tmp_path / 'store'}; run the same command again to continue."
    )
    result = apood(*command, "--resume", "--skip-bad")
    assert texts_in(tmp_path / "store") == texts["test"][:10]
    assert "Embedded 9 texts" in result.stdout and "1 was there before, 7 bad ones skipped" in result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == 6 and all(line.startswith("Skipped: ") for line in lines)
    assert (
        "has no field 'text' (did you mean 'txt'?): there are 'txt'" in lines[1]
        and lines[-1] == "Skipped: 2 more records."
    )


def test_the_store_counts_what_was_cut_and_skipped(apood, model, bad_lines, texts, tmp_path):
    out = tmp_path / "store"
    message = json.loads(
        apood(
            "embed",
            bad_lines,
            "--model",
            model,
            "--out",
            out,
            "--skip-bad",
            "--max-tokens",
            5,
            "--on-long",
            "beginning",
            "--json",
        ).stdout
    )
    cut = sum(len(text.split()) > 5 for text in texts["test"][:10])
    assert (message["sequences"], message["truncated"], message["bad"], len(message["first_bad"])) == (10, cut, 7, 5)
    facts = json.loads(apood("inspect", out, "--json").stdout)
    assert facts["tally"] == {"sequences": 10, "truncated": cut, "bad": 7}


@pytest.mark.parametrize("content", ["", " \t"])
def test_an_empty_text_is_a_bad_record(apood, refused, model, tmp_path, content):
    (tmp_path / "texts.txt").write_text(f"word1 word2\n{content}\nword3\n")
    command = ("embed", tmp_path / "texts.txt", "--model", model, "--out", tmp_path / "store")
    assert "Line 2 of" in refused(*command)
    message = apood(*command, "--resume", "--skip-bad").stdout
    assert message.startswith("Embedded 1 text into") and message.endswith(
        "1 token of D=16, 1 was there before, 1 bad one skipped.\n"
    )
    assert texts_in(tmp_path / "store") == ["word1 word2", "word3"]


def test_bytes_that_are_not_utf8_are_a_bad_record(apood, refused, model, tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"word1\nword2 \xff\nword3\n")
    command = ("embed", tmp_path / "texts.txt", "--model", model, "--out", tmp_path / "store")
    assert "UTF-8" in refused(*command)
    assert apood(*command, "--resume", "--skip-bad").stderr.startswith("Skipped: ")
    assert texts_in(tmp_path / "store") == ["word1", "word3"]


def test_limit_and_shuffle(apood, model, files, texts, tmp_path):
    command = ("embed", files / "test.jsonl", "--model", model, "--shuffle")
    for name, options in {"a": (), "b": ("--seed", 0), "c": ("--seed", 1), "d": ("--limit", 7)}.items():
        apood(*command, *options, "--out", tmp_path / name)
    a, b, c, d = (texts_in(tmp_path / name) for name in "abcd")
    assert a == b != c and sorted(a) == sorted(c) == sorted(texts["test"]) and d == a[:7]
    assert "7 were there before" in apood(*command, "--out", tmp_path / "d", "--resume").stdout
    assert texts_in(tmp_path / "d") == a


def test_options_of_output_reach_the_encoder(apood, language_model, files, texts, tmp_path):
    out = tmp_path / "store"
    apood(
        "embed", files / "test.jsonl", "--model", language_model, "--out", out, "--mode", "output", "--limit", 5,
        "--max-new-tokens", 6, "--beams", 2, "--samples", 3, "--seed", 4, "--template", "word1 {text}",
        "--no-logprobs", "--dtype", "float32",
    )  # fmt: skip
    encoder = TextEncoder(
        language_model, mode="output", max_new_tokens=6, beams=2, samples=3, seed=4, template="word1 {text}",
        logprobs=False,
    )  # fmt: skip
    expected, held = encoder.encode(texts["test"][:5]), TokenStore(out).select(slice(None))
    assert held.encoder == encoder.identity and held.channels.keys() == expected.channels.keys()
    assert torch.equal(held.offsets, expected.offsets)
    torch.testing.assert_close(held.values, expected.values)
    assert torch.equal(held.channels["input_ids"].values, expected.channels["input_ids"].values)
    torch.testing.assert_close(held.channels["sample_logprobs"].values, expected.channels["sample_logprobs"].values)
    assert "token_logprobs" not in held.channels


def test_outputs_that_were_cut_are_counted(apood, language_model, files, tmp_path):
    """The outputs of this model never end by themselves."""
    command = ("embed", files / "test.jsonl", "--model", language_model, "--limit", 5, "--max-new-tokens", 3)
    out = tmp_path / "store"
    assert "5 outputs of --max-new-tokens tokens" in apood(*command, "--mode", "output", "--out", out).stdout
    message = json.loads(apood(*command, "--samples", 1, "--out", tmp_path / "inputs", "--json").stdout)
    assert message["outputs_cut"] == 0


def test_an_interrupted_store_is_reported(apood, refused, model, bad_lines, tmp_path):
    store, detector = tmp_path / "store", tmp_path / "detector"
    command = ("embed", bad_lines, "--model", model, "--out", store)
    refused(*command)
    sentence = f"The token store {store} is not complete: writing stopped after 1 sequence"
    assert sentence in apood("inspect", store).stdout.replace("\n", " ")
    assert json.loads(apood("inspect", store, "--json").stdout)["complete"] is False
    fit = ("fit", store, "--method", "length", "--out", detector, "--force")
    for other in (fit, ("score", detector, store)):
        assert apood(*other).stderr.startswith(f"Warning: {sentence}")
    apood(*command, "--resume", "--skip-bad")
    assert "not complete" not in apood("inspect", store).stdout
    assert json.loads(apood("inspect", store, "--json").stdout)["complete"] is True
    assert apood(*fit).stderr == ""


@pytest.fixture(scope="module")
def pairs(texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    both = zip(texts["train"], texts["held-out"], strict=False)
    path.write_text("".join(json.dumps({"de": a, "en": b}) + "\n" for a, b in both))
    return path


def test_a_detector_of_references_scores_pairs(apood, refused, language_model, pairs, tmp_path):
    fields = ("--field", "de", "--target-field", "en")
    command = (
        "embed",
        pairs,
        "--model",
        language_model,
        "--mode",
        "reference",
        "--dtype",
        "float32",
        "--max-new-tokens",
        30,
    )
    apood(*command, *fields, "--out", tmp_path / "store")
    store = TokenStore(tmp_path / "store")
    assert store.encoder["mode"] == "reference" and "output_text" in store.channels
    for method in ("mahalanobis", "perplexity"):
        apood("fit", tmp_path / "store", "--method", method, "--out", tmp_path / method)
        rows = rows_of(apood("score", tmp_path / method, pairs, *fields))
        expected = load_detector(tmp_path / method).score_samples(store)
        np.testing.assert_allclose([row["score"] for row in rows], expected, rtol=1e-4)
    assert "does not say where its targets are" in refused("score", tmp_path / "mahalanobis", pairs, "--field", "de")


def test_a_detector_of_samples_draws_them_with_the_same_settings(apood, language_model, files, tmp_path):
    command = ("embed", files / "test.jsonl", "--model", language_model, "--samples", 2, "--max-new-tokens", 3)
    apood(*command, "--seed", 5, "--out", tmp_path / "store")
    apood("fit", tmp_path / "store", "--method", "entropy", "--out", tmp_path / "entropy")
    of_store, of_texts = (
        [row["score"] for row in rows_of(apood("score", tmp_path / "entropy", given))]
        for given in (tmp_path / "store", files / "test.jsonl")
    )
    assert len(of_store) == 40
    np.testing.assert_allclose(of_texts, of_store, rtol=1e-4)


def test_a_text_without_predicted_tokens_is_reported(apood, language_model, files, tmp_path):
    apood("embed", files / "train.jsonl", "--model", language_model, "--out", tmp_path / "store")
    apood("fit", tmp_path / "store", "--method", "perplexity", "--out", tmp_path / "perplexity")
    result = apood("score", tmp_path / "perplexity", "-", input="word1\nword1 word2\n")
    assert [row["score"] is None for row in rows_of(result)] == [True, False]
    assert result.stderr.startswith("Warning: 1 of 2 inputs are empty or have no token_logprobs")


def test_an_encoder_is_reproduced_with_all_its_settings(apood, language_model, files, tmp_path):
    options = ("--layers", 1, "--template", "word1 {text} word2", "--max-tokens", 9, "--dtype", "float32")
    apood("embed", files / "train.jsonl", "--model", language_model, "--out", tmp_path / "store", *options)
    apood("fit", tmp_path / "store", "--method", "mahalanobis", "--out", tmp_path / "detector")
    rows = rows_of(apood("score", tmp_path / "detector", files / "train.jsonl"))
    expected = load_detector(tmp_path / "detector").score_samples(TokenStore(tmp_path / "store"))
    np.testing.assert_allclose([row["score"] for row in rows], expected, rtol=1e-4)


def test_rows_keep_the_numbers_of_their_records(apood, refused, calibrated, bad_lines):
    message = refused("score", calibrated, bad_lines)
    assert "is not valid JSON" in message and "--skip-bad" in message
    result = apood("score", calibrated, bad_lines, "--skip-bad")
    good = [number for number, line in enumerate(bad_lines.read_text().splitlines()) if '"text": "' in line]
    assert [row["index"] for row in rows_of(result)] == good and len(good) == 10
    assert result.stderr.count("Skipped: ") == 6


def test_the_error_of_a_bad_first_record_has_a_remedy(refused, model, calibrated, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": \n{"text": "word1"}\n')
    out = tmp_path / "store"
    message = refused("embed", bad, "--model", model, "--out", out)
    assert "Line 1 of" in message and "--skip-bad" in message
    assert not out.exists()
    assert "--skip-bad" in refused("score", calibrated, bad)
    bad.write_text('{"body": "word1"}\n')
    for command in (("embed", bad, "--model", model, "--out", out), ("score", calibrated, bad)):
        message = refused(*command)
        assert message.endswith("has no field 'text': there are 'body'; name it with --field.")
    message = refused("embed", bad, "--model", model, "--out", out, "--mode", "reference", "--target-field", "en")
    assert message.endswith("; name it with --field and --target-field.")


def test_a_file_without_fields_refuses_a_field(apood, refused, model, tmp_path):
    (tmp_path / "a.txt").write_text("word1\n")
    command = ("embed", tmp_path / "a.txt", "--model", model, "--out", tmp_path / "store", "--field")
    message = refused(*command, "body")
    assert message == f"'{tmp_path / 'a.txt'}' has one text per line, so there is no field 'body'."
    command_of_stdin = ("embed", "-", "--model", model, "--out", tmp_path / "store", "--field", "body")
    assert refused(*command_of_stdin, input="word1\n").startswith("Standard input has one text per line")
    apood(*command, "text")


def test_a_missing_model_folder_is_refused(refused, files, tmp_path):
    for name in (str(tmp_path / "nope"), "./nope", "../nope", "~/nope"):
        message = refused("embed", files / "test.jsonl", "--model", name, "--out", tmp_path / "store")
        assert message == f"There is no folder '{name}'."


def test_score_refuses_input_without_any_good_record(refused, calibrated, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    sentence = refused("score", calibrated, tmp_path / "bad.jsonl", "--skip-bad")
    assert "None of the 2 records can be used" in sentence and "--field" in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--target-field", "en"], "--target-field is for --mode reference"),
        (["--mode", "reference", "--beams", "2"], "--beams is for --mode output, but the mode is reference"),
        (["--max-new-tokens", "2"], "--max-new-tokens is for --mode output"),
        (["--seed", "2"], "--seed is for --shuffle or --samples"),
        (["--mode", "outputs"], "--mode"),
        (["--mode", "output"], "no mode output"),
        (["--samples", "2"], "no samples"),
        (["--logprobs"], "no logprobs in mode input"),
        (["--mode", "reference"], "does not say where its targets are"),
        (["--layers", "9"], "Layer 9 of 'tiny-bert' does not exist: allowed are -3 to 2."),
        (["--layers", "mix:1,9"], "Layer 9 of 'tiny-bert' does not exist: allowed are -3 to 2."),
        (["--layers", "1,2"], "layers must be auto, mix, the number of a layer, or several"),
        (["--layers", "mix:"], "layers must be auto, mix, the number of a layer, or several"),
        (["--template", "no place"], "{text}"),
    ],
)
def test_options_that_do_not_fit(refused, model, files, tmp_path, options, sentence):
    out = tmp_path / "store"
    assert sentence in refused("embed", files / "test.jsonl", "--model", model, "--out", out, *options)
    assert not out.exists()


@pytest.fixture(scope="module")
def audio_model(tmp_path_factory):
    from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification

    folder = tmp_path_factory.mktemp("models") / "tiny-ast"
    config = ASTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, patch_size=8,
        frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16, num_labels=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ASTForAudioClassification(config).save_pretrained(folder)
    ASTFeatureExtractor(sampling_rate=16000, num_mel_bins=16, max_length=32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    path = tmp_path_factory.mktemp("sounds") / "sounds.npz"
    noise = 0.1 * np.random.default_rng(0).standard_normal((30, 6000))
    noise[4] = 0
    np.savez(path, audio=noise.astype(np.float32), sr=16000)
    return path


def test_sounds_are_embedded_and_scored(apood, refused, audio_model, sounds, tmp_path):
    command = ("embed", sounds, "--model", audio_model, "--out", tmp_path / "store", "--dtype", "float32")
    assert "is silent" in refused(*command)
    result = apood(*command, "--resume", "--skip-bad")
    assert "Embedded 25 sounds" in result.stdout and "4 were there before, 1 bad one skipped" in result.stdout
    store = TokenStore(tmp_path / "store")
    assert len(store) == 29 and store.channels == ("logits",)
    apood("fit", tmp_path / "store", "--method", "mahalanobis", "--out", tmp_path / "detector")
    (tmp_path / "x.mp3").write_bytes(b"ID3")
    message = refused("score", tmp_path / "detector", tmp_path / "x.mp3")
    assert "x.mp3" in message and ".wav, .flac, .npz" in message
    (tmp_path / "none").mkdir()
    message = refused("score", tmp_path / "detector", tmp_path / "none")
    assert "index.json" in message and ".wav or .flac" in message
    rows = rows_of(apood("score", tmp_path / "detector", sounds, "--skip-bad"))
    assert [row["index"] for row in rows] == [i for i in range(30) if i != 4]
    expected = load_detector(tmp_path / "detector").score_samples(store)
    np.testing.assert_allclose([row["score"] for row in rows], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-tokens", "5"], "no option max_tokens"),
        (["--mode", "output"], "no mode output, only input"),
        (["--field", "text"], "--field is for texts"),
    ],
)
def test_options_that_are_not_for_sounds(refused, audio_model, sounds, tmp_path, options, sentence):
    assert sentence in refused("embed", sounds, "--model", audio_model, "--out", tmp_path / "store", *options)
    assert not (tmp_path / "store").exists()


def test_the_model_must_be_for_the_inputs(refused, audio_model, model, sounds, files, calibrated, tmp_path):
    texts = files / "test.jsonl"
    assert f"takes sounds, and '{texts}' has none" in refused(
        "embed", texts, "--model", audio_model, "--out", tmp_path / "o"
    )
    assert f"takes texts, but '{sounds}' holds sounds" in refused(
        "embed", sounds, "--model", model, "--out", tmp_path / "o"
    )
    assert f"takes texts, but '{sounds}' holds sounds" in refused("score", calibrated, sounds)


def test_a_hub_that_cannot_be_reached(refused, files, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    command = ("embed", files / "test.jsonl", "--model", "nobody/nothing", "--out", tmp_path / "store")
    sentence = refused(*command)
    assert "'nobody/nothing'" in sentence and "local folder" in sentence


def test_a_killed_command_is_resumed(apood, model, files, texts, tmp_path):
    """Kill the program while it waits for more records. The store holds what it had committed."""
    out = tmp_path / "store"
    with Program("embed", "-", "--model", model, "--out", out, OMP_NUM_THREADS="1") as program:
        program.stdin.write(f"{texts['test'][0]}\n")
        program.stdin.flush()
        while not (out / "index.json").exists():
            assert program.is_running(), program.stderr.read()
            time.sleep(0.02)
        program.signal(signal.SIGKILL)
    apood("embed", files / "test.jsonl", "--model", model, "--out", out, "--resume")
    whole = tmp_path / "whole"
    apood("embed", files / "test.jsonl", "--model", model, "--out", whole)
    assert (out / "index.json").read_bytes() == (whole / "index.json").read_bytes()
    shutil.rmtree(out)
