"""Jobs in a mount namespace of their own: each reads data through prefeed and without, and prints what it saw as JSON.

The argument is JSON: ``mounts``, a list of (source, target) that are bound, "" for a new tmpfs; then ``jobs``, each in a
child of its own, one after the other, with ``data``, ``kind``, ``root`` (its root directory) and ``fill`` (files that it
writes first), after ``source``, or a new tmpfs, was mounted on ``fresh``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_NEW_NAMESPACE, _BIND, _ALL, _PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source: str, target: str) -> None:
    if source:
        _checked(_libc.mount(source.encode(), target.encode(), None, _BIND | _ALL, None))
    else:
        _checked(_libc.mount(b"none", target.encode(), b"tmpfs", 0, None))


def objects(data: str, epochs: int) -> tuple[list[list[bytes]], list[bytes]]:
    import prefeed

    read = []
    for _ in range(epochs):
        dataset = prefeed.datasets.Objects(data)
        read.append(list(prefeed.DataLoader(dataset, batch_size=None)))
    return read, [Path(path).read_bytes() for path in paths_below(data)]


def paths_below(data: str) -> list[str]:
    return sorted(f"{top}/{name}" for top, _, names in os.walk(data, followlinks=True) for name in names)


class Files:
    """A dataset that nobody declared: which files it opens is learned."""

    def __init__(self, data: str) -> None:
        self.files = paths_below(data)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> bytes:
        with open(self.files[index], "rb") as file:
            return file.read()


def files(data: str, epochs: int) -> tuple[list[list[bytes]], list[bytes]]:
    import prefeed
    from prefeed.config import configure

    configure(roots=(data,))
    loader = prefeed.DataLoader(Files(data), batch_size=None)
    read = [list(loader) for _ in range(epochs)]
    return read, [Path(path).read_bytes() for path in paths_below(data)]


def stage(data: str, epochs: int) -> tuple[list[list[bytes]], list[bytes]]:
    import prefeed
    from prefeed.client.node import NodeClient
    from prefeed.config import current

    with NodeClient.connect(current()) as node:
        session = next((found.session for found in node.list_sessions()), 0) or node.new_session()
    made = prefeed.mapped(Files(data), doubled, prefeed.DatasetCache(session))
    loader = prefeed.DataLoader(made, batch_size=None)
    read = [list(loader) for _ in range(epochs)]
    return read, [Path(path).read_bytes() * 2 for path in paths_below(data)]


def doubled(data: bytes) -> bytes:
    return data * 2


KINDS: dict[str, Callable[[str, int], tuple[list[list[bytes]], list[bytes]]]] = {
    "objects": objects, "files": files, "stage": stage,
}  # fmt: skip


def statistics() -> Any:
    import prefeed
    from prefeed.errors import ServerError
    from prefeed.types import Statistics

    try:
        return prefeed.statistics()
    except ServerError:
        return Statistics()


def run(job: dict[str, Any]) -> None:
    if job.get("root"):
        os.chroot(job["root"])
        os.chdir("/")
    if job.get("fresh"):  # the kernel gives the new one the number that the old one had
        _libc.umount2(job["fresh"].encode(), 0)
        mount(job.get("source", ""), job["fresh"])
    for name, text in job.get("fill", {}).items():
        Path(name).write_text(text)
        os.utime(name, ns=(10**18, 10**18))
    if job.get("weak"):  # the server that it starts may not read what is not for it to read
        for capability in (1, 2):  # DAC_OVERRIDE, DAC_READ_SEARCH
            _checked(_libc.prctl(24, capability, 0, 0, 0))
    before = statistics()
    read, plain = KINDS[job["kind"]](job["data"], job.get("epochs", 2))
    after = statistics()
    print(json.dumps({
        "right": [batch == plain for batch in read], "first": plain[0].decode()[:20], "count": len(plain),
        "requests": after.origin_requests - before.origin_requests, "hits": after.hits - before.hits,
        "direct": after.direct_reads - before.direct_reads,
    }), flush=True)  # fmt: skip


def main() -> int:
    asked = json.loads(sys.argv[1])
    _checked(_libc.unshare(_NEW_NAMESPACE))
    _checked(_libc.mount(b"none", b"/", None, _ALL | _PRIVATE, None))
    for source, target in asked["mounts"]:
        mount(source, target)
    failed = 0
    for job in asked["jobs"]:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(job)
                status = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                if status:
                    import traceback

                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(status)
        failed |= os.waitpid(child, 0)[1]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
