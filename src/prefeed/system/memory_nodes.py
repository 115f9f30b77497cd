"""Distributes the memory pages of this process over the memory nodes (NUMA) of a machine with several sockets."""

from __future__ import annotations

import ctypes
import platform
from typing import Final

__all__ = ["spread_new_pages"]

_CALLS: Final = {"x86_64": (238, 239), "aarch64": (237, 236)}  # set_mempolicy, get_mempolicy
_MAX_NODES: Final = 1024
_WORD_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)
_Nodes = ctypes.c_ulong * (_MAX_NODES // _WORD_BITS)

_DEFAULT: Final = 0
_INTERLEAVE: Final = 3
_ALLOWED: Final = 4  # query the nodes of the control group instead of the policy


def spread_new_pages() -> list[int]:
    """Distribute new pages of this thread and its children over all allowed memory nodes. Return these nodes.

    The kernel allocates a page of a file in memory on the node of the first thread that touches it. The server fills the tier for readers
    on all nodes, but it may inherit a binding to one node, as ranks of a job often have. It would then fill that node, and the kernel
    would kill a process although other nodes have free memory.

    On a machine with one node, an inherited policy is reset. The list is empty, and the policy unchanged, if the kernel has no NUMA support
    or denies the change, as in containers without ``SYS_NICE``.
    """
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return []
    syscall = ctypes.CDLL(None).syscall
    allowed = _Nodes()
    if syscall(calls[1], None, allowed, ctypes.c_ulong(_MAX_NODES + 1), None, ctypes.c_ulong(_ALLOWED)):
        return []
    nodes = [node for node in range(_MAX_NODES) if allowed[node // _WORD_BITS] >> node % _WORD_BITS & 1]
    policy = (_INTERLEAVE, allowed) if len(nodes) > 1 else (_DEFAULT, None)
    return nodes if not syscall(calls[0], *policy, ctypes.c_ulong(_MAX_NODES + 1)) else []
