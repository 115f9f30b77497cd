"""Requests to an API server: what is no answer of one."""

from __future__ import annotations

from typing import Any

import pytest

from prefeed.errors import ClusterError
from prefeed.kubernetes.operator.client import Client
from prefeed.kubernetes.operator.kinds import PODS
from unit.kubernetes.test_operator import now


class Answered(Client):
    """A client whose requests are all answered with the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def _answer(self, *_: Any) -> tuple[int, str]:
        return 200, self._text


@pytest.mark.parametrize("text", ["<html>sign in</html>", "[]", "null", "", 100_000 * "["])
def test_an_answer_that_is_no_object_is_an_error_that_may_pass(text: str) -> None:
    """A proxy before the API server may answer in its place: the operator goes on, and asks again."""
    with pytest.raises(ClusterError, match="the answer is no object") as caught:
        now(Answered(text).get(PODS, "default", "a"))
    assert caught.value.details["status"] == 0
    del caught
