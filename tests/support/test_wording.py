"""Pieces of messages."""

import pytest

from apood.support.checks import format_count, suggest_name


@pytest.mark.parametrize(("count", "words"), [(0, "0 texts"), (1, "1 text"), (2, "2 texts"), (12_345, "12,345 texts")])
def test_counts(count, words):
    assert format_count(count, "text") == words


@pytest.mark.parametrize(
    ("given", "name"),
    [("kn", "knn"), ("KNN", "knn"), ("ap_ood", "ap-ood"), ("mahalanobi", "Mahalanobis"), ("magic", None), (None, None)],
)
def test_names_that_were_meant(given, name):
    told = suggest_name(given, ("ap-ood", "Mahalanobis", "knn"))
    assert told == ("" if name is None else f" (did you mean {name!r}?)")


def test_nothing_is_meant_where_nothing_is_known():
    assert suggest_name("knn", ()) == ""
