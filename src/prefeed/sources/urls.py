"""From a URL or a path to a source."""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64encode
from multiprocessing.context import get_spawning_popen
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from prefeed.config import SAMPLE_SET, Config
from prefeed.errors import ConfigError, UnknownSchemeError
from prefeed.sources.blocks import BlockSource
from prefeed.sources.listing import Listing
from prefeed.sources.packed import PackedSource
from prefeed.sources.plain_s3 import is_odd
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import BrowsableSource, Source
from prefeed.sources.signed_urls import query_of
from prefeed.sources.store_access import StoreAccess
from prefeed.sources.views import View, mark_of_directory
from prefeed.system.machine import PROCESS_PATHS

OBJECT_STORE_SCHEMES: Final = ("s3", "gs", "az", "http", "https")
KNOWN_SCHEMES: Final = ("file", *OBJECT_STORE_SCHEMES)
PACK: Final = "pack+"
"""Before the scheme of a URL: what lies there is a pack, and its objects are those that were packed."""

BLOCKS: Final = "blocks+"
"""Before the scheme of a URL: large objects are runs of blocks; see ``sources.blocks``."""

_SPEAK_S3: Final = {
    "bos": "https://s3.REGION.bcebos.com", "oss": "https://s3.oss-REGION.aliyuncs.com",
    "cos": "https://cos.REGION.myqcloud.com", "obs": "https://obs.REGION.myhuaweicloud.com", "minio": "http://HOST:9000",
}  # fmt: skip
"""Schemes of other tools for stores that speak S3, and the endpoints of those."""

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NO_ODD_NAMES: Final = ("gs", "az")
_HTTP_SAFE: Final = "/%:@!$&'()*+,;=~-._"


def canonical_url(url_or_path: str | os.PathLike[str]) -> str:
    """Return the one spelling of a root that keys and messages use.

    A POSIX directory is its absolute path without ``file://`` and without a trailing slash; symbolic links
    stay as they are. Other URLs lose credentials, query, fragment, default port and trailing slash. A pack is
    ``pack+`` and the URL of its directory, ``pack+file:///…`` or ``pack+s3://…``; the same for ``blocks+``.

    Raises:
        UnknownSchemeError: No source reads this scheme.
        ConfigError: A URL without a bucket, container or host, or a ``file://`` URL of another host.
    """
    text = os.fspath(url_or_path)
    match = _SCHEME.match(text)
    if match is None:
        return _absolute(os.path.expanduser(text))
    scheme = match[1].lower()
    if scheme.startswith(PACK):
        return PACK + _as_url(canonical_url(text[len(PACK) :]))
    if scheme.startswith(BLOCKS):
        return BLOCKS + _as_url(canonical_url(text[len(BLOCKS) :]))
    if scheme == "file":
        return _absolute(_file_path(text))
    if f"{scheme}://" == SAMPLE_SET:
        raise UnknownSchemeError(
            f"{text} is the name of a sample set, which cannot be used here: `prefeed sampleset describe` shows where its data is",
            scheme=scheme,
        )
    if scheme not in OBJECT_STORE_SCHEMES:
        if scheme in _SPEAK_S3:
            bucket = f"s3://{without_credentials(text).partition('://')[2]}"
            raise UnknownSchemeError(
                f"no source reads {scheme}:// (in {without_credentials(text)}), and its store speaks S3: write {bucket}, and set "
                f"AWS_ENDPOINT_URL={_SPEAK_S3[scheme]} or name that as endpoint in credentials.json",
                scheme=scheme,
            )
        raise UnknownSchemeError(
            f"no source reads {scheme}:// (in {without_credentials(text)}); "
            f"choose a directory or {', '.join(f'{known}://' for known in KNOWN_SCHEMES)}, "
            f"and write {PACK} before it for a pack",
            scheme=scheme,
        )
    return _network_url(scheme, text)


def pack_url(url_or_path: str | os.PathLike[str]) -> str:
    """Return the URL by which a pack is opened, given the directory or URL that it lies at, or that URL itself.

    Credentials in it stay: it is for sources, not for messages.
    """
    text = os.fspath(url_or_path)
    if text.lower().startswith(PACK) and _SCHEME.match(text):
        return text
    root = canonical_url(text)
    return PACK + (_as_url(root) if root.startswith("/") else text)


def blocks_url(url_or_path: str | os.PathLike[str]) -> str:
    """Return the URL by which a root is opened in blocks, given the root or that URL itself; credentials in it stay."""
    text = os.fspath(url_or_path)
    if text.lower().startswith(BLOCKS) and _SCHEME.match(text):
        return text
    return BLOCKS + (_as_url(canonical_url(text)) if _SCHEME.match(text) is None else text)


