"""fsspec file system ``prefeed``: read-only objects of any origin through the node's cache.

    prefeed://s3://bucket/x        the object at a URL or path, as in ``prefeed.open``
    prefeed://NAME/x               an object in the sample set NAME
    prefeed::s3://bucket/x         like the first, as a chained URL; requires fsspec's s3 class, which is not used for reads

Names in listings are full URLs and absolute paths. ``glob`` returns them with ``prefeed://``.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from fsspec.implementations.chained import ChainedFileSystem

from prefeed.client.block_file import BlockFile
from prefeed.client.blocks import Blocks, blocks_of
from prefeed.client.node import access_now
from prefeed.config import SAMPLE_SET, Config, settings_of
from prefeed.errors import (
    AccessDeniedError,
    BadTargetNameError,
    ConfigError,
    EmptyListingError,
    ObjectNotFoundError,
    PassedThroughError,
    PrefeedError,
    SampleSetNotFoundError,
)
from prefeed.files.opening import open as open_object
from prefeed.loaders import hugging_face
from prefeed.sampleset.names import find_named, resolve
from prefeed.sources.listing import LeftOut
from prefeed.sources.plain_s3 import is_odd
from prefeed.sources.urls import canonical_url, is_of_store, split_object
from prefeed.types import ObjectInfo

_log = logging.getLogger("prefeed")

_PROTOCOL: Final = "prefeed"
_CHAIN: Final = f"{_PROTOCOL}::"
_SCHEME: Final = f"{_PROTOCOL}://"
_OWN: Final = ("file", "local")
_WEB: Final = ("http://", "https://")
_QUERY: Final = re.compile(r"https?://[^?]*\?[^/?=&]+=")
"""URL with a query such as ``?name=``, in which ``?`` is not a wildcard."""

_STORES: Final = ("s3://", "gs://", "az://")
_AZURE: Final = "az"
_AS_IN_SPEC: Final = {"s3a": "s3", "gcs": "gs", "abfs": _AZURE, "abfss": _AZURE, "adl": _AZURE}

_CREDENTIALS: Final = re.compile(
    r"(?:^|[_-])(?:account|anon|auth|connection_string|cookie|credential|endpoint|key|password|profile|project|requester|sas|secret|"
    r"session|tenant|token|username)",
    re.IGNORECASE,
)
"""Names of options that select an account or a server. They are rejected, because ignoring them would use another account."""

_FRESH_SECONDS: Final = 15.0
"""Age up to which a file that was opened ahead is used without a check whether the object has changed."""

_MAX_AHEAD: Final = 16
"""Maximum number of files that are open ahead, one per stream."""

_ahead: Final[dict[tuple[str, Config | None], tuple[float, BlockFile]]] = {}
"""Files that were opened ahead, with the time. Global, because fsspec creates a file system per thread, and streams change threads."""


class PrefeedFileSystem(ChainedFileSystem):  # type: ignore[misc]
    """Read-only file system of objects in blocks, through the node's cache.

    Args:
        config: Settings; defaults to those in force in the process.
        target_protocol: Protocol of paths without a scheme, as fsspec passes it for ``prefeed::s3://…``.
        target_options: Options of the inner file system.
        fo: Ignored, because paths contain it too.
        storage_options: Options of other file systems (``block_size``, ``client_kwargs``, …), which are ignored, because libraries pass
            them to every file system.

    Raises:
        ConfigError: An option contains credentials or an endpoint, which prefeed reads from its own configuration.

    **Threads and processes**: any thread. A forked child creates its own, as with all file systems of fsspec.
    """

    protocol = (_PROTOCOL, "sampleset")
    root_marker = ""

    def __init__(
        self,
        config: Config | None = None,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fo: str | None = None,
        **storage_options: Any,
    ) -> None:
        if target_protocol and target_protocol not in (*_AS_IN_SPEC, *_OWN, *self.protocol):
            canonical_url(f"{target_protocol}://host/x")  # Raises an error for an unknown scheme.
        given = {**(target_options or {}), **storage_options}
        if refused := sorted(_credentials_in(given)):
            raise ConfigError(
                f"options {', '.join(refused)} cannot be given to {_PROTOCOL}: set credentials and endpoints in the environment, "
                "in ~/.aws or in credentials.json, which `prefeed doctor` and all loaders read"
            )
        if given:
            _log.debug("prefeed: the options %s do not apply to %s and are ignored", ", ".join(given), _SCHEME)
        super().__init__()
        self._target = _AS_IN_SPEC.get(target_protocol or "", target_protocol)
        self._config = config

    @property
    def fsid(self) -> str:
        """Identifier of this file system in fsspec."""
        return _PROTOCOL

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Remove the prefix ``prefeed://`` or ``prefeed::`` and the trailing slash."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        while text.startswith((_CHAIN, _SCHEME)):
            text = text[len(_CHAIN) :] if text.startswith(_CHAIN) else text[len(_SCHEME) :]
        return text if text in ("/", "") or text.endswith("://") else text.rstrip("/")

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL with ``prefeed://`` for a name."""
        full = self._full_url(name)
        return f"{_SCHEME}{'file://' if full.startswith('/') else ''}{full}"

    # ------------------------------------------------------------ one object

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the current name, size, type and version of an object or a directory.

        Raises:
            FileNotFoundError: No object or directory has this name.
        """
        full = self._full_url(path)
        try:
            root, name, blocks = self._locate(full)
            return _describe(blocks.info(root, name), full)
        except (ObjectNotFoundError, IsADirectoryError, PassedThroughError, ConfigError) as err:
            if self._has_below(full):
                return _describe_directory(full)
            if isinstance(err, ConfigError):
                raise
            raise FileNotFoundError(str(err)) from err

    def exists(self, path: str, **_: Any) -> bool:
        """Return True if an object or a directory exists. Other errors than FileNotFoundError are raised."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ukey(self, path: str) -> str:
        """Return a key that changes with the object's contents."""
        found = self.info(path)
        return f"{found['name']} {found.get('ETag')} {found['size']}"

    def checksum(self, path: str) -> str:
        """Return ``ukey``."""
        return self.ukey(path)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, cache_options: Any = None, **options: Any
    ) -> Any:
        full, readahead = self._full_url(path), options.get("readahead")
        is_followed = mode == "rb" and readahead is None
        opened, ahead = _ahead.pop((full, self._config), (0.0, None)) if is_followed else (0.0, None)
        if ahead is not None and time.monotonic() - opened < _FRESH_SECONDS:
            file: Any = ahead
        else:
            file = open_object(full, mode, readahead=readahead, config=self._config)
            if ahead is not None:
                file = _choose_version(ahead, file)
        after = hugging_face.following(full)
        if after is not None and isinstance(file, BlockFile):
            file.when_half_read(partial(self._open_ahead, after))
        return file

    def _open_ahead(self, full: str, before: BlockFile) -> None:
        """Open the file that follows ``before``, and prefetch the same ranges as in ``before``."""
        with suppress(PrefeedError, OSError):  # The reader of the file gets the error.
            file = open_object(full, config=self._config)
            if isinstance(file, BlockFile):
                file.begin_as(before)
                _ahead[full, self._config] = time.monotonic(), file
                for oldest in list(_ahead)[:-_MAX_AHEAD]:
                    _, file = _ahead.pop(oldest, (0.0, file))
                    file.close()

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Open an object as a binary or text file. See ``prefeed.open``.

        Raises:
            ConfigError: The mode is for writing.
        """
        if set(mode) & set("wax+"):
            raise ConfigError(f"mode {mode!r} is not possible: {_PROTOCOL} only reads")
        return super().open(path, mode, **options)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Raise ConfigError, because the file system is read-only."""
        raise ConfigError(f"{path} cannot be made: {_PROTOCOL} only reads")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Raise ConfigError, because the file system is read-only."""
        self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Raise ConfigError, because the file system is read-only."""
        raise ConfigError(f"{path} cannot be removed: {_PROTOCOL} only reads")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Raise ConfigError, because the file system is read-only."""
        self.rmdir(path)

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Any = None, outfile: Any = None, **options: Any
    ) -> None:
        """Copy an object to a local file. See fsspec.

        Raises:
            BadTargetNameError: The name of the object leads out of the target directory, or to the file of another object.
        """
        odd = is_odd(rpath.partition("://")[2]) if "://" in rpath else None
        if odd is not None and outfile is None and isinstance(lpath, str | os.PathLike):
            if os.fspath(lpath).endswith(odd[0] + odd.string[odd.end() :]):
                raise BadTargetNameError(
                    f"{rpath!r} cannot be copied to {os.fspath(lpath)!r}: name the file of the copy itself"
                )
        super().get_file(
            rpath, lpath, **({} if callback is None else {"callback": callback}), outfile=outfile, **options
        )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes of an object from ``start`` up to ``end``. Negative numbers count from the end."""
        with self._open(path, readahead=False) as file:
            return _read_part(file, start, end)

    def get(self, rpath: Any, lpath: Any, recursive: bool = False, **options: Any) -> None:
        """Copy objects to local files. Paths are expanded first, because fsspec compares them with results of ``find``."""
        given = rpath if isinstance(rpath, list) else [rpath]
        paths = [self._full_url(path) + "/" * os.fspath(path).endswith("/") for path in given]
        super().get(paths if isinstance(rpath, list) else paths[0], lpath, recursive=recursive, **options)

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int | None] | None,
        ends: int | list[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Return the bytes of several ranges. Each object is opened once.

        Args:
            paths: Paths of objects, possibly repeated.
            starts: First byte of each range, or of all ranges.
            ends: End of each range, exclusive, or of all ranges.
            max_gap: Ignored.
            on_error: ``return`` to return the exception instead of the bytes, or ``raise``.
        """
        if not isinstance(starts, Iterable):
            starts = [starts] * len(paths)
        if not isinstance(ends, Iterable):
            ends = [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError(f"numbers of paths, starts and ends differ: {len(paths)}, {len(starts)}, {len(ends)}")
        found: list[Any] = []
        files: dict[str, BlockFile] = {}
        try:
            for path, start, end in zip(paths, starts, ends, strict=True):
                try:
                    file = files.get(path) or self._open(path)
                    if isinstance(file, BlockFile):
                        files[path] = file
                        found.append(_read_part(file, start, end))
                    else:  # A local file has a descriptor, so close it at once.
                        with file:
                            found.append(_read_part(file, start, end))
                except Exception as err:  # As in fsspec, any error replaces only these bytes.
                    if on_error != "return":
                        raise
                    found.append(err.with_traceback(None))  # The traceback's frames refer to this list.
        finally:
            for file in files.values():
                file.close()
        return found

    # ------------------------------------------------------------ directories

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the entries of a directory, or the object itself, as descriptions or names.

        Raises:
            FileNotFoundError: No object or directory has this name.
        """
        full = self._full_url(path)
        files, below = self._list_level(full)
        found = {one["name"]: one for one in (*files.values(), *map(_describe_directory, below))}
        if not found:
            itself = self.info(path)
            found = {} if itself["type"] == "directory" else {itself["name"]: itself}
        elif full.startswith(_STORES):
            with suppress(FileNotFoundError):  # An object can have the same name as a directory.
                found[full] = self._info_of_object(full)
        ordered = [found[name] for name in sorted(found)]
        return ordered if detail else [one["name"] for one in ordered]

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = None,
        *,
        detail: bool = False,
        **_: Any,
    ) -> Iterator[Any]:
        """Yield each directory below a path with its directories and files. See fsspec.

        An object with the name of a directory is in both lists. The name of a file begins with a slash if its key contains two.
        Unreadable local directories are skipped with a warning, as in every listing.

        Raises:
            OSError: A directory cannot be listed, and ``on_error`` is neither ``omit`` nor a function that receives the error.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError(f"maxdepth must be at least 1, not {maxdepth}")
        yield from self._walk(self._full_url(path), "", maxdepth, topdown=topdown, on_error=on_error, detail=detail)

    def _walk(
        self, root: str, path: str, maxdepth: int | None, *, topdown: bool, on_error: Any, detail: bool
    ) -> Iterator[Any]:
        full = self._names_below(root)(path) if path else root
        try:
            files, below = self._list_level(root, path)
            if not path and not files and not below:
                itself = self.info(root)
                files = {"": itself} if itself["type"] == "file" else {}
        except OSError as err:
            if on_error is None and isinstance(err, AccessDeniedError) and not is_of_store(self._resolve(root)[0]):
                left_out = LeftOut()
                left_out.add(f"{path}/", str(err))
                left_out.warn(root)
            elif on_error in (None, "raise"):
                raise
            elif callable(on_error):
                on_error(err)
            return
        paths = {name[len(full.rstrip("/")) + 1 :]: below[name] for name in below}
        directories: Any = (
            {name: _describe_directory(f"{full.rstrip('/')}/{name}") for name in paths} if detail else list(paths)
        )
        found = full, directories, files if detail else list(files)
        if topdown:
            yield found
        if maxdepth is None or maxdepth > 1:
            rest = None if maxdepth is None else maxdepth - 1
            for name in list(directories):
                if name in paths:
                    yield from self._walk(root, paths[name], rest, topdown=topdown, on_error=on_error, detail=detail)
        if not topdown:
            yield found

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """Return the names of all objects below a directory, sorted; with ``detail``, a dict of descriptions."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        full = self._full_url(path)
        try:
            url, blocks = self._resolve(full)
            name_of = self._names_below(full)
            infos = [info for batch in blocks.source(url).list_whole() for info in batch]
            found = {name: _describe(info, name) for info in infos for name in (name_of(info.path),)}
            if found and full.startswith(_STORES):
                with suppress(FileNotFoundError):
                    found[full] = self._info_of_object(full)
        except (ObjectNotFoundError, EmptyListingError, NotADirectoryError):
            found = {}
        if not found and self.exists(path):
            one = self.info(path)
            found = {one["name"]: one} if one["type"] == "file" else {}
        ordered = dict(sorted(found.items()))
        return ordered if detail else list(ordered)

    def du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **options: Any
    ) -> Any:
        """Return the total size of the objects below a directory in bytes; with ``total=False``, the size of each by name."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **options)
        sizes = {name: one["size"] or 0 for name, one in found.items()}
        return sum(sizes.values()) if total else sizes

    def glob(self, path: str, maxdepth: int | None = None, detail: bool = False, **options: Any) -> Any:
        """Return the objects that match a pattern, as ``prefeed://`` URLs, because Hugging Face's datasets opens the results."""
        full = self._full_url(path)
        if _QUERY.match(full):
            found = {full: self.info(full)} if self.exists(full) else {}
        else:
            found = super().glob(full, maxdepth=maxdepth, detail=True, **options)
        urls = {self.unstrip_protocol(name): info for name, info in found.items()}
        return urls if detail else list(urls)

    # ------------------------------------------------------------ names and listings

    def _full_url(self, path: str) -> str:
        """Convert a path of fsspec to a full URL or an absolute path."""
        text = str(self._strip_protocol(path))
        if "://" in text:
            scheme, separator, rest = text.partition("://")
            if scheme in _OWN:
                return "/" + rest.lstrip("/")  # Some libraries use pathlib on URLs, which drops slashes.
            scheme = _AS_IN_SPEC.get(scheme, scheme)
            return scheme + separator + (self._in_container(rest) if scheme == _AZURE else rest)
        if self._target is None:
            return text if text.startswith("/") else self._resolve_name(text)
        return canonical_url(text) if self._target in _OWN else f"{self._target}://{text}"

    def _resolve_name(self, text: str) -> str:
        """Return the URL in a sample set. If no such set exists, return the path with the first slash that pathlib dropped."""
        url = SAMPLE_SET + text
        name, slash, _ = text.partition("/")
        if slash and os.path.isdir(f"/{name}"):
            try:
                find_named(url, settings_of(self._config))
            except SampleSetNotFoundError:
                return f"/{text}"
        return url

    def _in_container(self, rest: str) -> str:
        """Remove the account from ``container@account…/path``, fsspec's form of Azure URLs.

        Raises:
            ConfigError: The account differs from that of the settings, or the settings have none.
        """
        place, slash, path = rest.partition("/")
        container, at, host = place.partition("@")
        if not at:
            return rest
        account = host.partition(".")[0]
        access = access_now(f"{_AZURE}://{container}", settings_of(self._config))
        known = "" if access is None else access.options.get("account_name", "")
        if account != known:
            raise ConfigError(
                f"{rest} is in the account {account!r}, and prefeed is configured for {known or 'none'}: "
                f"set AZURE_STORAGE_ACCOUNT_NAME={account}, or name it in credentials.json"
            )
        return container + slash + path

    def _resolve(self, full: str) -> tuple[str, Blocks]:
        url, settings = resolve(full, settings_of(self._config))
        return url, blocks_of(settings)

    def _locate(self, full: str) -> tuple[str, str, Blocks]:
        url, blocks = self._resolve(full)
        root, name = split_object(url)
        return root, name, blocks

    def _list_level(self, full: str, path: str = "") -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """List one directory of a root.

        Returns:
            Descriptions of the files by their names in the directory, and paths of the directories in the root by their full names.
        """
        infos, directories = self._query_level(full, path)
        name_of = self._names_below(full)
        start = f"{path}/" if path else ""
        skip = len(name_of(start))
        files: dict[str, dict[str, Any]] = {}
        for info in infos:
            inside = info.path[len(start) :]  # empty for the marker of the directory itself
            if inside or info.size_bytes:
                name = name_of(start + inside)
                files[name[skip:]] = _describe(info, name)
        return files, {name_of(directory): directory for directory in directories}

    def _query_level(self, full: str, path: str = "") -> tuple[list[ObjectInfo], list[str]]:
        """Request the objects (with the directory's own marker) and the directories in a directory of a root."""
        url, blocks = self._resolve(full)
        try:
            return blocks.ask(lambda: blocks.source(url).list_level(path))
        except (ObjectNotFoundError, EmptyListingError):
            return [], []

    def _info_of_object(self, full: str) -> dict[str, Any]:
        """Return the description of an object; raise FileNotFoundError if it does not exist or is a directory."""
        try:
            root, name, blocks = self._locate(full)
            return _describe(blocks.info(root, name), full)
        except (ObjectNotFoundError, IsADirectoryError, PassedThroughError, ConfigError) as err:
            raise FileNotFoundError(str(err)) from err

    def _names_below(self, full: str) -> Callable[[str], str]:
        """Return the function that converts paths below a root to names for ``open``, percent-encoded for web servers."""
        base, is_web = full.rstrip("/"), self._resolve(full)[0].startswith(_WEB)
        return lambda path: f"{base}/{quote(path, errors='surrogateescape') if is_web else path}"

    def _has_below(self, full: str) -> bool:
        if any(self._query_level(full)):
            return True
        url, _ = self._resolve(full)
        return not is_of_store(url) and os.path.isdir(url)


