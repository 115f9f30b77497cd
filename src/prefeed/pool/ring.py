"""The servers of the pool: which one has a key, and who is asked again when."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from pymemcache.client.rendezvous import RendezvousHash  # type: ignore[import-untyped]
from xxhash import xxh3_64_intdigest

from prefeed.pool.servers import PoolServer
from prefeed.pool.values import DEFAULT_ITEM_BYTES, OVERHEAD_BYTES
from prefeed.system.clock import Clock

_LEAST_PART_BYTES: Final = 4096
_MOST_TIME_OUTS: Final = 3
"""That a question takes: one to connect, two to be answered, and what it takes to resolve a name."""


class Ring:
    """Servers that share keys by rendezvous hashing: one that is left out gives its keys to the others, and no other moves.

    Every node that has the same servers in its settings, in whatever order, finds a key at the same one.

    **Ownership.** ``close`` ends its thread, which asks again those that were left out, and lets go of all connections.

    **Threads.** Any.

    Args:
        addresses: ``host:port``, ``[::1]:port`` or the path of a unix socket, each once.
        timeout_seconds: How long one request may take.
        clock: Seconds.
    """

    def __init__(self, addresses: Sequence[str], *, timeout_seconds: float, clock: Clock) -> None:
        self.longest_question_seconds = _MOST_TIME_OUTS * timeout_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._is_closing = False
        self.servers = tuple(
            PoolServer(name, parse_address(name), timeout_seconds=timeout_seconds, clock=clock, changed=self._notice)
            for name in addresses
        )
        self._by_name = {server.name: server for server in self.servers}
        self._hash = _rendezvous(self._by_name)
        self._watch = threading.Thread(target=self._probe, name="prefeed-pool-watch", daemon=True)
        self._watch.start()

    def server_of(self, key: bytes) -> PoolServer | None:
        """Return the server that has the key, among those that answer; None when none does."""
        name = self._hash.get_node(key.decode())
        return None if name is None else self._by_name[name]

    @property
    def num_out(self) -> int:
        """How many servers are left out."""
        return sum(server.is_out for server in self.servers)

    @property
    def part_bytes(self) -> int:
        """Most bytes of a part, such that each server takes it."""
        least = min((server.item_bytes for server in self.servers), default=DEFAULT_ITEM_BYTES)
        return max(_LEAST_PART_BYTES, min(least, DEFAULT_ITEM_BYTES) - OVERHEAD_BYTES)

    def close(self) -> None:
        """Ask nobody any more; waits for a question under way, but not for a name to be resolved."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        for server in self.servers:
            server.close()
        self._watch.join(self.longest_question_seconds)

    # ------------------------------------------------------------ inside

    def _notice(self) -> None:
        """A server is left out, or answers: others have its keys now, or it has them again."""
        with self._changed:
            self._hash = _rendezvous(server.name for server in self.servers if not server.is_out)
            self._changed.notify()

    def _probe(self) -> None:
        while (server := self._next_due()) is not None:
            server.probe()

    def _next_due(self) -> PoolServer | None:
        """Wait until a server is to be asked; None when the ring closes."""
        with self._changed:
            while not self._is_closing:
                first = min(self.servers, key=lambda server: server.probe_at)
                left = first.probe_at - self._clock()
                if left <= 0:
                    return first
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        return None


def _rendezvous(names: Iterable[str]) -> RendezvousHash:
    # pymemcache's own hash function is Python: 20 times as slow (2026-11).
    return RendezvousHash(sorted(names), hash_function=lambda text, seed: xxh3_64_intdigest(text.encode(), seed))


def parse_address(text: str) -> str | tuple[str, int]:
    """Return the address that the setting ``pool`` names, as sockets want it; the setting was checked before."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
