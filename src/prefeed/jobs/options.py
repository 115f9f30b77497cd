"""Options, progress callbacks and result of a sync."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefeed.transfer.engine import CopyFailure, CopyProgress
from prefeed.transfer.patterns import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Options of a sync, named as in juicefs sync.

    Attributes:
        threads: Maximum number of concurrent objects; None to adapt to the source.
        update: Replace existing objects only if the source's is newer.
        force_update: Copy all objects.
        perms: Keep the mode of files and, for root, the owner.
        dirs: Create empty directories too, and remove them with ``delete_dst``.
        dry: Change nothing, and report the intended changes as events.
        delete_src: Remove objects from the source if the destination has an identical copy.
        delete_dst: Remove objects from the destination that the source does not have.
        rules: Patterns to exclude and include.
        start: First key; empty for no lower bound.
        end: Last key; empty for no upper bound.
        bwlimit_mbit: Maximum bandwidth in megabits per second; 0 for no limit.
        one_file_system: True to ignore mounts below the source and to delete nothing in mounts below the destination. False to treat
            mounts as plain directories. None to copy from mounts but never delete in them.
        no_https: Connect to servers without encryption.
    """

    threads: int | None = None
    update: bool = False
    force_update: bool = False
    perms: bool = False
    dirs: bool = False
    dry: bool = False
    delete_src: bool = False
    delete_dst: bool = False
    rules: tuple[Rule, ...] = ()
    start: str = ""
    end: str = ""
    bwlimit_mbit: int = 0
    one_file_system: bool | None = None
    no_https: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncProgress:
    """Progress of a sync: objects listed at the source, those skipped as identical, and the copying."""

    num_listed: int
    num_skipped: int
    num_to_copy: int
    bytes_to_copy: int
    copying: CopyProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncEvents:
    """Callbacks of a sync, in the caller's thread. A dry run calls ``would`` with ``copy`` or ``delete``, and the location."""

    progress: Callable[[SyncProgress], None] = lambda _: None
    would: Callable[[str, str], None] = lambda _verb, _where: None
    note: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """Result of a sync.

    Attributes:
        num_listed: Objects of the source.
        num_copied: Objects copied, or that a dry run would copy.
        bytes_copied: Size of these objects.
        num_skipped: Objects that needed no copy.
        num_deleted_src: Objects removed from the source.
        num_deleted_dst: Objects removed from the destination.
        failures: Objects that could not be copied or removed, at most ``sync.MOST_FAILURES``.
        num_failed: Number of failures.
        full: Reason why the destination accepts no more data, or empty.
        seconds: Duration.
    """

    num_listed: int
    num_copied: int
    bytes_copied: int
    num_skipped: int
    num_deleted_src: int
    num_deleted_dst: int
    failures: tuple[CopyFailure, ...]
    num_failed: int
    full: str
    seconds: float

    @property
    def is_complete(self) -> bool:
        """True if nothing failed and the destination is not full."""
        return not self.num_failed and not self.full
