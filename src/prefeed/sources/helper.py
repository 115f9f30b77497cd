"""The process that reads an origin for forked workers; started by ``prefeed.sources.forked``, never by hand."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from prefeed.config import Config
from prefeed.errors import SourceError
from prefeed.sources.forked import Batch, Hello, Reply, Request, read_frame, write_frame
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed.sources.protocol import RangeSource, Source
from prefeed.sources.store_access import StoreAccess


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the other side closes its pipe."""
    try:
        hello = msgspec.msgpack.decode(read_frame(requests), type=Hello)
        config = Config(request_timeout=hello.request_timeout, index=hello.index, home=Path(hello.home))
        access = StoreAccess(options=hello.options, proxies=hello.proxies)
        source = ObjectStoreSource(hello.url, config, authorization=hello.authorization, access=access)
        while True:
            request = msgspec.msgpack.decode(read_frame(requests), type=Request)
            if request.path is None:
                _list(source, replies)
            else:
                _fetch(source, os.fsdecode(request.path), request, replies)
            replies.flush()
    except (EOFError, BrokenPipeError):
        return


def _fetch(source: RangeSource, path: str, request: Request, replies: IO[bytes]) -> None:
    try:
        if request.size_bytes is None:
            fetched = source.fetch(path)
        else:
            fetched = source.fetch_range(path, request.offset, request.size_bytes)
    except SourceError as err:
        write_frame(replies, _failure(err))
        return
    said = Reply(
        version=fetched.version, size_bytes=len(fetched.data), modified_seconds=fetched.modified_seconds,
        encoding=fetched.encoding, is_end_known=fetched.is_end_known,
    )  # fmt: skip
    write_frame(replies, said)
    replies.write(fetched.data)


def _list(source: Source, replies: IO[bytes]) -> None:
    failure: Reply | None = None
    try:
        for batch in _batches(source):
            write_frame(replies, batch)
    except SourceError as err:
        failure = _failure(err)
    write_frame(replies, Batch([], failure))


def _batches(source: Source) -> Iterator[Batch]:
    for infos in source.list_objects():
        yield Batch([(os.fsencode(info.path), info.size_bytes, info.version, info.modified_seconds) for info in infos])


def _failure(err: SourceError) -> Reply:
    return Reply(code=err.code, message=err.message)


def main() -> None:
    """Serve on stdin and stdout; whatever else prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who closes the pipe.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
