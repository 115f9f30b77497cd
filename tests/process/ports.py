"""A port for a server that a test starts: none that the kernel gives to others, and none that another worker of the tests takes."""

from __future__ import annotations

import os
import socket


def free_port() -> int:
    """Return a port that is free now."""
    return next(filter(_is_free, range(20000 + os.getpid() % 10000, 32768)))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
