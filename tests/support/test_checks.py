"""Checks of arguments and wording of messages."""

import math
from fractions import Fraction

import numpy as np
import pytest

from apood.support.checks import check_choice, check_integer, check_number, format_count, suggest_name
from apood.support.errors import InputError


@pytest.mark.parametrize("value", [1, 2**63 - 1, np.uint8(1)])
def test_integers_pass(value):
    check_integer("k", value, least=1)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None])
def test_other_types_are_no_integers(value):
    with pytest.raises(InputError, match=r"^k must be a whole number, got .*\.$"):
        check_integer("k", value, least=0)


def test_an_integer_that_is_too_small():
    with pytest.raises(InputError, match=r"^k must be at least 1, got 0\.$"):
        check_integer("k", 0, least=1)


@pytest.mark.parametrize("zeros", [19, 5000])
def test_an_integer_that_no_library_takes(zeros):
    with pytest.raises(InputError, match=r"^k must be at most 9223372036854775807, got .{10,60}\.$"):
        check_integer("k", 10**zeros, least=1)


@pytest.mark.parametrize("zeros", [400, 5000])
def test_a_number_that_no_float_holds(zeros):
    with pytest.raises(InputError, match=r"^x must be a finite number, got .{10,210}\.$"):
        check_number("x", -(10**zeros))


@pytest.mark.parametrize(
    ("bounds", "allowed", "inside", "outside"),
    [
        ({}, "", [-3, 0.0, np.float32(1), Fraction(1, 3), 10**300], []),
        ({"least": 0}, " >= 0", [0, 0.0, 1e300], [-1e-300]),
        ({"above": 0}, " > 0", [1e-300], [0, -1]),
        ({"most": 1}, " <= 1", [-5, 1], [1.5]),
        ({"below": 0.5}, " < 0.5", [0.4], [0.5]),
        ({"above": 0, "most": 1}, " > 0 and <= 1", [0.5, 1], [0, 2]),
    ],
)
def test_numbers_in_a_range(bounds, allowed, inside, outside):
    for value in inside:
        check_number("x", value, **bounds)
    for value in (*outside, math.nan, math.inf, -math.inf, "1", None, True, 1j):
        with pytest.raises(InputError) as caught:
            check_number("x", value, **bounds)
        assert str(caught.value) == f"x must be a finite number{allowed}, got {value!r}."


def test_choices():
    check_choice("mode", "a", ("a", "b"))
    with pytest.raises(InputError, match=r"^mode must be one of a, b, got 'c'\.$"):
        check_choice("mode", "c", ("a", "b"))
    with pytest.raises(InputError, match=r"got 'euclidian' \(did you mean 'euclidean'"):
        check_choice("mode", "euclidian", ("dot", "euclidean"))


def test_counts_are_formatted_with_their_noun():
    assert [format_count(count, "text") for count in (0, 1, 12_345)] == ["0 texts", "1 text", "12,345 texts"]


@pytest.mark.parametrize(
    ("given", "name"),
    [("KNN", "knn"), ("ap_ood", "ap-ood"), ("mahalanobi", "Mahalanobis"), ("magic", None), (None, None)],
)
def test_similar_names_are_suggested(given, name):
    hint = suggest_name(given, ("ap-ood", "Mahalanobis", "knn"))
    assert hint == ("" if name is None else f" (did you mean {name!r}?)")


def test_a_former_name_is_answered_with_the_new_one():
    assert suggest_name("heat", ("head", "warmth"), {"heat": "warmth"}) == " (it is called 'warmth' now)"
    assert suggest_name("head", ("heads",), {"heat": "warmth"}) == " (did you mean 'heads'?)"
