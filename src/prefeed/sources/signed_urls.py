"""Queries of web servers' URLs: presigned URLs of S3 and Google, Azure's SAS, signed cookies of CDNs in a query.

A query is sent with each request and kept in memory only, as a password is. Parameters that sign the request are no part of an object's
identity, so that another signature for the same object is a hit. All other parameters name the object, as ``?id=5`` does.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import sha256
from operator import itemgetter
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_plus

_WEB: Final = re.compile(r"(?:pack\+|blocks\+)?https?://[^?#]*(\?[^#]*)?", re.IGNORECASE)
_SAFE: Final = "?%/:@!$&'()*+,;=~-._|"

_SIGNS: Final = re.compile(
    r"(?:x-(?:amz|goog|oss|obs|cos|tos|bce)-.+?|q-(?:sign-algorithm|ak|sign-time|key-time|header-list|url-param-list|signature)"
    r"|(?:aws|google|oss|obs)access(?:key)?id|signature|sig|hmac|key-pair-id|hdnts|hdnea)=.*"
    r"|authorization=bce-auth-v1/.*|verify=\d{10,}-.*|(?:expires|expiry|expiration|exp)=(?:\d{10,}|\d{4}-\d\d-\d\dT.*)",
    re.IGNORECASE | re.DOTALL,
)
"""Matches a parameter that signs or limits in time, whatever the other parameters are."""

_SIGNS_NEXT_TO: Final = re.compile(
    r"x-id|response-(?:cache-control|expires|content-.+)|accesskeyid|policy|security-token|token|access_token|auth|authorization|api_?key"
    r"|md5|verify",
    re.IGNORECASE,
)
"""Names that sign only next to one of ``_SIGNS``: alone they may name the object, as ``?md5=…`` does, or the user whose object it is."""

_SIGNS_OF_AZURE: Final = frozenset({
    "sv", "ss", "srt", "sr", "sp", "st", "se", "spr", "sip", "si", "sdd", "ses", "skoid", "sktid", "skt", "ske", "sks", "skv",
    "saoid", "suoid", "scid", "rscc", "rscd", "rsce", "rscl", "rsct",
})  # fmt: skip
"""Names that sign only next to ``sig`` and ``sv``, the version of the SAS."""

_COMPACT: Final = "%Y%m%dT%H%M%SZ"
_LEAST_EPOCH: Final = 10**9


def query_of(url: str) -> str:
    """Return the query of a web server's URL, with its ``?`` and as it is sent; empty for other URLs."""
    found = _WEB.match(url)
    query = found[1] if found is not None else ""
    return quote(query, safe=_SAFE) if query and query != "?" else ""


def named_by(query: str) -> str:
    """Return a hash of the parameters that name the object, whatever signs the request; empty without any.

    Values are compared as they are written, and those of one name in their order, because servers decode them in different ways.
    """
    given = [(unquote_plus(one.partition("=")[0]), one) for one in query.removeprefix("?").split("&") if one]
    signs = [_SIGNS.fullmatch(unquote_plus(one)) is not None for _, one in given]
    names = {name.lower() for name, _ in given}
    also = _SIGNS_OF_AZURE if names >= {"sig", "sv"} else frozenset()
    rest = [
        (name, one)
        for (name, one), is_signature in zip(given, signs, strict=True)
        if not is_signature and name.lower() not in also and not (any(signs) and _SIGNS_NEXT_TO.fullmatch(name))
    ]
    return sha256(repr(sorted(rest, key=itemgetter(0))).encode()).hexdigest()[:16] if rest else ""


def expiry_of(query: str) -> datetime | None:
    """Return when the signature expires; None when the query does not show it."""
    given = {name.lower(): value for name, value in parse_qsl(query.removeprefix("?"))}
    try:
        for store in ("amz", "goog", "oss", "tos"):
            if (begins := given.get(f"x-{store}-date")) and (seconds := given.get(f"x-{store}-expires")):
                began = datetime.strptime(begins, _COMPACT).replace(tzinfo=UTC)
                return datetime.fromtimestamp(began.timestamp() + int(seconds), UTC)
        if "sig" in given and "se" in given:
            ends = datetime.fromisoformat(given["se"])
            return ends if ends.tzinfo is not None else ends.replace(tzinfo=UTC)
        at = int(given.get("expires") or given.get("exp") or 0)
        return datetime.fromtimestamp(at, UTC) if at >= _LEAST_EPOCH else None
    except (ValueError, OverflowError, OSError):
        return None
