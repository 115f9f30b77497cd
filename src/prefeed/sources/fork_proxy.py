"""Requests from a forked child, where the native client cannot run: through a fresh process, over two pipes.

A frame is a 4-byte little-endian length and that many bytes of msgpack; the body of an object follows its frame
bare. The child writes one ``Hello``, then for each request one ``Request``; this module, run as a program,
answers a fetch with one ``Reply`` and a listing with ``Batch`` frames, the last one empty, or a ``Reply`` on failure.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import msgspec

from prefeed.config import Config
from prefeed.errors import SourceError, TransientSourceError, error_of
from prefeed.limits import Limits
from prefeed.sources.protocol import BrowsableSource, Source
from prefeed.sources.store_access import StoreAccess
from prefeed.system.signals import hold_job_signals, ignore_job_signals
from prefeed.types import FetchedObject, ObjectInfo

_MODULE: Final = "prefeed.sources.fork_proxy"


class Hello(msgspec.Struct, frozen=True):
    """What to read, and the settings that matter to it; who speaks, in the pipe alone."""

    url: str
    authorization: str | None
    limits: Limits
    home: str
    options: Mapping[str, str]
    proxies: Mapping[str, str]

    def __repr__(self) -> str:
        return "<Hello>"


class Request(msgspec.Struct, frozen=True):
    """Fetch the object at ``path``, as bytes of its file system name; None: list all objects.

    Attributes:
        path: See above.
        offset: Where a part of the object begins.
        size_bytes: Of the part; None: the whole object.
        asks_info: Only size and version of the object are wanted.
    """

    path: bytes | None
    offset: int = 0
    size_bytes: int | None = None
    asks_info: bool = False


class Reply(msgspec.Struct, frozen=True):
    """Outcome of a request; ``size_bytes`` bytes follow when ``code`` is empty."""

    code: str = ""
    message: str = ""
    version: str = ""
    size_bytes: int = 0
    modified_seconds: int = 0
    encoding: str = ""
    is_end_known: bool = True
    object_bytes: int = -1
    sends_parts: bool = True


class Batch(msgspec.Struct, frozen=True):
    """Part of a listing: path, size, version and time of each object; an empty one, or a failure, ends it."""

    objects: list[tuple[bytes, int, str, int]]
    failure: Reply | None = None


_GRACE_SECONDS: Final = 30.0
"""A helper is waited for that much longer than one request may take: it may have to be started, on a busy machine."""


def _write_frame(pipe: IO[bytes], message: msgspec.Struct) -> None:
    """Write one message; the caller flushes."""
    payload = msgspec.msgpack.encode(message)
    pipe.write(len(payload).to_bytes(4, "little"))
    pipe.write(payload)


def _read_exactly(pipe: IO[bytes], size: int) -> bytes:
    """Return ``size`` bytes.

    Raises:
        EOFError: The other side has gone.
    """
    data = pipe.read(size)
    if len(data) != size:
        raise EOFError(f"{len(data)} of {size} bytes came")
    return data


def _read_frame(pipe: IO[bytes]) -> bytes:
    """Return the payload of the next frame."""
    return _read_exactly(pipe, int.from_bytes(_read_exactly(pipe, 4), "little"))


class ForkedReader:
    """A source's requests, carried out by a helper process.

    **Ownership.** Starts the helper at first use and ends it in ``close``; a helper whose owner dies reads the
    end of its pipe and leaves. **Threads and processes.** One request at a time; for the process that made it.
    """

    def __init__(self, url: str, config: Config, authorization: str | None, access: StoreAccess) -> None:
        """Describe what to read, and how its store is reached; nothing is started yet."""
        self.owner_pid: int = os.getpid()
        self._hello = Hello(
            url,
            authorization,
            config.limits,
            str(config.home),
            access.options,
            access.proxies,
        )
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fetch(self, path: str) -> FetchedObject:
        """Return the whole object; errors are those of the source itself."""
        return self._fetched(Request(os.fsencode(path)))

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """Return a part of the object; errors are those of the source itself."""
        return self._fetched(Request(os.fsencode(path), offset, size_bytes))

    def info(self, path: str) -> ObjectInfo:
        """Return size and version of an object; errors are those of the source itself."""
        reply, _ = self._answered(Request(os.fsencode(path), asks_info=True))
        return ObjectInfo(
            path=path, size_bytes=reply.object_bytes, version=reply.version, modified_seconds=reply.modified_seconds,
            sends_parts=reply.sends_parts,
        )  # fmt: skip

    def _fetched(self, request: Request) -> FetchedObject:
        reply, data = self._answered(request)
        return FetchedObject(
            data=data, version=reply.version, modified_seconds=reply.modified_seconds, encoding=reply.encoding,
            is_end_known=reply.is_end_known, object_bytes=reply.object_bytes,
        )  # fmt: skip

    def _answered(self, request: Request) -> tuple[Reply, bytes]:
        with self._lock:
            try:
                pipe = self._ask(request)
                limit = self._hello.limits.request_seconds + _GRACE_SECONDS
                if not select.select([pipe], [], [], limit)[0]:  # nothing of an earlier answer is left in the pipe
                    raise EOFError(f"no answer in {limit:g} s: it may be suspended")
                reply = msgspec.msgpack.decode(_read_frame(pipe), type=Reply)
                data = _read_exactly(pipe, reply.size_bytes)
            except (OSError, EOFError, msgspec.DecodeError) as err:
                raise self._gone() from err
            except BaseException:  # Ctrl-C, say: the answer would be taken for that to the next request
                self._end()
                raise
        if reply.code:
            raise error_of(reply.code, reply.message, SourceError)
        return reply, data

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield the source's listing; the helper serves nothing else until it ends, and is ended when it is left."""
        with self._lock:
            complete = False
            try:
                pipe = self._ask(Request(None))
                while (batch := msgspec.msgpack.decode(_read_frame(pipe), type=Batch)).objects:
                    yield [
                        ObjectInfo(path=os.fsdecode(path), size_bytes=size, version=version, modified_seconds=modified)
                        for path, size, version, modified in batch.objects
                    ]
                complete = True
            except (OSError, EOFError, msgspec.DecodeError) as err:
                raise self._gone() from err
            finally:
                if not complete:
                    self._end()
        if batch.failure is not None:
            raise error_of(batch.failure.code, batch.failure.message, SourceError)

    def close(self) -> None:
        """End the helper and wait for it; a helper of another process is left to that one."""
        with self._lock:
            self._end()

    def _ask(self, request: Request) -> IO[bytes]:
        """Send a request, to a new helper if there is none, and return the pipe that the answer comes from."""
        fresh = self._process is None
        process = self._process
        if process is None:
            with hold_job_signals():
                process = subprocess.Popen(
                    [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        if fresh:
            _write_frame(process.stdin, self._hello)
        _write_frame(process.stdin, request)
        process.stdin.flush()
        return process.stdout

    def _gone(self) -> TransientSourceError:
        self._end()
        return TransientSourceError(
            f"{self._hello.url}: the process that reads it for a forked worker has ended; a new one is started",
            url=self._hello.url,
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self.owner_pid != os.getpid():
            return
        process.kill()
        process.communicate()


def _serve(open_source: Callable[..., BrowsableSource], requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the other side closes its pipe."""
    try:
        hello = msgspec.msgpack.decode(_read_frame(requests), type=Hello)
        config = Config(limits=hello.limits, home=Path(hello.home))
        access = StoreAccess(options=hello.options, proxies=hello.proxies)
        source = open_source(hello.url, config, authorization=hello.authorization, access=access)
        while True:
            request = msgspec.msgpack.decode(_read_frame(requests), type=Request)
            if request.path is None:
                _list(source, replies)
            else:
                _fetch(source, os.fsdecode(request.path), request, replies)
            replies.flush()
    except (EOFError, BrokenPipeError):
        return


def _fetch(source: BrowsableSource, path: str, request: Request, replies: IO[bytes]) -> None:
    try:
        if request.asks_info:
            info = source.info(path)
            _write_frame(
                replies,
                Reply(
                    version=info.version, modified_seconds=info.modified_seconds, object_bytes=info.size_bytes,
                    sends_parts=info.sends_parts,
                ),
            )  # fmt: skip
            return
        if request.size_bytes is None:
            fetched = source.fetch(path)
        else:
            fetched = source.fetch_range(path, request.offset, request.size_bytes)
    except SourceError as err:
        _write_frame(replies, _failure(err))
        return
    said = Reply(
        version=fetched.version, size_bytes=len(fetched.data), modified_seconds=fetched.modified_seconds,
        encoding=fetched.encoding, is_end_known=fetched.is_end_known, object_bytes=fetched.object_bytes,
    )  # fmt: skip
    _write_frame(replies, said)
    replies.write(fetched.data)


def _list(source: Source, replies: IO[bytes]) -> None:
    failure: Reply | None = None
    try:
        for batch in _batches(source):
            _write_frame(replies, batch)
    except SourceError as err:
        failure = _failure(err)
    _write_frame(replies, Batch([], failure))


def _batches(source: Source) -> Iterator[Batch]:
    for infos in source.list_objects():
        yield Batch([(os.fsencode(info.path), info.size_bytes, info.version, info.modified_seconds) for info in infos])


def _failure(err: SourceError) -> Reply:
    return Reply(code=err.code, message=err.message)


def _main(open_source: Callable[..., BrowsableSource]) -> None:
    """Serve on stdin and stdout; whatever else prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who closes the pipe.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with ignore_job_signals():
        _serve(open_source, sys.stdin.buffer, replies)


if __name__ == "__main__":
    from prefeed.sources.objectstore import ObjectStoreSource  # which starts this very program

    _main(ObjectStoreSource)
