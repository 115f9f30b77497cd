"""Tests that failed run again: which, and when not."""

from __future__ import annotations

import again


def test_ids_lose_the_name_of_their_group():
    assert again.failed_tests(["b.py::test[1]@frameworks", "a.py::test[x@y]", "c.py::test@g"]) == [
        "a.py::test[x@y]",
        "b.py::test[1]",
        "c.py::test",
    ]


def test_a_few_failed_tests_run_again():
    assert again.why_not_again(["a.py::test"] * again.MAX_FAILED) is None


def test_many_failures_stand():
    assert again.why_not_again(["a.py::test"] * 6) == "6 tests failed; at most 5 run again"


def test_a_run_that_ended_without_failed_tests_stands():
    assert again.why_not_again([]) == "no test failed, yet the run did"


def test_a_module_that_cannot_be_imported_stands():
    assert again.why_not_again(["a.py", "b.py::test"]) == "a.py could not be imported"