def unwrapped(url: str) -> str:
    """Return the URL of what a pack, or a listing of blocks, lies on; other URLs come back as they are."""
    return url.removeprefix(PACK).removeprefix(BLOCKS)


def split_object(url_or_path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the root of one object, its directory as a rule, and the object's path below it.

    The names of objects in stores and of files are taken as they are: ``?``, ``#`` and ``%`` are characters like any other.
    Those of web servers are percent-encoded. The query of a web server's URL stays with the root: see ``signed_urls``.

    Raises:
        ConfigError: Another object would be read: the URL of a web server has a fragment, a query without ``=`` or a ``/`` in the name,
            or that of a store other than S3 has an empty part.
        UnknownSchemeError: No source reads this scheme.
    """
    text = os.fspath(url_or_path)
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match is not None else "file"
    if scheme not in OBJECT_STORE_SCHEMES:
        root, _, name = canonical_url(text).rpartition("/")
        return root or "/", name
    query = query_of(text)
    if scheme in _DEFAULT_PORTS:
        if "#" in text:
            raise ConfigError(
                f"{without_credentials(text)} has a fragment, which is not sent; write %23 for # in a name"
            )
        if query and "=" not in query:
            raise ConfigError(
                f"{without_credentials(text)} has a ? without a parameter; write %3F for ? in a name, ?NAME= for a query"
            )
        text = text.partition("?")[0]
    place, slash, path = text[text.index("://") + 3 :].partition("/")
    path = path.rstrip("/")
    directory, _, name = path.rpartition("/")
    if not slash or not path or not place:
        raise ConfigError(f"{without_credentials(text)} names no object; write {scheme}://name/path")
    if scheme in _NO_ODD_NAMES and "" in path.split("/"):
        raise ConfigError(f"{without_credentials(text)} has // in its path: no object of such a name can be read")
    if scheme in _DEFAULT_PORTS and "/" in unquote(name):
        raise ConfigError(f"{without_credentials(text)} has %2F in its name: no object of such a name can be read")
    is_web = scheme in _DEFAULT_PORTS
    if is_web and "/" in path:
        has_odd_root = "" in (directory.rpartition("/")[2], path.partition("/")[0])
    else:
        has_odd_root = re.search(r"[?#]", directory) is not None or (not is_web and is_odd(path) is not None)
    if has_odd_root:  # no root can have such a name
        directory, name = "", path
    root = f"{scheme}://{place}/{directory}".rstrip("/")
    canonical_url(root)
    return root + query, unquote(name, errors="surrogateescape") if is_web else name


def without_credentials(url: str) -> str:
    """Return the URL without user, password, query and fragment, for messages."""
    return re.sub(r"(://)[^/@?#]*@", r"\1", re.split(r"[?#]", url, maxsplit=1)[0])


def root_of(listing: Listing) -> str:
    """Return where the objects of a listing lie: a URL, or the directory above the first and the last file of a catalogue."""
    if not listing.grows or not listing.num_objects:
        return without_credentials(listing.url)
    return os.path.commonpath([os.path.dirname(listing.path(at)) for at in (0, listing.num_objects - 1)])


_SECRET: Final = re.compile(r"://(prefeed-[0-9a-f]{16})@")
_given: Final[dict[str, str]] = {}
"""URLs with credentials that this process was given, by the texts that stand for them."""


def veiled(url: str) -> str:
    """Return a text that stands for the URL, in this process and in those forked from it, and has no credentials in it.

    It may be kept, pickled and told to anybody. ``unveiled`` returns the URL.
    """
    scheme = unwrapped(url.partition("://")[0].lower())
    bare = without_credentials(url)
    if scheme not in OBJECT_STORE_SCHEMES or bare == url or _SECRET.search(url):
        return url
    known = next((text for text, full in list(_given.items()) if full == url), None)
    if known is not None:
        return known
    text = bare.replace("://", f"://prefeed-{secrets.token_hex(8)}@", 1)
    _given[text] = url
    return text


def unveiled(url: str) -> str:
    """Return the URL that a text stands for; in a process that was not given it, the same without credentials."""
    return _given[url] if url in _given else _SECRET.sub("://", url)


def for_pickle(url: str) -> str:
    """Return what is pickled of a URL that was veiled: credentials go to a child that ``multiprocessing`` starts, and nowhere else.

    Who has none of them is told by ``credentials.json`` who speaks, and by the node server what it has fetched itself.
    """
    return url if get_spawning_popen() is None else unveiled(url)


def open_source(
    url: str | os.PathLike[str], config: Config, *, access: StoreAccess | None = None, view: View | None = None
) -> Source:
    """Return the source that reads ``url``; nothing is requested and no native handle opened yet.

    A user and password in an ``http(s)://`` URL are sent as basic authentication, a query with each request; neither appears
    anywhere else.

    Args:
        url: Root.
        config: Settings.
        access: How its object store is reached; None: as this process finds it.
        view: Through which directories are read; None: this process's own.

    Raises:
        UnknownSchemeError, ConfigError: See ``canonical_url``.
    """
    url = unveiled(os.fspath(url))
    root = canonical_url(url)
    if root.startswith(BLOCKS):
        return open_blocks(url, config, access=access, view=view)
    if not root.startswith(PACK):
        return open_plain_source(url, config, access=access, view=view)
    return PackedSource(
        root,
        open_plain_source(url[len(PACK) :], config, access=access, view=view),
        home=config.home,
    )


def open_blocks(
    url: str | os.PathLike[str], config: Config, *, access: StoreAccess | None = None, view: View | None = None
) -> BlockSource:
    """Return the source that reads a ``blocks+`` URL, as ``open_source``.

    Raises:
        UnknownSchemeError, ConfigError: See ``canonical_url``.
    """
    url = unveiled(os.fspath(url))
    plain = open_plain_source(url[len(BLOCKS) :], config, access=access, view=view)
    return BlockSource(canonical_url(url), plain, config.limits.block_bytes)


def open_plain_source(
    url: str | os.PathLike[str], config: Config, *, access: StoreAccess | None = None, view: View | None = None
) -> BrowsableSource:
    """Return the source that reads ``url``, which is no pack, as ``open_source``; nothing is requested yet.

    Raises:
        UnknownSchemeError, ConfigError: See ``canonical_url``.
    """
    url = unveiled(os.fspath(url))
    root = canonical_url(url)
    if root.startswith("/"):
        return PosixSource(root, view=view)
    if root.startswith((PACK, BLOCKS)):
        raise UnknownSchemeError(
            f"{root} cannot be inside a pack or in blocks: a pack's objects are read whole; write {PACK} or {BLOCKS} alone"
        )
    # Imported here so that readers of local files do not load the object-store library.
    from prefeed.sources.objectstore import ObjectStoreSource  # noqa: PLC0415

    return ObjectStoreSource(root, config, authorization=_basic_authorization(url), query=query_of(url), access=access)


def listing_mark(source: Source) -> str:
    """Return what tells the origin, as this process sees it, from others of the same URL: a listing is of one of them."""
    if is_of_store(source.url):
        return source.mark
    root = unwrapped(source.url)
    return mark_of_directory(_file_path(root) if root.startswith("file://") else root)


def is_of_store(url: str) -> bool:
    """Return True when a canonical URL, or the pack that it names, lies in an object store."""
    return not unwrapped(url).startswith(("/", "file://"))


def _as_url(root: str) -> str:
    return "file://" + quote(os.fsencode(root)) if root.startswith("/") else root


def _absolute(path: str) -> str:
    # abspath keeps a leading "//", which POSIX allows to mean something else; here it never does.
    absolute = "/" + os.path.abspath(path).lstrip("/")
    return os.path.realpath(absolute) if absolute.startswith(PROCESS_PATHS) else absolute


def _file_path(url: str) -> str:
    rest = url[len("file://") :]
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise ConfigError(f"{url} does not name a directory of this machine; write file:///absolute/path")
    return "/" + unquote(path, errors="surrogateescape")


def _network_url(scheme: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        named, port_number = parts.hostname, parts.port if scheme in _DEFAULT_PORTS else None
    except ValueError as err:
        raise ConfigError(f"{without_credentials(text)} is not a URL: {err}") from err
    if not named:
        raise ConfigError(f"{without_credentials(text)} names no bucket or host; write {scheme}://name/path")
    if scheme not in _DEFAULT_PORTS:
        bucket = parts.netloc.rpartition("@")[2]
        path = re.split(r"[?#]", text[text.index("://") + 3 :], maxsplit=1)[0].partition("/")[2]  # urlsplit drops tabs
        return f"{scheme}://{bucket}/{path}".rstrip("/")
    host = f"[{named}]" if ":" in named else named
    port = "" if port_number in (None, _DEFAULT_PORTS[scheme]) else f":{port_number}"
    return f"{scheme}://{host}{port}{quote(parts.path.rstrip('/'), safe=_HTTP_SAFE)}"


def _basic_authorization(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme.lower() not in _DEFAULT_PORTS or parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + b64encode(pair.encode()).decode()
