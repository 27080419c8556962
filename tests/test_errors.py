from __future__ import annotations

import math
import pickle

import pytest

from fairmp import errors
from fairmp.errors import (
    MAX_TEXT,
    InputError,
    check_choice,
    check_integer,
    check_number,
    plural,
    shorten,
    shortlist,
)


def as_options(name: str, value: str | None) -> str:
    return f"--{name}" if value is None else f"--{name} {value}"


def test_message_names_argument_value_and_hint() -> None:
    assert str(InputError("lr", "-1 is negative", "give 0.01")) == "lr: -1 is negative; give 0.01"
    assert str(InputError("lr", "-1 is negative")) == "lr: -1 is negative"


def test_message_spells_the_argument_and_those_mentioned_in_the_hint() -> None:
    error = InputError("sens", "missing", "name it, or set {mode='batch'} or {K}")
    assert str(error) == "sens: missing; name it, or set mode='batch' or K"
    assert error.message(as_options) == "--sens: missing; name it, or set --mode 'batch' or --K"


def test_message_leaves_values_and_other_titles_alone() -> None:
    error = InputError("data.x", "{mode}", "a {b c} is no mention")
    assert error.message(as_options) == "data.x: {mode}; a {b c} is no mention"


def test_message_is_one_line_of_limited_length() -> None:
    message = str(InputError("x" * 1000, "line\n" * 1000, "y" * 1000))
    assert "\n" not in message
    assert len(message) < 3 * MAX_TEXT


class Missing(InputError):
    def __init__(self, argument: str, column: str) -> None:
        self.column = column
        super().__init__(argument, f"no column {column!r}")
        self.args = (argument, column)


@pytest.mark.parametrize("error", [InputError("a", 1, "b"), Missing("a", "c")])
def test_rename_and_pickle_keep_class_and_fields(error: InputError) -> None:
    renamed = error.rename("other")
    assert (renamed.argument, error.argument) == ("other", "a")
    for copy in (renamed, pickle.loads(pickle.dumps(renamed))):
        assert type(copy) is type(error)
        assert vars(copy) == {**vars(error), "argument": "other"}


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "1", None, -0.1, 1.1])
def test_check_number_refuses_what_is_no_number_in_the_range(value: object) -> None:
    with pytest.raises(InputError, match="target"):
        check_number("target", value, "give a share", low=0, high=1)


def test_check_number_includes_the_ends_unless_above() -> None:
    assert [check_number("h", value, "", low=0, high=1) for value in (0, 1)] == [0.0, 1.0]
    with pytest.raises(InputError, match="h"):
        check_number("h", 0, "", low=0, above=True)


@pytest.mark.parametrize("value", [True, 1.0, "1", 0])
def test_check_integer_refuses_what_is_no_integer_from_low_on(value: object) -> None:
    with pytest.raises(InputError, match="K"):
        check_integer("K", value, "")
    assert check_integer("K", 0, "", low=0) == 0


def test_check_choice_lists_the_choices() -> None:
    assert check_choice("mode", "batch", ("batch", "per-node")) == "batch"
    with pytest.raises(InputError, match="'per-node'"):
        check_choice("mode", "both", ("batch", "per-node"))


def test_shorten_elides_the_middle() -> None:
    assert shorten("a \n b") == "a b"
    assert shorten("a" * 30 + "b" * 30, 10) == "aaaaa … bbbbb"


def test_shortlist_counts_the_rest() -> None:
    assert shortlist("abc", 3) == "a, b, c"
    assert shortlist("abcd", 3) == "a, b, c and 1 more"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "row", "0 rows"), (1, "day", "1 day"), (2, "day", "2 days"), (2, "entry", "2 entries"),
     (3, "box", "3 boxes"), (1000, "batch", "1,000 batches")],
)  # fmt: skip
def test_plural_forms(count: int, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def test_printable_shows_control_characters() -> None:
    hostile = "a\x1b[2J\x1b]0;title\x07b\x9b31m\u202ec\r\x00"
    shown = errors.printable(hostile)
    assert shown == r"a\x1b[2J\x1b]0;title\x07b\x9b31m\u202ec\r\x00"
    for text in ("two\nlines\tand", "José × 東京 👍🏽 \u00a0", "می\u200cخواهم"):
        assert errors.printable(text) == text
