"""The examples in the docstrings of the public classes and of attention_pool run and print what they say."""

import doctest

import pytest

from apood import Checkpoint, TokenBatch, TokenStore, TokenStoreWriter, attention_pool


@pytest.mark.parametrize("thing", [TokenBatch, TokenStore, TokenStoreWriter, Checkpoint, attention_pool])
def test_the_examples_run(thing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(thing, thing.__name__, globs={})
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
