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
