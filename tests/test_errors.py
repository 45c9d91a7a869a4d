"""One phrasing for every refused option value."""

import math

import numpy as np
import pytest

from vcc_infuse.errors import OptionError, check_choice, check_integer, check_range


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (-1, {}, "x must be a finite number of at least 0, got -1"),
        (math.inf, {}, "x must be a finite number of at least 0, got inf"),
        (math.nan, {}, "x must be a finite number of at least 0, got nan"),
        ("1", {}, "x must be a finite number of at least 0, got '1'"),
        (0, {"open_low": True}, "x must be a finite number above 0, got 0"),
        (1.5, {"high": 1}, r"x must be a number in \[0, 1\], got 1.5"),
        (1, {"high": 1, "open_high": True}, r"x must be a number in \[0, 1\), got 1"),
        (0, {"high": 1, "open_low": True}, r"x must be a number in \(0, 1\], got 0"),
    ],
)
def test_numbers_out_of_range(value, limits, message):
    with pytest.raises(OptionError, match=f"^{message}$"):
        check_range("x", value, **limits)


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {}, "x must be an integer of at least 1, got 0"),
        (2.0, {}, "x must be an integer of at least 1, got 2.0"),
        (True, {}, "x must be an integer of at least 1, got True"),
        ("3", {}, "x must be an integer of at least 1, got '3'"),
        (9, {"high": 8}, "x must be an integer from 1 to 8, got 9"),
    ],
)
def test_not_such_an_integer(value, limits, message):
    with pytest.raises(OptionError, match=f"^{message}$"):
        check_integer("x", value, **limits)


def test_a_word_that_is_not_offered():
    with pytest.raises(OptionError, match="^x must be one of a, b, got 'c'$"):
        check_choice("x", "c", ("a", "b"))


def test_good_values_come_back():
    assert check_range("x", 0.5, 0, 1) == 0.5
    assert check_range("x", np.float32(0.5), 0, 1) == 0.5
    assert type(check_integer("x", np.int64(3))) is int
    assert check_choice("x", "a", ("a", "b")) == "a"


def test_the_error_knows_option_and_value():
    with pytest.raises(OptionError) as caught:
        check_range("keep", 3, 0, 1)
    assert (caught.value.option, caught.value.value) == ("keep", 3)
    assert caught.value.problem == "must be a number in [0, 1], got 3"
