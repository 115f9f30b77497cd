"""Signatures are those of botocore, whatever is in a key."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, quote

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from prefeed.errors import SourceError
from prefeed.sources.plain_s3 import PlainBucket, signed_url

NOW = datetime(2026, 11, 28, 17, 0, 3, tzinfo=UTC)


@pytest.mark.parametrize("token", ["", "to+ken/=="])
@pytest.mark.parametrize("key", ["a", "d//x", "d/../y", "./z", "t\tab", "ü ~+%?#&=", "(a)*'!"])
@pytest.mark.parametrize("query", [{}, {"list-type": "2", "prefix": "a b/+&=~", "start-after": ""}])
def test_signatures_are_botocores(token: str, key: str, query: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in query.items())
    url = f"https://store.example:9000/b/{quote(key)}" + (f"?{text}" if text else "")
    options = {"access_key_id": "AKID", "secret_access_key": "secret", "region": "eu-1"}
    ours = signed_url("GET", url, options | ({"session_token": token} if token else {}), NOW)

    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **_: NOW.replace(tzinfo=None))
    credentials = botocore.credentials.Credentials("AKID", "secret", token or None)
    request: Any = botocore.awsrequest.AWSRequest(method="GET", url=url)
    botocore.auth.S3SigV4QueryAuth(credentials, "s3", "eu-1", expires=3600).add_auth(request)
    assert dict(parse_qsl(ours.partition("?")[2], True)) == dict(parse_qsl(request.url.partition("?")[2], True))
    assert ours.partition("?")[0] == url.partition("?")[0]


def test_without_keys_nothing_is_signed() -> None:
    assert signed_url("GET", "https://h/b/x", {}) == "https://h/b/x"


PAGE = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{}</ListBucketResult>'
OBJECT = "<Contents><Key>a</Key><Size>1</Size></Contents>"


@pytest.mark.parametrize(
    "page",
    [
        "<html><body>Sign in</body></html>",
        "<Error><Code>InternalError</Code></Error>",
        PAGE.format(OBJECT + "<IsTruncated>true</IsTruncated>"),
        PAGE.format(OBJECT + "<IsTruncated>true</IsTruncated><NextMarker>a</NextMarker>"),
        PAGE.format(OBJECT + "<IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken>"),
    ],
    ids=["a login page", "an error", "cut", "of version 1", "the same page again"],
)
def test_a_page_that_may_not_be_all_fails_the_listing(page: str) -> None:
    bucket = PlainBucket("http://h/b/", "", {}, lambda _: page.encode())
    with pytest.raises(SourceError, match=r"http://h/b/ .*listing"):
        list(islice(bucket.pages(), 3))
