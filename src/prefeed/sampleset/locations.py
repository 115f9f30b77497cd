"""Parse locations in PaddlePaddle's notation, ``[NAME://]BUCKET[.ENDPOINT][/PREFIX]``, into a URL and an endpoint.

``locate`` parses the URI of a document, ``locate_bucket`` the fields of a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from prefeed.errors import ConfigError, SpecError, UnknownSchemeError
from prefeed.sources.urls import PACK, canonical_url, without_credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Location of data: a directory, or a URL with the endpoint of its store.

    Attributes:
        url: Canonical URL, or the path of a directory.
        endpoint: Endpoint of the object store; empty for the one of the environment or Amazon's.
        region: Region of the bucket; empty for the one of the environment.
        is_virtual_hosted: True if the host name of the endpoint begins with the bucket.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    is_virtual_hosted: bool = False

    @property
    def is_directory(self) -> bool:
        """True if programs can open the files by path."""
        return self.url.startswith("/")


_AWS: Final = re.compile(r"(?P<bucket>.+?)\.s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?P<china>\.cn)?")
_BOS: Final = re.compile(r"(?P<bucket>[^.]+)\.(?:s3\.)?(?P<region>[a-z0-9-]+)\.bcebos\.com")
_VIRTUAL_HOSTED: Final = {
    "oss": re.compile(r"(?P<bucket>[^.]+)\.(?:s3\.)?oss-(?P<region>[a-z0-9-]+)\.aliyuncs\.com"),
    "cos": re.compile(r"(?P<bucket>[^.]+)\.cos\.(?P<region>[a-z0-9-]+)\.myqcloud\.com"),
    "obs": re.compile(r"(?P<bucket>[^.]+)\.obs\.(?P<region>[a-z0-9-]+)\.myhuaweicloud\.com"),
}
STORAGES: Final = ("bos", "s3", "oss", "cos", "obs", "minio", "gs", "az", "http", "https", "file")
"""Supported schemes of a location."""

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def locate(uri: str, what: str) -> Location:
    """Return the location of a URI.

    Args:
        uri: URI as written in the document.
        what: Name of the field for messages.

    Raises:
        SpecError: The URI cannot be read from, or contains credentials.
    """
    require_no_credentials(uri, what)
    try:
        return _locate(uri, what)
    except (ConfigError, UnknownSchemeError, ValueError) as err:
        if isinstance(err, SpecError):
            raise
        raise SpecError(f"{what}: {err}") from err


def locate_bucket(storage: str, bucket: str, what: str) -> Location:
    """Return the location of a secret's ``storage`` and ``bucket``, in JuiceFS's notation. Raises as ``locate``."""
    require_no_credentials(bucket, what)
    name = storage.lower()
    if name == "file" or (not name and bucket.startswith("/")):
        return locate(bucket, what)
    scheme, separator, rest = bucket.rpartition("://")
    if scheme not in ("http", "https") or name in ("http", "https", ""):
        return locate(bucket if separator or not name else f"{name}://{bucket}", what)
    host, _, path = rest.partition("/")
    # The host is a self-hosted server, whose paths begin with the bucket.
    if ":" in host or _is_address(host):
        return _own_server(scheme, host, path, what)
    return locate(f"{name}://{rest}", what)


def require_no_credentials(uri: str, what: str) -> None:
    """Check that a URI contains no user name, key or token.

    Raises:
        SpecError: The URI contains one. The message shows the URI without it.
    """
    place = without_keys(uri)
    if place is not None:
        raise SpecError(
            f"{what} contains credentials or parameters, which process lists and logs would show; write {place} "
            "here, and put the keys as access-key and secret-key into a document of kind Secret that secretRef names"
        )


def without_keys(uri: str) -> str | None:
    """Return a URI without its user name, keys and parameters; None if it contains none."""
    if uri.startswith("/"):
        return None
    # urlsplit is not used, because a key may contain a slash.
    scheme, separator, rest = uri.rpartition("://")
    before, at, place = re.sub(r"^[^/:@]*:[0-9]+/", "/", rest).rpartition("@")
    is_keyed = bool(at) and (":" in before or "/" not in before)
    if is_keyed or (separator and "?" in rest):
        return without_credentials(f"{scheme}{separator}{place if is_keyed else rest}")
    return None


def _locate(uri: str, what: str) -> Location:
    if uri.startswith("/"):
        return Location(url=canonical_url(uri))
    name, separator, rest = uri.partition("://")
    if not separator:
        return _locate(f"{_guess_storage(uri, what)}://{uri}", what)
    name = name.lower()
    if name.startswith(PACK) or name in ("file", "gs", "az", "http", "https"):
        return Location(url=canonical_url(uri))
    if name not in STORAGES:
        raise SpecError(
            f"{what}: {name}:// is not known; choose one of {', '.join(f'{known}://' for known in STORAGES)} and a directory. A "
            "store that speaks S3 can be read as s3://BUCKET/PREFIX with `endpoint` in the secret"
        )
    host, slash, prefix = rest.partition("/")
    return _object_store(name, host, slash + prefix, what)


def _object_store(name: str, host: str, prefix: str, what: str) -> Location:
    if ":" in host or name == "minio":
        scheme = "https" if host.endswith(":443") else "http"
        return _own_server(scheme, host, prefix.lstrip("/"), what)
    if found := _AWS.fullmatch(host):
        china = f"https://s3.{found['region']}.amazonaws.com.cn" if found["china"] else ""
        return _s3(found["bucket"], prefix, what, endpoint=china, region=found["region"] or "")
    if found := _BOS.fullmatch(host):
        region = found["region"]
        return _s3(found["bucket"], prefix, what, endpoint=f"https://s3.{region}.bcebos.com", region=region)
    for pattern in _VIRTUAL_HOSTED.values():
        if found := pattern.fullmatch(host):
            return _s3(found["bucket"], prefix, what, f"https://{host}", found["region"], is_virtual_hosted=True)
    return _s3(host, prefix, what)


def _s3(
    bucket: str, prefix: str, what: str, endpoint: str = "", region: str = "", *, is_virtual_hosted: bool = False
) -> Location:
    if not _BUCKET.fullmatch(bucket):
        raise SpecError(f"{what}: {bucket!r:.80} is not the name of a bucket; write NAME://BUCKET/PREFIX")
    url = canonical_url(f"s3://{bucket}{prefix}")
    return Location(url=url, endpoint=endpoint, region=region, is_virtual_hosted=is_virtual_hosted)


def _own_server(scheme: str, host: str, path: str, what: str) -> Location:
    bucket, slash, prefix = path.partition("/")
    if not bucket:
        raise SpecError(f"{what}: no bucket after {host}; write it as {host}/BUCKET/PREFIX")
    return _s3(bucket, slash + prefix, what, f"{scheme}://{host}")


def _is_address(host: str) -> bool:
    return host == "localhost" or re.fullmatch(r"[0-9.]+", host) is not None


def _guess_storage(uri: str, what: str) -> str:
    host = urlsplit(f"//{uri}").hostname or ""
    if _AWS.fullmatch(host):
        return "s3"
    if _BOS.fullmatch(host):
        return "bos"
    found = next((name for name, pattern in _VIRTUAL_HOSTED.items() if pattern.fullmatch(host)), None)
    if found is None:
        raise SpecError(f"{what}: {uri!r:.100} names no storage; write s3://BUCKET/PREFIX, or a directory as /PATH")
    return found
