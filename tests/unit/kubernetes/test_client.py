"""Requests to an API server: what is no answer of one."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from prefeed.errors import ClusterError
from prefeed.kubernetes.operator.client import ClusterClient
from prefeed.kubernetes.operator.kinds import PODS
from prefeed.kubernetes.operator.service import login
from unit.kubernetes.test_operator import now


class Answered(ClusterClient):
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


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443"), ("", "https://dns")],
)
def test_a_pod_reaches_the_api_server_without_dns(host: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kopf.ConnectionInfo(server="https://dns", token="t")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: found)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    assert login().server == server
    assert login().as_http_headers()["Authorization"] == "Bearer t"
