"""Checks that a person would make: copies of training texts, data in two roles, texts of other lengths."""

import random
import warnings

import numpy as np
import pytest

from apood import KNN, TextDetector, TextEncoder
from apood.pipeline.checks import warn_of_lengths, warn_of_misuse
from apood.pipeline.copies import decode_sketches, encode_sketches, find_copies, read_texts, sketch_texts
from apood.pipeline.facts import Facts
from apood.pipeline.seen import Seen
from apood.support.errors import DataWarning
from apood.tokens.source import Subset

WORDS = [f"w{i}" for i in range(2000)]


@pytest.fixture(scope="module")
def long_texts():
    dice = random.Random(0)
    return [" ".join(dice.choices(WORDS, k=60)) for _ in range(200)]


def test_copies_are_found_and_other_texts_are_not(long_texts):
    known, new = long_texts[:100], long_texts[100:]
    assert find_copies(sketch_texts(known), sketch_texts(known)).all()
    assert not find_copies(sketch_texts(new), sketch_texts(known)).any()
    near = [f"{text.upper()}!  And w1" for text in known]  # other letters, other spaces, a few words more
    assert find_copies(sketch_texts(near), sketch_texts(known)).mean() > 0.9
    halves = [f"{' '.join(a.split()[:30])} {' '.join(b.split()[:30])}" for a, b in zip(known, new, strict=True)]
    assert find_copies(sketch_texts(halves), sketch_texts(known)).mean() < 0.05
    assert find_copies(sketch_texts(["", "!", "one"]), sketch_texts(["!", "two", ""])).tolist() == [True, True, False]


def test_sketches_are_kept_as_text(long_texts):
    sketches = sketch_texts(long_texts)
    assert (decode_sketches(encode_sketches(sketches)) == sketches).all()
    many = np.arange(8 * 20_000, dtype=np.uint32).reshape(-1, 8)
    assert decode_sketches(encode_sketches(many)).shape == (10_000, 8)


def test_texts_are_read_from_any_source(models, texts):
    batch = TextEncoder(models("bert"), max_tokens=8).encode(texts)
    assert read_texts(batch) == texts and len(batch) > len(texts)
    chosen = Subset(batch, slice(0, 1))
    assert read_texts(chosen) == texts[:1]


def test_calibration_texts_that_are_training_texts_are_named(models, texts):
    detector = TextDetector(models("bert"), KNN(k=1)).fit(texts)
    with pytest.warns(DataWarning, match=r"\d+ of 100 calibration texts are copies of training texts"):
        detector.calibrate(texts[:100])


def test_other_lengths_are_named(models):
    encoder = TextEncoder(models("bert"))
    short, long = (encoder.encode([" ".join(["word1"] * n)] * 50) for n in (3, 20))
    with pytest.warns(DataWarning, match="50 of 50 ID texts are shorter than 99% of the texts that set the threshold"):
        warn_of_lengths(short, Seen.of(long), "ID")
    with pytest.warns(DataWarning, match="longer than 99%"):
        warn_of_lengths(long, Seen.of(short), "ID")


def test_ordinary_data_get_no_warning(models, texts):
    batch = TextEncoder(models("bert")).encode(texts)
    facts = Facts.of_fit(batch.select(slice(150))).after_calibration(batch.select(slice(150, 300)), 0.95)
    long_enough = [i for i, text in enumerate(texts) if i >= 150 and len(text.split()) > 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_misuse(batch.select(long_enough), facts, "ID")


def test_facts_survive_a_round_trip(models, texts):
    batch = TextEncoder(models("bert")).encode(texts)
    facts = Facts.of_fit(batch).after_calibration(batch, 0.9)
    again = Facts.from_json(facts.to_json())
    assert again == facts and (again.sketches == facts.sketches).all()
    for damaged in ({"training": {}}, {"sketches": "@"}, {"texts": 3}, {"other": 1}):
        with pytest.raises((ValueError, TypeError)):
            Facts.from_json(damaged)
