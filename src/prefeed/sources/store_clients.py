"""Clients of obstore, shared by all sources that need the same one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store
from xxhash import xxh3_128_hexdigest

from prefeed.config import Config
from prefeed.sources.plain_web import authorization_of, encoding_of_url, excluded_of
from prefeed.sources.store_access import (
    CA_BUNDLE,
    S3_TOKENS,
    StoreAccess,
    certificates_of,
    endpoint_in,
    is_store_variable,
    native_options,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Credential

_LIST_TIMEOUT: Final = "1h"

_shared: Final[weakref.WeakValueDictionary[str, Any]] = weakref.WeakValueDictionary()
"""Clients in use, by all that they were made from: another one costs 5 ms, mostly for authorities, and connections of its own."""


def shared_client(
    url: str, config: Config, authorization: str | None, access: StoreAccess, *, listing: bool, retries: int
) -> ObjectStore:
    """Return a client that does this, which other sources may use as well."""
    variables = sorted(pair for pair in os.environ.items() if is_store_variable(pair[0]))  # it looks there, too
    made_from = (
        url, authorization, sorted(access.options.items()), sorted(access.proxies.items()), variables, listing, retries,
        config.limits.request_seconds,
    )  # fmt: skip
    key = xxh3_128_hexdigest(repr(made_from).encode())
    found: ObjectStore | None = _shared.get(key)
    if found is None:
        found = _shared[key] = _new_client(url, config, authorization, access, listing=listing, retries=retries)
    return found


def _new_client(
    url: str, config: Config, authorization: str | None, access: StoreAccess, *, listing: bool, retries: int
) -> ObjectStore:
    parts = urlsplit(url)
    prefix = _prefix(parts.path)
    given: Any = native_options(url, access)
    if parts.scheme in ("http", "https"):
        authorization = authorization or authorization_of(given)
    options = _client_options(
        endpoint_in(url, given), config, authorization, access.proxies, listing=listing,
        encoding="" if parts.scheme == "gs" and listing else encoding_of_url(url),
    )  # fmt: skip
    bundle = access.options.get(CA_BUNDLE)
    if bundle and "allow_http" not in options:
        options["root_certificate"] = certificates_of(bundle)
    policy: RetryConfig = {"max_retries": retries}
    if parts.scheme == "s3":
        speaker: Any = _speaker(given)
        return S3Store(
            parts.netloc, prefix=prefix, config=given, client_options=options, retry_config=policy, **speaker
        )
    if parts.scheme == "gs":
        return GCSStore(parts.netloc, prefix=prefix, config=given, client_options=options, retry_config=policy)
    if parts.scheme == "az":
        return AzureStore(parts.netloc, prefix=prefix, config=given, client_options=options, retry_config=policy)
    whole_server = f"{parts.scheme}://{parts.netloc}"
    return HTTPStore(whole_server if listing else url, client_options=options, retry_config=policy)


def _speaker(given: Mapping[str, str]) -> dict[str, Callable[[], S3Credential]]:
    """Return what keeps a token of the environment, which is Amazon's, from being sent along with keys that are another's."""
    if "access_key_id" not in given or "session_token" in given or not any(map(os.environ.get, S3_TOKENS)):
        return {}
    key, secret = given["access_key_id"], given.get("secret_access_key", "")

    def speak() -> S3Credential:
        return {"access_key_id": key, "secret_access_key": secret, "token": None, "expires_at": None}

    return {"credential_provider": speak}


def _prefix(path: str) -> str | None:
    """Return the part of the bucket to read below; None for the whole bucket."""
    return path.strip("/") or None


def _client_options(
    endpoint: str,
    config: Config,
    authorization: str | None,
    proxies: Mapping[str, str],
    *,
    listing: bool,
    encoding: str,
) -> ClientConfig:
    options: ClientConfig = {
        "timeout": _LIST_TIMEOUT if listing else f"{round(config.limits.request_seconds * 1000)}ms",
        "read_timeout": f"{round(config.limits.request_seconds * 1000)}ms",
        "connect_timeout": f"{round(min(config.limits.request_seconds, 5.0) * 1000)}ms",
    }
    parts = urlsplit(endpoint)
    if parts.scheme == "http":
        options["allow_http"] = True
    headers = {"accept-encoding": encoding} if encoding else {}
    if authorization is not None:
        headers["authorization"] = authorization
    if headers:
        options["default_headers"] = headers
    if proxy := proxies.get(f"{parts.scheme}_proxy") or proxies.get("all_proxy"):
        # obstore sends even loopback to a proxy named in the environment, unless it is told otherwise.
        options["proxy_url"] = proxy
        options["proxy_excludes"] = excluded_of(proxies)
    return options
