"""How much memory a trial would take, and how much there is. Reading the machine and deciding are kept apart."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from prefeed.config import KIB
from prefeed.diagnose.tuning_settings import Settings
from prefeed.system.machine import read_text
from prefeed.system.memory import read_memory
from prefeed.system.units import in_gib
from prefeed.torch.nesting import tensors_in

_MARGIN: Final = 1.2
"""Workers grow, and batches are not all as large as the one that was looked at."""

_SHM: Final = Path("/dev/shm")


class Free(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that may still be taken.

    Attributes:
        memory_bytes: The least of what the machine and every control group above this process have left.
        shared_bytes: What ``/dev/shm`` has left, where workers put their batches.
    """

    memory_bytes: int
    shared_bytes: int


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen so far.

    Attributes:
        worker_bytes: What one worker has for itself.
        batch_bytes: What is in one batch.
    """

    worker_bytes: int
    batch_bytes: int

    def of(self, settings: Settings) -> tuple[int, int]:
        """Return what these settings would take, all of it and the part in shared memory, in bytes."""
        shared = int(_MARGIN * settings.batches_ahead * self.batch_bytes) + settings.cache_bytes
        return int(_MARGIN * settings.num_workers * self.worker_bytes) + shared, shared


def refusal(settings: Settings, needs: Needs, free: Free) -> str | None:
    """Return why there is no room for these settings; None: there is. Pure."""
    total, shared = needs.of(settings)
    if total > free.memory_bytes:
        return f"not tried: it would take {in_gib(total)} of memory, and {in_gib(free.memory_bytes)} are free"
    if shared > free.shared_bytes:
        return (
            f"not tried: it would take {in_gib(shared)} of {_SHM}, and {in_gib(free.shared_bytes)} are free; "
            "in a container, raise --shm-size"
        )
    return None


def free_memory() -> Free:
    """Read what this process may still take."""
    status = os.statvfs(_SHM) if _SHM.exists() else None
    shared = status.f_bavail * status.f_frsize if status is not None else 0
    return Free(memory_bytes=read_memory().left_bytes, shared_bytes=shared)


def private_bytes(pids: Iterable[int]) -> list[int]:
    """Read what each process has for itself alone; those that are gone are left out."""
    found = (parse_private(_text(Path(f"/proc/{pid}/smaps_rollup"))) for pid in pids)
    return [size for size in found if size]


def batch_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Read the processor time that processes have used, together."""
    ticks = sum(parse_cpu_ticks(_text(Path(f"/proc/{pid}/stat"))) for pid in pids)
    return ticks / os.sysconf("SC_CLK_TCK")


def read_bytes(pids: Iterable[int]) -> int:
    """Read how many bytes processes have got from files: by reading, or, of mapped ones, from the disk."""
    return sum(parse_read(_text(Path(f"/proc/{pid}/io"))) for pid in pids)


# ---------------------------------------------------------------- what the kernel's texts mean


def parse_private(smaps_rollup: str) -> int:
    """Return the private bytes in ``/proc/<pid>/smaps_rollup``."""
    return KIB * sum(_number_after(smaps_rollup, name) for name in ("Private_Clean:", "Private_Dirty:"))


def parse_read(io: str) -> int:
    """Return the bytes that ``/proc/<pid>/io`` says were read, or came from a disk, if those are more."""
    return max(_number_after(io, "rchar:"), _number_after(io, "read_bytes:"))


def parse_cpu_ticks(stat: str) -> int:
    """Return user and system time in ``/proc/<pid>/stat``; 0 of a process that is gone."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def _number_after(text: str, name: str) -> int:
    """Return the number that follows a name at the beginning of a line; 0 when there is none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0


def _text(path: Path) -> str:
    return read_text(path) or ""
