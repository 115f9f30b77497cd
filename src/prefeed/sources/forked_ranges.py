"""Requests for parts of objects from a forked child: as in ``forked``, through a helper process that knows ranges.

Each ``RangeRequest`` is answered with one ``Reply``, and the bytes follow its frame bare.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO, Final

import msgspec

from prefeed.sources.forked import ForkedReader, Reply, Request, _error, read_exactly, read_frame, write_frame
from prefeed.types import FetchedObject

HELPER_MODULE: Final = "prefeed.sources.range_helper"


class RangeRequest(Request, frozen=True):
    """Fetch ``size_bytes`` bytes of the object at ``path`` from ``offset`` on."""

    offset: int = 0
    size_bytes: int = 0


class ForkedRangeReader(ForkedReader):
    """Parts of a source's objects, fetched by a helper process; see ``ForkedReader``."""

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """Return a part of the object; errors are those of the source itself."""
        with self._lock:
            try:
                pipe = self._ask(RangeRequest(os.fsencode(path), offset, size_bytes))
                reply = msgspec.msgpack.decode(read_frame(pipe), type=Reply)
                data = read_exactly(pipe, reply.size_bytes)
            except (OSError, EOFError, msgspec.DecodeError) as err:
                raise self._gone() from err
            except BaseException:  # Ctrl-C, say: the answer would be taken for that to the next request
                self._end()
                raise
        if reply.code:
            raise _error(reply)
        return FetchedObject(data=data, version=reply.version)

    def _ask(self, request: Request) -> IO[bytes]:
        """Send a request, to a helper that knows ranges."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", HELPER_MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert self._process.stdin is not None
            write_frame(self._process.stdin, self._hello)
        return super()._ask(request)
