"""Checks of arguments: what passes, and what the sentences say."""

import math
from fractions import Fraction

import numpy as np
import pytest

from apood.support.checks import check_choice, check_integer, check_number
from apood.support.errors import InputError


@pytest.mark.parametrize("value", [1, 10**400, np.int32(7), np.uint8(1)])
def test_whole_numbers(value):
    check_integer("k", value, least=1)


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, "1", None, Fraction(1), [1]])
def test_what_is_no_whole_number(value):
    with pytest.raises(InputError, match=r"^k must be a whole number, got .*\.$"):
        check_integer("k", value, least=0)


def test_a_whole_number_that_is_too_small():
    with pytest.raises(InputError, match=r"^k must be at least 1, got 0\.$"):
        check_integer("k", 0, least=1)


@pytest.mark.parametrize(
    ("bounds", "allowed", "inside", "outside"),
    [
        ({}, "", [-3, 0.0, np.float32(1), Fraction(1, 3), 10**400], []),
        ({"least": 0}, " >= 0", [0, 0.0, 1e300], [-1e-300]),
        ({"above": 0}, " > 0", [1e-300], [0, -1]),
        ({"most": 1}, " <= 1", [-5, 1], [1.5]),
        ({"below": 0.5}, " < 0.5", [0.4], [0.5]),
        ({"least": 0, "most": 1}, " >= 0 and <= 1", [0, 0.5, 1], [-1, 2]),
        ({"above": 0, "most": 1}, " > 0 and <= 1", [0.5, 1], [0, 2]),
        ({"above": 0, "below": 1}, " > 0 and < 1", [0.5], [0, 1]),
    ],
)
def test_numbers_in_a_range(bounds, allowed, inside, outside):
    for value in inside:
        check_number("x", value, **bounds)
    for value in (*outside, math.nan, math.inf, -math.inf, "1", None, True, False, np.True_, 1j, [1]):
        with pytest.raises(InputError) as caught:
            check_number("x", value, **bounds)
        assert str(caught.value) == f"x must be a finite number{allowed}, got {value!r}."


def test_one_of_several():
    check_choice("mode", "a", ("a", "b"))
    with pytest.raises(InputError, match=r"^mode must be one of a, b, got 'c'\.$"):
        check_choice("mode", "c", ("a", "b"))
    with pytest.raises(
        InputError, match=r"^mode must be one of dot, euclidean, got 'euclidian' \(did you mean 'euclid"
    ):
        check_choice("mode", "euclidian", ("dot", "euclidean"))
