from __future__ import annotations

import pickle

import pytest

from prefeed import errors
from prefeed.errors import PrefeedError

ERRORS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, PrefeedError)]


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
        errors.ClusterError,
        errors.TransientSourceError,
        errors.ThrottledError,
        errors.TruncatedBodyError,
        errors.WrongAnswerError,
        errors.ServerUnavailableError,
        errors.ServerBusyError,
        errors.CopyInUseError,
        errors.PackSourceChangedError,
        errors.SampleSetInUseError,
    }
