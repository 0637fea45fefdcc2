"""Checks that a person would make: copies of training texts, data in two roles, texts of other lengths."""

import random

import numpy as np
import pytest

from apood import KNN, TextDetector, TextEncoder, TokenBatch, TokenStore, TokenStoreWriter
from apood.pipeline.checks import describe_misuse
from apood.pipeline.copies import (
    choose_documents,
    decode_sketches,
    encode_sketches,
    find_copies,
    read_texts,
    sketch_texts,
)
from apood.pipeline.facts import Facts
from apood.pipeline.seen import Seen
from apood.support.errors import DataWarning
from apood.tokens.batch import encode_texts
from apood.tokens.documents import make_document_mask
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
    chosen = choose_documents(20_000)
    assert len(np.unique(chosen)) == 10_000 and (np.diff(chosen) > 0).all() and chosen.max() < 20_000


def test_of_many_texts_some_are_compared(long_texts, monkeypatch):
    """Copies are counted as if all training texts were known."""
    monkeypatch.setattr("apood.pipeline.copies._MOST", 50)
    learnt = TokenBatch.without_tokens(text=encode_texts(long_texts))
    mixed = TokenBatch.without_tokens(text=encode_texts([*long_texts[:50], *(f"x{i}" for i in range(50))]))
    facts = Facts.of_fit(learnt)
    assert len(facts.sketches) == 50 and facts.training.documents == 200
    (sentence,) = describe_misuse(mixed, facts, "ID")
    about, count, *_ = sentence.split()
    assert about == "About" and 25 <= int(count) <= 75 and "of 100 ID texts are copies" in sentence


def test_texts_are_read_from_any_source(models, texts, tmp_path):
    batch = TextEncoder(models("bert"), max_tokens=8).encode(texts)
    some = np.array([0, 7, 299])
    assert len(batch) > len(texts) and read_texts(batch, some) == [texts[number] for number in some]
    with TokenStoreWriter(tmp_path, dim=batch.dim, dtype=batch.dtype, shard_bytes=1 << 14) as writer:
        writer.append(batch)
    store = TokenStore(tmp_path)
    assert len(store.index.shards) > 1 and read_texts(store, np.arange(len(texts))) == texts
    later = Subset(store, make_document_mask(store, slice(100, 300)))
    assert read_texts(later, some[:2]) == [texts[100], texts[107]]


def test_calibration_texts_that_are_training_texts_are_named(models, texts):
    detector = TextDetector(models("bert"), KNN(k=1)).fit(texts)
    with pytest.warns(DataWarning, match=r"\d+ of 100 calibration texts are copies of training texts"):
        detector.calibrate(texts[:100])


def test_other_lengths_are_named(models):
    encoder = TextEncoder(models("bert"))
    short, long = (encoder.encode([" ".join(["word1"] * n)] * 50) for n in (3, 20))
    (sentence,) = describe_misuse(short, Facts(calibration=Seen.of(long)), "ID")
    assert sentence.startswith("50 of 50 ID texts are shorter than 99% of the texts that set the threshold")
    (sentence,) = describe_misuse(long, Facts(calibration=Seen.of(short)), "ID")
    assert "longer than 99%" in sentence


def test_ordinary_data_get_no_warning(models, texts):
    batch = TextEncoder(models("bert")).encode(texts)
    facts = Facts.of_fit(batch.select(slice(150))).after_calibration(batch.select(slice(150, 300)), 0.95)
    long_enough = [i for i, text in enumerate(texts) if i >= 150 and len(text.split()) > 4]
    assert describe_misuse(batch.select(long_enough), facts, "ID") == []


def test_facts_survive_a_round_trip(models, texts):
    batch = TextEncoder(models("bert")).encode(texts)
    facts = Facts.of_fit(batch).after_calibration(batch, 0.9)
    again = Facts.from_json(facts.to_json())
    assert again == facts and (again.sketches == facts.sketches).all()
    for damaged in ({"training": {}}, {"sketches": "@"}, {"text_settings": 3}, {"other": 1}):
        with pytest.raises((ValueError, TypeError)):
            Facts.from_json(damaged)
