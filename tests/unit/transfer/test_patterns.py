from __future__ import annotations

import pytest

from prefeed.errors import JobSpecError
from prefeed.transfer.patterns import Rule, Rules

EXCLUDED = [
    ("*.tmp", "a/b.tmp", True),
    ("*.tmp", "a/b.tmp/c", True),
    ("*.tmp", "a/b.tmpx", False),
    ("/b", "a/b", False),
    ("/b", "b", True),
    ("/b", "b/c", True),
    ("a/", "a", False),
    ("a/", "x/a/y", True),
    ("a/*/c", "a/b/c", True),
    ("a/*/c", "a/b/b/c", False),
    ("a/**/c", "a/b/b/c", True),
    ("?.jpg", "a/1.jpg", True),
    ("?.jpg", "a/12.jpg", False),
    ("[0-4].jpg", "3.jpg", True),
    ("[!0-4].jpg", "3.jpg", False),
    ("[!0-4].jpg", "7.jpg", True),
    ("\\*.jpg", "a.jpg", False),
    ("\\*.jpg", "*.jpg", True),
    ("a.b", "axb", False),
]


@pytest.mark.parametrize(("pattern", "path", "excluded"), EXCLUDED)
def test_what_a_pattern_excludes(pattern: str, path: str, excluded: bool) -> None:
    assert Rules([Rule(pattern, True)]).takes(path) is not excluded


def test_the_first_rule_that_matches_decides() -> None:
    rules = Rules([Rule("keep.tmp", False), Rule("*.tmp", True)])

    assert rules.takes("a/keep.tmp")
    assert not rules.takes("a/b.tmp")
    assert not Rules([Rule("*.tmp", True), Rule("keep.tmp", False)]).takes("a/keep.tmp")


def test_nothing_below_an_excluded_directory_is_taken() -> None:
    rules = Rules([Rule("cache/", True), Rule("*.jpg", False)])

    assert not rules.takes("a/cache/x.jpg")
    assert not rules.takes_below("a/cache")
    assert rules.takes_below("a")


def test_keys_are_taken_from_the_first_to_the_last() -> None:
    rules = Rules(start="b", end="d/x")

    assert [path for path in ("a", "b", "c/z", "d/x", "d/y", "e") if rules.takes(path)] == ["b", "c/z", "d/x"]
    assert rules.is_past_end("d/y")
    assert not rules.is_past_end("d/x")


@pytest.mark.parametrize("pattern", ["", "/", "[a", "a[]"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(JobSpecError, match=r"pattern|closed"):
        Rules([Rule(pattern, True)])
