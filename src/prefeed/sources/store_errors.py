"""One table from what obstore raises to the errors of this package."""

from __future__ import annotations

import re
from typing import Final

from obstore import exceptions as store_exceptions

from prefeed.errors import (
    AccessDeniedError,
    CannotListError,
    ObjectNotFoundError,
    SourceError,
    ThrottledError,
    TransientSourceError,
    TruncatedBodyError,
)

NO_LENGTH: Final = "MissingContentLength"
"""In the text of what obstore raises for an answer without a length."""

EXPIRED: Final = "have expired"
"""In the message of an error that is about expired credentials."""

_ODD_PARTS: Final = (
    "Content-Range header not present",
    "value for CONTENT_RANGE",
    "Requested ",
    "Range request not supported",
    "status code: 416",
    NO_LENGTH,
)

_CREDENTIALS_ADVICE: Final = "<credentials>"
"""Stands for the advice about credentials, which depends on the kind of origin."""

_WEB_ADVICE: Final = (
    "put user and password for it into credentials.json in the home (mode 0600), or a token into PREFEED_BEARER_TOKENS"
)
_ADVICE_BY_SCHEME: Final = {
    "s3": "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket AWS_SKIP_SIGNATURE=1",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS; for a public bucket GOOGLE_SKIP_SIGNATURE=1",
    "az": "check AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; for a public container AZURE_SKIP_SIGNATURE=1",
    "http": _WEB_ADVICE,
    "https": _WEB_ADVICE,
}
_OTHER_GOOGLE_CREDENTIALS: Final = (
    "Google's credentials of this type (external_account, impersonated_service_account) are not read; set GOOGLE_BEARER_TOKEN, "
    "as `gcloud auth print-access-token` prints it, or GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account"
)

_CERTIFICATE_ADVICE: Final = (
    "set REQUESTS_CA_BUNDLE to a file with the certificate of its authority, or install that on this node"
)

_BY_TYPE: Final[tuple[tuple[type[BaseException], type[SourceError], str], ...]] = (
    (FileNotFoundError, ObjectNotFoundError, "does not exist"),
    (store_exceptions.PermissionDeniedError, AccessDeniedError, f"access denied; {_CREDENTIALS_ADVICE}"),
    (store_exceptions.UnauthenticatedError, AccessDeniedError, f"no valid credentials; {_CREDENTIALS_ADVICE}"),
    (
        store_exceptions.InvalidPathError,
        CannotListError,
        "cannot be listed, because the client refuses the name of an object",
    ),
    (
        store_exceptions.NotModifiedError,
        TransientSourceError,
        "the server says that nothing changed, which was not asked",
    ),
)

_METADATA_SERVERS: Final = ("169.254.169.254", "metadata.google.internal")
"""Addresses that are asked for credentials last. An error with one of them is not an answer of the store, nor is its status."""

# Looked for, in this order, in the text of the remaining errors: obstore has no attributes for them.
_BY_TEXT: Final[tuple[tuple[str, type[SourceError], str], ...]] = (
    (
        "expected `service_account`",
        AccessDeniedError,
        _OTHER_GOOGLE_CREDENTIALS,
    ),
    ("ExpiredToken", AccessDeniedError, f"the credentials {EXPIRED}"),
    ("SlowDown", ThrottledError, "the origin asks for fewer requests"),
    ("IncompleteBody", TruncatedBodyError, "the connection broke off before the whole object had come"),
    ("NotValidForName", SourceError, "the server's certificate is for another name"),
    ("InvalidCertificate(Expired", SourceError, "the server's certificate has expired"),
    ("InvalidCertificate", SourceError, f"the server's certificate is not trusted; {_CERTIFICATE_ADVICE}"),
    (
        "Received redirect without LOCATION",
        SourceError,
        "the server redirects and does not say where; if it is a bucket in another region, set AWS_REGION",
    ),
    ("error following redirect", SourceError, "the server redirects in a circle, or more than ten times"),
    (NO_LENGTH, SourceError, "the server sends no Content-Length, so that a short answer would go unseen"),
    ("Content-Range header not present", SourceError, "the server sent a part and does not say which"),
    ("Requested ", SourceError, "the server sent another part than was asked for"),
    ("Range request not supported", SourceError, "the server does not send parts of files"),
    ("Account must be specified", AccessDeniedError, "no storage account named; set AZURE_STORAGE_ACCOUNT_NAME"),
    ("Could not parse path", ObjectNotFoundError, "cannot be the name of an object"),
    ("kind: Timeout", TransientSourceError, "no answer within {timeout:g} s"),
    ("TimedOut", TransientSourceError, "no answer within {timeout:g} s"),
    (
        "kind: Connect",
        TransientSourceError,
        "no connection to the server; check the address, and that this node reaches it",
    ),
    ("kind: Interrupted", TransientSourceError, "the connection broke off"),
    ("kind: Request", TransientSourceError, "the request could not be sent"),
)

