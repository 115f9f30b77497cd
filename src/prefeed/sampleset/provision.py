"""From a record to a set that is ready: its server runs, its data is where it is read, what it holds is known."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from prefeed.client.ending import end_server
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import PrefeedError, SampleSetInUseError, ServerBusyError, ServerUnavailableError
from prefeed.sampleset.records import (
    Progress,
    SampleSet,
    is_being_set_up,
    lock_set,
    lock_sets,
    read_progress,
    record_progress,
    remove_deleted,
    remove_record,
)
from prefeed.sampleset.status import manifest_of
from prefeed.sampleset.tiers import nearest_directory
from prefeed.store.directory import is_private
from prefeed.store.node_directory import IN_USE_MINUTES, of_this_kernel, servers_elsewhere
from prefeed.system.removing import remove_tree
from prefeed.types import ListingProgress, ServerStatus
from prefeed.wire.endpoint import remove_runtime_dirs

Sync = Callable[[SampleSet, Config], None]
"""Copies a set's data from its source to its origin, with the settings of its node; raises when that fails."""


def bring_up(
    found: SampleSet,
    base: Config,
    sync: Sync,
    *,
    is_changed: bool = False,
    starts: bool = True,
    listing: ListingProgress | None = None,
) -> Progress:
    """The set is ready, or what is noted says why not. One process at a time does this; another is waited for.

    Args:
        found: The set, as it is recorded now.
        base: Settings in force.
        sync: Called when data is to be copied.
        is_changed: Its settings are others than before: an unused server is restarted.
        starts: False: its server is started and ended by somebody else, and runs.
        listing: Told how far the listing has come.

    Safe against a kill at any instant: the next call resumes.
    """
    with lock_set(found):
        before = read_progress(found)
        is_complete = bool(before.listed) and manifest_of(found) is not None
        record_progress(found, error="", **({} if is_complete else {"begun": 0.0, "listed": 0.0}))
        try:
            settings = found.settings(base)
            # After a failure a variable may be set that was not, and a server keeps the environment it was started with.
            if starts and (is_changed or before.error):
                stop_unused_server(settings)
            with NodeClient.connect(settings, autostart=starts) as node:
                if not is_complete:
                    _complete(found, settings, node, sync, listing)
            return read_progress(found)
        except (PrefeedError, OSError) as err:
            return record_progress(found, error=str(err))


def _complete(
    found: SampleSet, settings: Config, node: NodeClient, sync: Sync, listing: ListingProgress | None
) -> None:  # fmt: skip
    record_progress(found, begun=time.time())
    if found.needs_sync:
        sync(found, settings)
        record_progress(found, synced=time.time())
    node.open_dataset(found.read_url, listing=listing)
    record_progress(found, listed=time.time())


def stop_unused_server(settings: Config) -> ServerStatus | None:
    """The set's server does not run, unless somebody uses it: then return what it is doing."""
    try:
        with NodeClient.connect(settings, autostart=False) as node:
            status = node.status()
            if status.plans or status.clients > 1:
                return status
            node.stop()
    except ServerBusyError:
        raise  # who uses it cannot be told
    except ServerUnavailableError:
        pass
    return None


def delete(found: SampleSet, base: Config, *, force: bool = False) -> None:
    """There is no such set any more: no server, no tiers, no records. Its data, at the source and the origin, stays.

    Args:
        found: The set.
        base: Settings in force.
        force: Delete it even while jobs run or loaders use it: they continue without a cache, or fail.

    Raises:
        SampleSetInUseError: It is used, or being brought up, and not ``force``.
    """
    with lock_sets(base):
        if not force and is_being_set_up(found):
            raise SampleSetInUseError(
                f"the sample set {found.name} is being set up, or one of its jobs runs; wait until that has ended, or use --force",
                name=found.name,
            )
        settings = found.settings(base)
        others = servers_elsewhere(found.home)
        if others and not force:
            where = ", ".join(f"process {process.pid} of {process.host}" for process in others)
            raise SampleSetInUseError(
                f"servers of the sample set {found.name} run on other nodes ({where}), or did until {IN_USE_MINUTES} minutes "
                "ago: stop them there, or use --force; then they run until they are stopped",
                name=found.name,
            )
        status = None if force else stop_unused_server(settings)
        if status is not None:
            raise SampleSetInUseError(
                f"{status.clients - 1} processes use the sample set {found.name}, with {status.plans} plans: end them, or use "
                "--force; they then read its data without a cache",
                name=found.name,
            )
        keep_home = bool(others)  # what other nodes have mapped there
        remove_record(found, keep_home=keep_home)  # from here on it cannot be found
        _stop_server(settings)
        _remove_tiers(settings, keep_others=keep_home)
        remove_record(found, keep_home=keep_home)  # what a server that ended has left
        remove_deleted(base)


def _stop_server(settings: Config) -> None:
    with contextlib.suppress(ServerUnavailableError):
        end_server(settings)


def _remove_tiers(settings: Config, *, keep_others: bool) -> None:
    """Remove what only this home's servers can have made: directories that are named after it."""
    on_disk = settings.disk.directory
    if on_disk is not None and on_disk.name.endswith(settings.home_id):
        for directory in of_this_kernel(on_disk) if keep_others else [on_disk]:
            remove_tree(directory, ignore_errors=True)
    for directory in _memory_directories(settings):
        remove_tree(directory, ignore_errors=True)  # of a server that was killed
    remove_runtime_dirs(settings)


def _memory_directories(settings: Config) -> list[Path]:
    found = nearest_directory(settings.memory_dir).glob(f"prefeed-{os.getuid()}-{settings.node_id}*")
    return [path for path in found if is_private(path)]
