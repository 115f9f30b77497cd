"""On which memory nodes of a machine with several sockets the pages of this process come to lie (NUMA)."""

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
_ALLOWED: Final = 4  # the nodes of the control group, and not the policy


def spread_new_pages() -> list[int]:
    """Have new pages of this thread, and of what it starts, lie on all nodes that it may use in turn; return these nodes.

    The kernel takes a page of a file in memory from the node of the thread that touches it first. A server fills the tier for
    readers on all nodes. It may have been started by a process that is bound to one, as the ranks of a job often are:
    then it would fill that one, and when that one is full the kernel ends a process, however much memory the others have.

    With one node the policy that was inherited goes. Nothing is changed where the kernel knows no nodes, or does not allow it, as in
    containers without ``SYS_NICE``: then the list is empty.
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
