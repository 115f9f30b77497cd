"""What a sync is asked to do, who is told how far it is, and how it ended: values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefeed.transfer.engine import CopyFailure, CopyProgress
from prefeed.transfer.patterns import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Options of one sync; names and meanings as in juicefs sync.

    Attributes:
        threads: Most objects under way at a time; None: as many as the source answers well.
        update: An object that is there is replaced where the source's is newer, and only there.
        force_update: All are copied.
        perms: Files keep mode and, for root, owner.
        dirs: Empty directories are made too, and with ``delete_dst`` removed.
        dry: Nothing is changed; events tell what would be.
        delete_src: What is at the destination, byte for byte, is removed from the source.
        delete_dst: What the source does not have is removed from the destination.
        rules: Patterns to leave out and to take.
        start: First key; empty: from the begin.
        end: Last key; empty: to the end.
        bwlimit_mbit: Most megabits a second; 0: no limit.
        one_file_system: True: nothing that is mounted below the source is entered, nor anything deleted that is mounted below the
            destination; False: mounts are plain directories, and are deleted in; None: they are copied from, and never deleted in.
        no_https: Servers are spoken to without encryption.
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
    """How far a sync is: objects listed at the source, those among them that are there already, and the copying."""

    num_listed: int
    num_skipped: int
    num_to_copy: int
    bytes_to_copy: int
    copying: CopyProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncEvents:
    """Who is told, in the caller's thread; ``would`` only by a dry run: ``copy`` or ``delete``, and where."""

    progress: Callable[[SyncProgress], None] = lambda _: None
    would: Callable[[str, str], None] = lambda _verb, _where: None
    note: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """How a sync ended.

    Attributes:
        num_listed: Objects of the source.
        num_copied: Objects copied, or that would be by a dry run.
        bytes_copied: Their size.
        num_skipped: Objects that were there already.
        num_deleted_src: Objects removed from the source.
        num_deleted_dst: Objects removed from the destination.
        failures: What could not be copied or removed, the first thousands of it.
        num_failed: How many.
        full: Why the destination takes no more; empty when it does.
        seconds: How long it took.
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
        """Whether all that was asked for was done."""
        return not self.num_failed and not self.full