hugging_face.register()
os.register_at_fork(after_in_child=_ahead.clear)


def _credentials_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of options, also nested ones, that set credentials or an endpoint."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _credentials_in(value)
        elif value and _CREDENTIALS.search(name):
            yield name


def _choose_version(ahead: BlockFile, now: Any) -> Any:
    """Return the file opened ahead if its version is current, otherwise the one opened now. Close the other one."""
    is_same = (
        isinstance(now, BlockFile) and ahead.version != "" and (ahead.version, ahead.size) == (now.version, now.size)
    )
    (now if is_same else ahead).close()
    return ahead if is_same else now


def _read_part(file: Any, start: int | None, end: int | None) -> bytes:
    size = file.size if isinstance(file, BlockFile) else os.fstat(file.fileno()).st_size
    begin, stop, _ = slice(start, end).indices(size)
    file.seek(begin)
    return bytes(file.read(max(0, stop - begin)))


def _describe(info: ObjectInfo, name: str) -> dict[str, Any]:
    size = info.size_bytes if info.size_bytes >= 0 else None
    return {
        "name": name,
        "size": size,
        "type": "file",
        "ETag": info.version or None,
        "mtime": info.modified_seconds or None,
    }


def _describe_directory(name: str) -> dict[str, Any]:
    return {"name": name.rstrip("/"), "size": 0, "type": "directory"}
