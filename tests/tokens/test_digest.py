"""Digests of data: equal for equal data, different for anything else."""

from dataclasses import replace

import pytest
import torch
from builders import correlated_sequences

from apood.tokens.batch import Ragged, TokenBatch
from apood.tokens.digests import content_digest
from apood.tokens.source import Subset, Trimmed
from apood.tokens.store import TokenStore
from apood.tokens.writer import TokenStoreWriter


@pytest.fixture
def batch():
    tokens = correlated_sequences(12, 4)
    return tokens.with_channels(logits=Ragged.from_lengths(torch.arange(24.0).view(12, 2), [1] * 12))


def written(folder, batch, **options):
    with TokenStoreWriter(folder, dim=batch.dim, dtype=batch.dtype, **options) as writer:
        writer.append(batch)
    return TokenStore(folder)


def changed(values, place):
    values = values.clone()
    values.view(-1)[place] += 1
    return values


def test_equal_batches_have_equal_digests(batch):
    copy = replace(batch, values=batch.values.clone(), channels=dict(batch.channels))
    assert content_digest(copy) == content_digest(batch) and len(content_digest(batch)) == 64


def test_any_difference_changes_the_digest(batch):
    logits = batch.channels["logits"]
    lengths = batch.lengths.clone()
    lengths[0], lengths[1] = lengths[1] + 1, lengths[0] - 1
    others = [
        replace(batch, values=changed(batch.values, 0)),
        replace(batch, values=changed(batch.values, -1)),
        replace(batch, values=batch.values.double()),
        replace(batch, offsets=Ragged.from_lengths(batch.values, lengths).offsets),
        replace(batch, encoder={"model": "other"}),
        replace(batch, channels={}),
        replace(batch, channels={"other": logits}),
        replace(batch, channels={"logits": replace(logits, values=changed(logits.values, 3))}),
        batch.select(slice(0, 11)),
        batch.select(torch.arange(11, -1, -1)),
    ]
    digests = [content_digest(other) for other in [batch, *others]]
    assert len(set(digests)) == len(digests)


def test_bfloat16_no_tokens_and_no_sequences(batch):
    narrow = batch.to(dtype=torch.bfloat16)
    assert content_digest(narrow) == content_digest(replace(narrow, values=narrow.values.clone()))
    assert content_digest(TokenBatch.without_tokens(**batch.channels)) != content_digest(batch)
    assert content_digest(batch.select([])) != content_digest(batch)


def test_the_digest_does_not_depend_on_the_batches(batch, monkeypatch):
    whole = content_digest(Trimmed(batch, first=True, last=False))
    monkeypatch.setattr("apood.tokens.digests.token_budget", lambda _: 7)
    assert content_digest(Trimmed(batch, first=True, last=False)) == whole


def test_the_digest_of_a_store_needs_only_its_index(batch, tmp_path, monkeypatch):
    store = written(tmp_path / "a", batch)
    monkeypatch.setattr(TokenStore, "select", lambda *_: pytest.fail("tokens were read"))
    digest = content_digest(store)
    assert content_digest(written(tmp_path / "b", batch)) == digest
    assert content_digest(TokenStore(tmp_path / "a", channels=[])) == digest
    other = replace(batch, values=changed(batch.values, 5))
    assert content_digest(written(tmp_path / "c", other)) != digest
    assert content_digest(written(tmp_path / "d", batch, encoder={"model": "m"})) != digest


def test_the_digest_of_a_subset_depends_on_source_and_indices(batch, tmp_path):
    store = written(tmp_path / "a", batch)
    first = content_digest(Subset(store, [0, 3]))
    assert content_digest(Subset(TokenStore(tmp_path / "a"), torch.tensor([0, 3]))) == first
    others = [
        Subset(store, [3, 0]),
        Subset(store, [0, 3, 4]),
        Subset(batch, [0, 3]),
        Subset(Subset(store, [0, 3]), [0, 1]),
    ]
    assert len({first, content_digest(store), *map(content_digest, others)}) == 6
