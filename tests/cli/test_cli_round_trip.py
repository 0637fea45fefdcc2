"""From texts to decisions and figures: the commands give the results of the library."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from apood.detectors.contract.artefact import load_detector
from apood.detectors.knn import KNN
from apood.encoders.text.encoder import TextEncoder
from apood.evaluation.result import compute_mean_row, compute_rows
from apood.fitting.curve import TrainingCurve
from apood.tokens.batch import decode_texts
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter


def read_rows(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def write_csv(path, texts):
    path.write_text("number,body\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)), encoding="utf-8")


def test_embed_writes_every_text_in_order(apood, model, files, texts, tmp_path):
    inputs = [files / "train.jsonl", files / "other.jsonl"]
    result = apood("embed", *inputs, "--model", model, "--out", tmp_path / "store")
    store = TokenStore(tmp_path / "store")
    assert decode_texts(store.select(slice(None)).channels["text"]) == texts["train"] + texts["other"]
    assert store.dim == 16 and store.dtype == torch.float16 and store.encoder["model"] == "tiny-bert"
    assert result.stdout.startswith("Embedded 160 texts") and f"{store.tokens:,} tokens of D=16" in result.stdout


def test_embed_options_reach_the_encoder(apood, model, texts, tmp_path):
    write_csv(tmp_path / "texts.csv", texts["test"])
    out = tmp_path / "store"
    result = apood(
        "embed", tmp_path / "texts.csv", "--field", "body", "--model", model, "--out", out, "--max-tokens", 5,
        "--layers", 1, "--dtype", "float32", "--limit", 7, "--on-long", "beginning",
    )  # fmt: skip
    store = TokenStore(out)
    assert len(store) == 7 and store.dtype == torch.float32 and int(store.lengths.max()) == 5
    assert store.encoder["layers"] == "1" and store.encoder["max_tokens"] == 5
    long = sum(len(text.split()) > 5 for text in texts["test"][:7])
    assert f"{long} cut at 5 tokens" in result.stdout


def test_embed_resumes_only_when_asked(apood, refused, model, files, tmp_path):
    command = ("embed", files / "test.jsonl", "--model", model, "--out", tmp_path / "store")
    apood(*command)
    assert "add --resume" in refused(*command)
    result = apood(*command, "--resume")
    assert "Embedded 0 texts" in result.stdout and "40 were there before" in result.stdout


def test_score_gives_the_scores_of_the_library_for_a_store(apood, calibrated, stores):
    rows = read_rows(apood("score", calibrated, stores / "other"))
    detector, tokens = load_detector(calibrated), TokenStore(stores / "other")
    assert [row["index"] for row in rows] == list(range(40))
    assert [row["score"] for row in rows] == detector.score_samples(tokens).tolist()
    assert [row["p_value"] for row in rows] == detector.p_values(tokens).tolist()
    decisions = [{"ID": 1, "OOD": -1}[row["decision"]] for row in rows]
    assert decisions == detector.predict(tokens).tolist() and -1 in decisions


def test_score_gives_no_decision_without_a_threshold(apood, fitted, stores):
    assert set(read_rows(apood("score", fitted, stores / "other"))[0]) == {
        "index", "score", "tokens", "windows", "truncated", "note"
    }  # fmt: skip


def assert_same_rows(rows, expected):
    """Compare rows, except for the rounding of tokens in a store."""
    assert [row.keys() for row in rows] == [row.keys() for row in expected]
    for column, tolerance in (("index", 0), ("score", 0.01), ("p_value", 0.05)):
        assert [row[column] for row in rows] == pytest.approx([row[column] for row in expected], rel=tolerance)


def test_texts_have_the_scores_of_their_store(apood, calibrated, model, files, texts, stores, tmp_path):
    expected = read_rows(apood("score", calibrated, stores / "other"))
    lines = "\n".join(texts["other"]) + "\n"
    write_csv(tmp_path / "texts.csv", texts["other"])
    for arguments, stdin in [
        ([files / "other.jsonl"], None),
        ([tmp_path / "texts.csv", "--field", "body"], None),
        (["-"], lines),
        (["-", "--json", "--out", "-"], (files / "other.jsonl").read_text()),
    ]:
        assert_same_rows(read_rows(apood("score", calibrated, *arguments, "--model", model, input=stdin)), expected)


def test_the_encoder_is_found_in_its_old_folder_or_by_its_name(apood, model, files, stores, tmp_path, monkeypatch):
    before = shutil.copytree(model, tmp_path / "before" / "tiny-bert")
    apood("embed", files / "train.jsonl", "--model", before, "--out", tmp_path / "store")
    apood("fit", tmp_path / "store", "--method", "length", "--out", tmp_path / "detector")
    expected = read_rows(apood("score", tmp_path / "detector", stores / "other"))
    expected = [row | {"truncated": False} for row in expected]  # a store does not say it
    assert read_rows(apood("score", tmp_path / "detector", files / "other.jsonl")) == expected
    shutil.rmtree(before)
    monkeypatch.chdir(model.parent)
    assert read_rows(apood("score", tmp_path / "detector", files / "other.jsonl")) == expected


def test_an_empty_text_gives_one_warning(apood, calibrated, model):
    result = apood("score", calibrated, "-", "--model", model, input="word1 word2\n\nword3\n")
    assert read_rows(result)[1] == {
        "index": 1,
        "score": None,
        "p_value": 1 / 61,
        "decision": "OOD",
        "tokens": 0,
        "windows": 1,
        "truncated": False,
        "note": "It is empty.",
    }
    assert (
        result.stderr.startswith("Warning: 1 of 3 inputs are empty or have no tokens")
        and result.stderr.count("\n") == 1
    )


def test_a_text_of_white_space_is_empty_even_if_its_tokenizer_adds_tokens(apood, model, files, tmp_path):
    marked = shutil.copytree(model, tmp_path / "marked")
    tokenizer = json.loads((marked / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[PAD]", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"[PAD]": {"id": "[PAD]", "ids": [0], "tokens": ["[PAD]"]}},
    }
    (marked / "tokenizer.json").write_text(json.dumps(tokenizer))
    store, detector = tmp_path / "store", tmp_path / "detector"
    apood("embed", files / "train.jsonl", "--model", marked, "--out", store)
    apood("fit", store, "--method", "mahalanobis", "--out", detector)
    apood("calibrate", detector, store, "--accept", "0.9")
    result = apood("score", detector, "-", input="word1 word2\n\n \n\t \u3000\nword3\n")
    assert read_rows(result)[1] == {
        "index": 1,
        "score": None,
        "p_value": 1 / 121,
        "decision": "OOD",
        "tokens": 1,
        "windows": 1,
        "truncated": False,
        "note": "It is empty.",
    }
    assert [row["score"] is None for row in read_rows(result)] == [False, True, True, True, False]
    assert result.stderr.startswith("Warning: 3 of 5 inputs are empty")


def test_empty_texts_of_all_windows_give_one_warning(apood, calibrated, model, monkeypatch):
    monkeypatch.setattr("apood.encoders.embed._PORTION_SEQUENCES", 2)
    result = apood("score", calibrated, "-", "--model", model, input="word1 word2\n\nword3\n\nword4\n")
    assert [row["score"] is None for row in read_rows(result)] == [False, True, False, True, False]
    assert (
        result.stderr.startswith("Warning: 2 of 5 inputs are empty or have no tokens")
        and result.stderr.count("\n") == 1
    )


@pytest.mark.parametrize("layer", [-1, 1])
def test_a_detector_from_before_layers_could_be_mixed_scores_texts_with_its_layer(apood, model, files, tmp_path, layer):
    store = tmp_path / "store"
    apood("embed", files / "test.jsonl", "--model", model, "--out", store, "--layers", layer, "--dtype", "float32")
    tokens = TokenStore(store).select(slice(None))
    old = {("layer" if key == "layers" else key): value for key, value in tokens.encoder.items()} | {"layer": layer}
    detector = KNN(k=1).fit(replace(tokens, encoder=old))
    detector.save(tmp_path / "detector")
    assert "layers" not in load_detector(tmp_path / "detector").encoder_
    expected = pytest.approx(detector.score_samples(tokens).tolist(), rel=1e-3)
    for inputs in (files / "test.jsonl", store):
        assert [row["score"] for row in read_rows(apood("score", tmp_path / "detector", inputs))] == expected


def test_texts_with_tokens_too_large_for_float16_are_scored(apood, model, files, tmp_path):
    from transformers import BertModel

    large = shutil.copytree(model, tmp_path / "large")
    bert = BertModel.from_pretrained(large)
    with torch.no_grad():
        bert.encoder.layer[-1].output.LayerNorm.weight.fill_(1e6)
    bert.save_pretrained(large)
    store, detector = tmp_path / "store", tmp_path / "detector"
    options = ("--layers", -1, "--dtype", "bfloat16")
    apood("embed", files / "train.jsonl", "--model", large, "--out", store, *options)
    assert TokenStore(store).select([0]).values.abs().max() > torch.finfo(torch.float16).max
    apood("fit", store, "--method", "mahalanobis", "--out", detector)
    scores = [row["score"] for row in read_rows(apood("score", detector, files / "train.jsonl", "--model", large))]
    assert scores == pytest.approx(load_detector(detector).score_samples(TokenStore(store)).tolist(), rel=0.1)


def test_embed_fit_and_calibrate_as_json(apood, model, files, stores, tmp_path):
    store, detector = tmp_path / "store", tmp_path / "detector"
    result = apood(
        "embed",
        files / "test.jsonl",
        "--model",
        model,
        "--out",
        store,
        "--max-tokens",
        5,
        "--on-long",
        "beginning",
        "--json",
    )
    held = TokenStore(store)
    assert json.loads(result.stdout) == {
        "records": 40,
        "sequences": 40,
        "long": 0,
        "tokens": held.tokens,
        "truncated": sum(len(line.split()) > 5 for line in decode_texts(held.select(slice(None)).channels["text"])),
        "empty": 0,
        "skipped": 0,
        "bad": 0,
        "first_bad": [],
        "outputs_cut": 0,
        "store": str(store),
    }
    printed = json.loads(apood("fit", stores / "train", "--method", "knn", "--out", detector, "--json").stdout)
    assert printed == {"method": "knn", "sequences": 120, "detector": str(detector)}
    printed = json.loads(apood("calibrate", detector, stores / "held-out", "--accept", 0.8, "--json").stdout)
    assert printed == {"threshold": load_detector(detector).threshold_, "accept": 0.8, "sequences": 60}
    command = ("fit", stores / "train", "--method", "ap-ood", "--set", "steps=5", "--out", tmp_path / "ap-ood")
    printed = json.loads(apood(*command, "--json").stdout)
    assert (
        printed["method"] == "ap-ood" and printed["mean_distance_"] == load_detector(tmp_path / "ap-ood").mean_distance_
    )


def test_calibrate_refuses_empty_sequences(refused, fitted, model, tmp_path):
    load_detector(fitted).save(tmp_path / "detector")
    encoder = TextEncoder(model)
    with TokenStoreWriter(tmp_path / "store", dim=16, encoder=encoder.identity) as writer:
        writer.append(encoder.encode(["word1 word2"] * 16 + [""] * 4))
    sentence = refused("calibrate", tmp_path / "detector", tmp_path / "store", "--accept", 0.9)
    assert sentence.startswith("4 of 20 calibration sequences have no tokens, the first is sequence 16; remove")
    assert not hasattr(load_detector(tmp_path / "detector"), "threshold_")


def test_calibrate_prints_and_saves_the_threshold(apood, fitted, stores, tmp_path):
    detector = load_detector(fitted)
    detector.save(tmp_path / "detector")
    result = apood("calibrate", tmp_path / "detector", stores / "held-out", "--accept", 0.8)
    detector.calibrate(TokenStore(stores / "held-out"), 0.8)
    assert load_detector(tmp_path / "detector").threshold_ == detector.threshold_
    assert f"Threshold {detector.threshold_:.6g}, from 60 sequences" in result.stdout


@pytest.fixture(scope="module")
def evaluation(stores):
    return ("--id", stores / "test", "--ood", f"other={stores / 'other'}", "--ood", f"again={stores / 'held-out'}")


def test_evaluate_gives_the_rows_of_the_library_and_their_means(apood, calibrated, fitted, stores, evaluation):
    rows = json.loads(apood("evaluate", calibrated, fitted, *evaluation, "--json").stdout)
    sets = {"other": TokenStore(stores / "other"), "again": TokenStore(stores / "held-out")}
    expected = []
    for detector in (load_detector(calibrated), load_detector(fitted)):
        id_scores = detector.score_samples(TokenStore(stores / "test"))
        own = compute_rows(detector.name, id_scores, {name: detector.score_samples(s) for name, s in sets.items()})
        expected += [*own, compute_mean_row(own)]
    decisions = [(row.pop("id_accepted"), row.pop("ood_refused")) for row in rows]
    assert rows == expected
    refused = 100 * (load_detector(calibrated).predict(sets["other"]) == -1).mean()
    assert decisions[0][1] == pytest.approx(refused) and decisions[2][1] is None  # a mean over sets is no share
    assert decisions[3:] == [(None, None)] * 3  # the other detector has no threshold
    assert rows[0]["auroc"] > 70  # the two kinds of texts do differ


def test_evaluate_shows_tables(apood, calibrated, fitted, evaluation):
    table = apood("evaluate", calibrated, fitted, *evaluation).stdout
    assert all(word in table for word in ("mahalanobis", "knn", "other", "again", "mean"))
    markdown = apood("evaluate", calibrated, fitted, *evaluation, "--markdown").stdout
    assert markdown.startswith("| method | other | again | mean |")


def test_detectors_of_one_method_are_named_by_their_folders(apood, fitted, stores, evaluation, tmp_path):
    apood("fit", stores / "train", "--method", "knn", "--set", "k=1", "--out", tmp_path / "nearest")
    rows = json.loads(apood("evaluate", fitted, tmp_path / "nearest", *evaluation, "--json").stdout)
    assert [row["method"] for row in rows] == ["knn"] * 3 + ["nearest"] * 3


def test_inspect_a_store(apood, stores, texts):
    facts = json.loads(apood("inspect", stores / "train", "--json", "--verify").stdout)
    lengths = [len(text.split()) for text in texts["train"]]
    assert facts["kind"] == "store" and facts["verified"] is True
    assert facts["sequences"] == 120 and facts["tokens"] == sum(lengths) and facts["dim"] == 16
    assert facts["dtype"] == "float16" and facts["shards"] == 1
    assert facts["lengths"] == {"min": min(lengths), "median": np.median(lengths), "max": max(lengths)}
    assert facts["channels"] == {
        "input_ids": "int32",
        "sentences": "float32 of shape [17]",
        "summary": "float32 of shape [16]",
        "text": "uint8",
        "window": "int32",
    }
    assert facts["encoder"]["model"] == "tiny-bert"
    assert facts["bytes"] == sum(file.stat().st_size for file in (stores / "train").glob("*.safetensors"))
    assert "float16" in apood("inspect", stores / "train").stdout


def test_inspect_a_detector(apood, calibrated, fitted):
    facts = json.loads(apood("inspect", calibrated, "--json").stdout)
    detector = load_detector(calibrated)
    assert facts["kind"] == "detector" and facts["method"] == "mahalanobis" and facts["dim"] == 16
    assert facts["parameters"] == detector.get_params()
    sinks = {"skips_first_": False, "skips_last_": False}
    assert facts["learnt"] == {"mean_": [16], "whitening_": [16, 16]} | sinks
    assert facts["encoder"] == detector.encoder_
    calibration = {"threshold": detector.threshold_, "accept": 0.9, "sequences": 60, "documents": 60}
    assert calibration.items() <= facts["calibration"].items()
    assert json.loads(apood("inspect", fitted, "--json").stdout)["calibration"] is None
    assert "mahalanobis" in apood("inspect", calibrated).stdout


@pytest.mark.parametrize("queries", [1, 3])
def test_inspect_shows_the_settings_that_ap_ood_was_trained_with(apood, stores, tmp_path, queries):
    settings = [f"--set={name}" for name in (f"queries={queries}", "steps=23", "sharpness=1.5")]
    apood("fit", stores / "train", "--method", "ap-ood", *settings, "--out", tmp_path / "detector")
    detector = load_detector(tmp_path / "detector")
    heads = len(detector.prototype_)
    assert heads > 1 and detector.beta_ > 0
    expected = {"method": "ap-ood", "heads": heads, "queries": queries, "beta": detector.beta_, "steps": 23}
    assert json.loads(apood("inspect", tmp_path / "detector", "--json").stdout)["trained"] == [expected]
    line = f"{heads} heads, {queries} {'query' if queries == 1 else 'queries'} per head, β {detector.beta_:.4g}"
    assert f"ap-ood: {line}, 23 steps" in " ".join(apood("inspect", tmp_path / "detector").stdout.split())

    detector.training_curve_ = TrainingCurve()  # as of detectors that were saved before it was kept
    detector.save(tmp_path / "old")
    assert json.loads(apood("inspect", tmp_path / "old", "--json").stdout)["trained"] == [expected | {"steps": None}]
    assert " ".join(apood("inspect", tmp_path / "old").stdout.split()).endswith(f"ap-ood: {line}")


def test_inspect_says_nothing_of_a_training_where_there_was_none(apood, fitted):
    assert json.loads(apood("inspect", fitted, "--json").stdout)["trained"] == []
    assert "trained" not in apood("inspect", fitted).stdout


def test_inspect_shows_learnt_numbers(apood, stores, tmp_path):
    apood("fit", stores / "train", "--method", "length", "--out", tmp_path / "length")
    learnt = json.loads(apood("inspect", tmp_path / "length", "--json").stdout)["learnt"]
    sinks = {"skips_first_": False, "skips_last_": False}
    assert learnt == {"mean_log_length_": load_detector(tmp_path / "length").mean_log_length_} | sinks
