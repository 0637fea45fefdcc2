"""Every way to use the commands badly ends with one sentence that says what is wrong, before any work."""

import json
import shutil

import pytest
import torch

from apood.tokens.batch import TokenBatch
from apood.tokens.writer import TokenStoreWriter


def make_store(folder, sequences, **options):
    with TokenStoreWriter(folder, dim=sequences[0].shape[1], **options) as writer:
        writer.append(TokenBatch.from_sequences(sequences))
    return folder


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fti"], "No such command 'fti'"),
        (["fit"], "Missing argument 'STORE'; see `apood fit --help`."),
        (["fit", "store"], "Missing option '--out'"),
        (["methods", "--jsn"], "No such option"),
        (["embed", "a.txt", "--model", "m", "--out", "o", "--limit", "0"], "--limit"),
        (["embed", "a.txt", "--model", "m", "--out", "o", "--dtype", "int8"], "--dtype"),
        (["embed", "no.txt", "--model", "m", "--out", "o"], "There is no file 'no.txt'."),
        (["embed", ".", "--model", "m", "--out", "o"], "'.' is a folder: give the files in it, as in '*.jsonl'."),
        (["embed", "-", "-", "--model", "m", "--out", "o"], "Standard input (-) can be read only once"),
        (["embed", "-", "--model", "m", "--out", "o"], "There is no text in '-'."),
        (["fit", "no", "--out", "o", "--method", "magic"], "There is no method 'magic'; there are ap-ood, "),
        (["fit", "no", "--out", "o"], "There is no token store 'no': nothing is at that path."),
        (["fit", "a.txt", "--out", "o"], "a.txt is no token store: it is not a folder."),
        (["fit", "no", "--out", "o", "--method", "knn", "--aux", "x"], "leave out --aux."),
        (["fit", "no", "--out", "o", "--method", "knn", "--set", "k"], "--set takes key=value, got 'k'."),
        (
            ["fit", "no", "--out", "o", "--method", "knn", "--set", "kk=3"],
            "The method knn has no parameter 'kk' (did you mean 'k'?): there are k=5, normalize=pooled.",
        ),
        (["fit", "no", "--out", "o", "--method", "KNN"], "There is no method 'KNN' (did you mean 'knn'?); there are "),
        (
            ["fit", "no", "--out", "o", "--method", "knn", "--set", "normalize=token"],
            "normalize must be tokens or pooled or none, got 'token' (did you mean 'tokens'?).",
        ),
        (["datasets", "xsun"], "There is no data set 'xsun' (did you mean 'xsum'?) among those of the paper"),
        (["embed", "xsun:train", "--model", "m", "--out", "o"], "no file 'xsun:train' (did you mean 'xsum'?)."),
        (["fit", "no", "--out", "o", "--method", "length", "--set", "k=3"], "has no parameter 'k': it has none."),
        (["fit", "no", "--out", "o", "--method", "knn", "--set", "k=x"], "k must be a whole number, got 'x'."),
        (["fit", "no", "--out", "o", "--method", "knn", "--set", "k=0"], "k must be at least 1, got 0."),
        (["fit", "no", "--out", "o", "--method", "knn", "--set", "k=1", "--set", "k=2"], "'k' is set twice."),
        (["calibrate", "no", "store"], "There is no detector 'no': nothing is at that path."),
        (["calibrate", "a.txt", "store"], "a.txt is not a saved detector: it is not a folder."),
        (["calibrate", ".", "store"], ". is not a saved detector: it has no config.json."),
        (["score", "no", "store"], "There is no detector 'no'"),
        (["score", "no", "store", "--out", "scores.xml"], "allowed are .jsonl, .csv, .parquet."),
        (["evaluate", "no", "--id", "i", "--ood", "o"], "--ood takes NAME=STORE, got 'o'."),
        (["evaluate", "no", "--id", "i", "--ood", "o="], "--ood takes NAME=STORE, got 'o='."),
        (["evaluate", "no", "--id", "i", "--ood", "o=a", "--ood", "o=b"], "Two OOD sets are called 'o'"),
        (["evaluate", "no", "--id", "i", "--ood", "mean=a"], "An OOD set cannot be called 'mean'"),
        (["evaluate", "no", "--id", "i", "--ood", "o=a", "--json", "--markdown"], "Choose one"),
        (["inspect", "no"], "There is no token store or detector 'no': nothing is at that path."),
        (["inspect", "."], ". is neither a token store (no index.json) nor a saved detector (no config.json)."),
        (["bench", "toy", "--seed", "-1"], "--seed"),
        (["bench", "toy", "--out", "a.txt"], "Nothing can be written to a.txt/results.json: its folder cannot"),
        (["demo", "--out", "a.txt"], "Nothing can be written to a.txt/detector: its folder cannot be made"),
    ],
)
def test_bad_usage(refused, arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("word1\n")
    assert sentence in refused(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_embed_refuses_a_missing_field_before_it_loads_the_model(refused, files, tmp_path):
    sentence = refused("embed", files / "test.jsonl", "--field", "body", "--model", "none", "--out", tmp_path / "o")
    assert "has no field 'body': there are 'text', 'number'; --field says which to read." in sentence


def test_embed_refuses_a_folder_without_a_model(refused, files, tmp_path):
    sentence = refused("embed", files / "test.jsonl", "--model", files, "--out", tmp_path / "o")
    assert "has no config.json" in sentence


def test_embed_refuses_to_resume_with_other_texts(refused, stores, model, files, tmp_path):
    store = shutil.copytree(stores / "test", tmp_path / "store")
    sentence = refused("embed", files / "other.jsonl", "--model", model, "--out", store, "--resume")
    assert "can be resumed only with the records it was begun with" in sentence


def test_embed_refuses_to_resume_with_a_smaller_limit(apood, refused, stores, model, files, tmp_path):
    store = shutil.copytree(stores / "test", tmp_path / "store")
    command = ("embed", files / "test.jsonl", "--model", model, "--out", store, "--resume", "--limit")
    assert refused(*command, 7) == (
        f"The token store {store} holds 40 texts already, more than --limit 7: to resume it, the limit must be at "
        "least 40, or left out."
    )
    assert "40 were there before" in apood(*command, 40).stdout


def test_fit_replaces_a_detector_only_when_forced(apood, refused, fitted, stores, tmp_path):
    out = shutil.copytree(fitted, tmp_path / "detector")
    command = ("fit", stores / "train", "--out", out, "--method", "length")
    assert "There is already a detector" in refused(*command)
    assert "replace it with --force" in refused(*command)
    apood(*command, "--force")
    assert json.loads(apood("inspect", out, "--json").stdout)["method"] == "length"


def test_fit_never_replaces_what_is_no_detector(refused, model, stores, tmp_path):
    out = shutil.copytree(model, tmp_path / "model")  # it has a config.json, too
    before = sorted(path.name for path in out.iterdir())
    assert "is not just a saved detector" in refused("fit", stores / "train", "--out", out, "--force")
    assert sorted(path.name for path in out.iterdir()) == before


def test_fit_refuses_a_place_that_cannot_be_written(refused, stores, files):
    sentence = refused("fit", stores / "train", "--out", files / "train.jsonl" / "detector")
    assert sentence.startswith("Nothing can be written to ")


def test_fit_refuses_empty_sequences_and_other_dimensions(refused, stores, tmp_path):
    empty = make_store(tmp_path / "empty", [torch.ones(2, 16), torch.ones(0, 16)])
    assert "Sequence 1 of the ID data has no tokens" in refused("fit", empty, "--out", tmp_path / "o")
    narrow = make_store(tmp_path / "narrow", [torch.ones(2, 3)])
    sentence = refused("fit", stores / "train", "--aux", narrow, "--out", tmp_path / "o")
    assert "The AUX tokens have D=3, the ID tokens have D=16." in sentence


@pytest.mark.parametrize(
    ("method", "channel", "cure"),
    [
        ("perplexity", "token_logprobs", "for causal language models, and in --mode output or reference."),
        ("entropy", "sample_logprobs", "with --samples, for models that generate."),
        ("msp", "logits", "for classifiers."),
    ],
)
def test_fit_says_where_a_channel_comes_from(refused, stores, tmp_path, method, channel, cure):
    told = refused("fit", stores / "train", "--method", method, "--out", tmp_path / "o")
    assert told.startswith(
        f"The method {method} needs {channel}, which the token store {stores / 'train'} lacks; it has"
    )
    assert "tokens, input_ids, text: `apood embed` stores it" in told and told.endswith(cure)


def test_calibrate_refuses_a_rate_that_makes_no_sense(refused, fitted, stores):
    assert "accept must lie strictly between 0 and 1" in refused("calibrate", fitted, stores / "test", "--accept", 1)
    sentence = refused("calibrate", fitted, stores / "test", "--accept", 0.99)
    assert sentence == "An accept rate of 0.99 needs at least 99 calibration scores, got 40."


def test_score_asks_where_the_encoder_lies(apood, refused, model, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lost = shutil.copytree(model, tmp_path / "lost" / "tiny-bert")
    apood("embed", files / "test.jsonl", "--model", lost, "--out", "store")
    apood("fit", "store", "--method", "knn", "--out", "detector")
    shutil.rmtree(lost)
    sentence = refused("score", "detector", files / "test.jsonl")
    assert "the model 'tiny-bert'" in sentence and "say where the model lies, with model= or --model." in sentence
    apood("score", "detector", files / "test.jsonl", "--model", model)


def test_score_refuses_another_encoder_and_names_both(apood, refused, calibrated, other_model, files):
    sentence = refused("score", calibrated, files / "test.jsonl", "--model", other_model)
    identity = json.loads(apood("inspect", calibrated, "--json").stdout)["encoder"]
    assert "is another encoder than the one asked for" in sentence
    assert identity["fingerprint"][:12] in sentence and sentence.count("fingerprint") == 2


def test_score_refuses_a_store_of_another_encoder(apood, refused, calibrated, other_model, files, tmp_path):
    apood("embed", files / "test.jsonl", "--model", other_model, "--out", tmp_path / "store")
    assert "mahalanobis detector was fitted on (fingerprint " in refused("score", calibrated, tmp_path / "store")


def test_texts_need_a_detector_that_knows_its_encoder(apood, refused, model, files, tmp_path):
    store = make_store(tmp_path / "store", [torch.randn(3, 16, generator=torch.Generator()) for _ in range(5)])
    apood("fit", store, "--method", "length", "--out", tmp_path / "detector")
    sentence = refused("score", tmp_path / "detector", files / "test.jsonl", "--model", model)
    assert "does not say which encoder its tokens came from" in sentence


def test_texts_need_a_detector_of_a_text_encoder(apood, refused, model, files, tmp_path):
    sequences = [torch.randn(3, 16, generator=torch.Generator()) for _ in range(5)]
    store = make_store(tmp_path / "store", sequences, encoder={"model": "protein-lm", "fingerprint": "ab"})
    apood("fit", store, "--method", "length", "--out", tmp_path / "detector")
    for options in ((), ("--model", model)):
        assert refused("score", tmp_path / "detector", files / "test.jsonl", *options) == (
            "The tokens came from model protein-lm, fingerprint ab, which is no encoder of apood, so nothing can be "
            "embedded as they were: give a token store instead."
        )
    apood("score", tmp_path / "detector", store)


def test_score_refuses_a_store_without_sequences(refused, calibrated, tmp_path):
    with TokenStoreWriter(tmp_path / "store", dim=16):
        pass
    sentence = refused("score", calibrated, tmp_path / "store", "--out", tmp_path / "scores.csv")
    assert sentence == f"The token store {tmp_path / 'store'} holds no sequences to score."
    assert not (tmp_path / "scores.csv").exists()


def test_demo_replaces_nothing_but_a_detector(refused, tmp_path):
    foreign = tmp_path / "demo" / "detector"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("mine")
    assert "is not just a saved detector (notes.txt)" in refused("demo", "--out", tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").rglob("*")] == ["detector", "notes.txt"]


def test_score_refuses_a_folder_that_is_no_store(refused, calibrated, files):
    assert "is no token store" in refused("score", calibrated, files)


def test_score_refuses_to_write_onto_a_folder(refused, calibrated, stores, tmp_path):
    (tmp_path / "scores.csv").mkdir()
    sentence = refused("score", calibrated, stores / "test", "--out", tmp_path / "scores.csv")
    assert sentence.endswith("is a folder, but rows are written to a file.")


def test_score_replaces_a_file_only_when_forced(apood, refused, calibrated, stores, tmp_path):
    file = tmp_path / "scores.csv"
    file.write_text("mine")
    command = ("score", calibrated, stores / "test", "--out", file)
    assert refused(*command) == f"There is already a file {file}: choose another name, or replace it with --force."
    assert file.read_text() == "mine"
    apood(*command, "--force")
    assert file.read_text().startswith("index,score,")


def test_evaluate_refuses_a_detector_given_twice(refused, fitted, stores):
    command = ("evaluate", fitted, fitted, "--id", stores / "test", "--ood", f"o={stores / 'other'}")
    assert refused(*command) == "A detector is given twice."


def test_inspect_refuses_damaged_things(refused, stores, fitted, tmp_path):
    store = shutil.copytree(stores / "test", tmp_path / "store")
    shard = next(store.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "its checksum differs" in refused("inspect", store, "--verify")
    detector = shutil.copytree(fitted, tmp_path / "detector")
    (detector / "model.safetensors").write_bytes(b"")
    assert "its sha256 differs" in refused("inspect", detector)