_BY_STATUS: Final[dict[int, tuple[type[SourceError], str]]] = {
    401: (AccessDeniedError, f"no valid credentials; {_CREDENTIALS_ADVICE}"),
    403: (AccessDeniedError, f"access denied; {_CREDENTIALS_ADVICE}"),
    404: (ObjectNotFoundError, "does not exist"),
    408: (TransientSourceError, "the server gave up waiting"),
    410: (ObjectNotFoundError, "does not exist any more"),
    416: (SourceError, "the server has no such part of the object"),
    429: (ThrottledError, "the origin asks for fewer requests"),
    501: (SourceError, "the server does not know this request"),
    503: (ThrottledError, "the origin asks for fewer requests"),
}

_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")
_SECRET = re.compile(r"(?<=://)[^/@\s\"]*@|\?[^\s\",)]*")


def translate(err: BaseException, where: str, *, timeout: float, endpoint: str = "") -> BaseException:
    """Return the error that stands for ``err``; the caller raises it ``from cause_of(err)``.

    Errors of this package, and what no table may swallow (``KeyboardInterrupt``), come back as they are.

    Args:
        err: What obstore raised.
        where: Full URL, without credentials.
        timeout: Seconds that one request may take, for the message.
        endpoint: Which server is spoken to, for messages about a bucket, a connection or another kind of server.
    """
    if isinstance(err, SourceError) or not _is_foreign(err):
        return err
    text = str(err)
    error, reason, status = _classify(err, text)
    advice = _ADVICE_BY_SCHEME.get(where.partition("://")[0], "check the credentials")
    reason = reason.replace(_CREDENTIALS_ADVICE, advice)
    if where.startswith("s3://"):
        reason = reason.replace("REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
    if isinstance(err, store_exceptions.InvalidPathError):
        reason += f": {refused_name(err)}".replace("{", "{{").replace("}", "}}")
    answered = f" (HTTP {status})" if status else ""
    code = _ERROR_CODE.search(text)
    named = f" [{code[1]}]" if code else ""
    if code and code[1] in _NO_BUCKET:
        reason = f"the bucket {where.partition('://')[2].partition('/')[0]} does not exist"
    if endpoint and not issubclass(error, (ThrottledError, TruncatedBodyError)):
        named += f"; the endpoint is {_SECRET.sub('', endpoint)}"
    return error(f"{where}: {reason.format(timeout=timeout)}{answered}{named}", url=where, status=status)


def refused_name(err: BaseException) -> str:
    """Return the client's reason for refusing the name of an object, with the name, escaped."""
    said = str(err).partition("\n\n")[0].removeprefix("Encountered object with invalid path: ")
    return said.encode("unicode_escape").decode("ascii")[:300]


def _is_foreign(err: BaseException) -> bool:
    # A panic of the native library derives from BaseException; it must not end a thread that fetches.
    return isinstance(err, Exception) or type(err).__module__ == "pyo3_runtime"


def is_about_bucket(err: BaseException) -> bool:
    """Return True for an answer that there is no such bucket or container."""
    code = _ERROR_CODE.search(str(err))
    return code is not None and code[1] in _NO_BUCKET


def is_another_part(err: BaseException) -> bool:
    """Return True for an answer to a range request that is not the part: another one, none, or the whole object."""
    return _is_foreign(err) and any(part in str(err) for part in _ODD_PARTS)


def refuses_head(err: BaseException) -> bool:
    """Return True for an answer to ``HEAD`` after which ``GET`` may still be answered, or that shows no size."""
    found = _STATUS.search(str(err))
    return _is_foreign(err) and (NO_LENGTH in str(err) or (found is not None and found[1] in ("403", "405", "501")))


def cause_of(err: BaseException) -> BaseException | None:
    """Return ``err``, or a copy of it without user names, passwords and query strings where its text has any."""
    if isinstance(err, SourceError) or not _is_foreign(err):
        return err.__cause__
    text = str(err)
    clean = _SECRET.sub("", text)
    return err if clean == text else store_exceptions.GenericError(clean)


def _classify(err: BaseException, text: str) -> tuple[type[SourceError], str, int | None]:
    if any(server in text for server in _METADATA_SERVERS):
        return AccessDeniedError, f"no credentials found; {_CREDENTIALS_ADVICE}", None
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    for foreign, error, reason in _BY_TYPE:
        if isinstance(err, foreign):
            return error, reason, status
    for part, error, reason in _BY_TEXT:
        if part in text:
            return error, reason, status
    if status in _BY_STATUS:
        return *_BY_STATUS[status], status
    if status is not None and status >= 500:
        return TransientSourceError, "the server failed", status
    first_line = _SECRET.sub("", text.partition("\n")[0])[:300]
    return SourceError, (first_line or type(err).__name__).replace("{", "{{").replace("}", "}}"), status
