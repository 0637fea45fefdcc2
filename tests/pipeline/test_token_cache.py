"""Token stores in a cache: a store is found again only where it would be made."""

import pytest

from apood import TextEncoder
from apood.data.record import BadRecord, BadRecordError, Record
from apood.pipeline.token_cache import TokenCache
from apood.tokens.store import TokenStore


def test_a_store_without_the_bad_records_is_not_found_by_who_wants_all(models, tmp_path):
    cache = TokenCache(tmp_path, {}, lambda: TextEncoder(models("bert")))
    records = [Record("word1 word2", "line 1"), BadRecord("line 2", "it is damaged"), Record("word3", "line 3")]
    store = cache.find_store(records, skip_bad=True)
    assert len(TokenStore(store)) == 2 and cache.find_store(records, skip_bad=True) == store and cache.made == 1
    with pytest.raises(BadRecordError, match="it is damaged"):
        cache.find_store(records)


def test_a_text_that_is_called_like_the_place_of_a_bad_record_is_another_one(models, tmp_path):
    cache = TokenCache(tmp_path, {}, lambda: TextEncoder(models("bert")))
    good, bad = Record("line 2", "line 2"), BadRecord("line 2", "it is damaged")
    stores = [cache.find_store([Record("word1", "line 1"), other], skip_bad=True) for other in (bad, good)]
    assert [len(TokenStore(store)) for store in stores] == [1, 2]


def test_other_stores_of_the_same_texts_are_compared_with_one_probe_of_the_encoder(models, tmp_path):
    records, folder = [Record("word1 word2", "line 1")], models("bert")
    for number in range(3):
        TokenCache(
            tmp_path, {"number": number}, lambda: TextEncoder(folder, summary=False), lambda _: False
        ).find_store(records)
    encoder, encoded = TextEncoder(folder), []
    original = encoder.encode
    encoder.encode = lambda items: encoded.append(items) or original(items)
    cache = TokenCache(tmp_path, {}, lambda: encoder)
    cache.find_store(records)
    assert cache.made == 1 and encoded == [["a"]]
