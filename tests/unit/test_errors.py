from __future__ import annotations

import pickle

import pytest

from prefeed import errors
from prefeed.errors import PrefeedError


def tree(cls: type[PrefeedError] = PrefeedError) -> list[type[PrefeedError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in tree(child))]


ERRORS = sorted(set(tree()), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", ERRORS)
def test_pickle_round_trip_keeps_message_and_details(cls: type[PrefeedError]) -> None:
    err = pickle.loads(pickle.dumps(cls("no such object: a/b.jpg", path="a/b.jpg", size_bytes=3)))

    assert type(err) is cls
    assert str(err) == "no such object: a/b.jpg"
    assert err.details == {"path": "a/b.jpg", "size_bytes": 3}


@pytest.mark.parametrize("cls", ERRORS)
def test_has_docstring_and_kebab_case_code(cls: type[PrefeedError]) -> None:
    assert cls.__doc__
    assert cls.code == cls.code.lower().replace("_", "-").replace(" ", "-")


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in ERRORS]

    assert sorted(codes) == sorted(set(codes))


def test_all_errors_live_in_one_module() -> None:
    assert {cls.__module__ for cls in ERRORS} == {errors.__name__}


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.ObjectNotFoundError, FileNotFoundError),
        (errors.AccessDeniedError, PermissionError),
        (errors.TransientSourceError, OSError),
        (errors.ServerUnavailableError, ConnectionError),
        (errors.UnsafeDirectoryError, PermissionError),
    ],
)
def test_is_the_builtin_that_callers_expect(cls: type[PrefeedError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=r"^gone$"):
        raise cls("gone")


def test_only_what_may_succeed_later_is_retryable() -> None:
    retryable = {cls for cls in ERRORS if cls.retryable}

    assert retryable == {
        errors.TransientSourceError,
        errors.ThrottledError,
        errors.TruncatedBodyError,
        errors.ServerUnavailableError,
    }
