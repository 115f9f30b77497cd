"""The process that reads parts of objects for forked workers; started by ``forked_ranges``, never by hand."""

from __future__ import annotations

import os
import signal
import sys
from typing import IO

import msgspec

from prefeed.config import Config
from prefeed.errors import SourceError
from prefeed.sources.forked import Hello, Reply, read_frame, write_frame
from prefeed.sources.forked_ranges import RangeRequest
from prefeed.sources.objectstore import ObjectStoreSource


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the other side closes its pipe."""
    try:
        hello = msgspec.msgpack.decode(read_frame(requests), type=Hello)
        config = Config(request_timeout=hello.request_timeout, index=hello.index)
        source = ObjectStoreSource(hello.url, config, authorization=hello.authorization)
        while True:
            _answer(source, msgspec.msgpack.decode(read_frame(requests), type=RangeRequest), replies)
            replies.flush()
    except (EOFError, BrokenPipeError):
        return


def _answer(source: ObjectStoreSource, request: RangeRequest, replies: IO[bytes]) -> None:
    try:
        fetched = source.fetch_range(os.fsdecode(request.path or b""), request.offset, request.size_bytes)
    except SourceError as err:
        write_frame(replies, Reply(code=err.code, message=err.message))
        return
    write_frame(replies, Reply(version=fetched.version, size_bytes=len(fetched.data)))
    replies.write(fetched.data)


def main() -> None:
    """Serve on stdin and stdout; whatever else prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, who closes the pipe.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
