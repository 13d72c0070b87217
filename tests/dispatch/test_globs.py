"""Key filters against the same rules written as a regular expression."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.dispatch.globs import Glob, matches_any


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        (
            "",
            [
                "",
            ],
            ["a"],
        ),
        ("*", ["", "a", "a\nb"], []),
        ("?", ["a", "\N{GRINNING FACE}", "\n"], ["", "ab"]),
        ("user-*", ["user-", "user-7"], ["user", "USER-7", "a user-7"]),
        ("*-eu", ["a-eu", "-eu"], ["eu", "a-eu-"]),
        ("a*a", ["aa", "aba", "a*a"], ["a", "ab"]),
        ("a*b*c", ["abc", "axbxbxc", "abcc"], ["acb", "ab", "abcd"]),
        ("order-??-*", ["order-07-x", "order-07-"], ["order-7-x", "order-077"]),
        ("*?", ["a", "ab"], [""]),
        ("?*?", ["ab", "abc"], ["a"]),
        ("a?*?b", ["axxb", "axyzb"], ["axb", "ab"]),
        ("[a-z]", ["[a-z]"], ["b"]),
        ("a.c", ["a.c"], ["abc"]),
        ("a\\*", ["a\\", "a\\b"], ["a*"]),
    ],
)
def test_matches_of_patterns(pattern, fits, fits_not):
    glob = Glob(pattern)
    assert [text for text in fits if not glob.matches(text)] == []
    assert [text for text in fits_not if glob.matches(text)] == []


@settings(max_examples=500, deadline=None)
@given(st.text("ab*?", max_size=8), st.text("abc", max_size=10))
def test_matches_as_a_regular_expression_does(pattern, text):
    parts = {"*": ".*", "?": "."}
    expected = re.fullmatch("".join(parts.get(char, re.escape(char)) for char in pattern), text, re.DOTALL)
    assert Glob(pattern).matches(text) == bool(expected)


def test_patterns_that_are_made_to_be_slow_are_not():
    text = "a" * 20_000
    began = time.monotonic()
    for pattern in ("*a" * 100 + "b", "a*" * 100 + "b", "*?" * 100 + "b", "*a?" * 80 + "b", "*aaaab*"):
        assert not Glob(pattern).matches(text)
    assert time.monotonic() - began < 2.0  # a matcher that backtracks needs hours


def test_one_of_several_is_enough_and_none_at_all_match_everything():
    assert matches_any([], "x")
    assert matches_any([Glob("a*"), Glob("x")], "x")
    assert not matches_any([Glob("a*"), Glob("b")], "x")
