"""Bring up applied sample sets (start the server, copy and list the data), and delete sets with their tiers and records."""

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
"""Function that copies a set's data from its source to its origin, with the settings of its node. Raises if that fails."""


def bring_up(
    found: SampleSet,
    base: Config,
    sync: Sync,
    *,
    is_changed: bool = False,
    starts: bool = True,
    listing: ListingProgress | None = None,
) -> Progress:
    """Make a set ready, or record the error. Waits until no other process brings up the same set.

    Can be killed at any time: the next call resumes.

    Args:
        found: The set as recorded now.
        base: Settings in force.
        sync: Called if data must be copied.
        is_changed: True if the set's settings changed, so that an unused server must be restarted.
        starts: False if the caller starts and stops the server, which runs already.
        listing: Called with the progress of the listing.
    """
    with lock_set(found):
        before = read_progress(found)
        is_complete = bool(before.listed) and manifest_of(found) is not None
        record_progress(found, error="", **({} if is_complete else {"begun": 0.0, "listed": 0.0}))
        try:
            settings = found.settings(base)
            # After a failure the user may have set a missing variable, and a server keeps its initial environment.
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
    """Stop the set's server if it has no clients and plans; otherwise return its status."""
    try:
        with NodeClient.connect(settings, autostart=False) as node:
            status = node.status()
            if status.plans or status.clients > 1:
                return status
            node.stop()
    except ServerBusyError:
        raise  # It is unknown whether a client uses the server.
    except ServerUnavailableError:
        pass
    return None


def delete(found: SampleSet, base: Config, *, force: bool = False) -> None:
    """Delete a set: its server, tiers and records. The data at the source and the origin is kept.

    Args:
        found: The set.
        base: Settings in force.
        force: True to delete a set that jobs or loaders use. They continue without a cache, or fail.

    Raises:
        SampleSetInUseError: The set is used or being brought up, and ``force`` is False.
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
        keep_home = bool(others)  # Other nodes have mapped files of the home.
        remove_record(found, keep_home=keep_home)  # From here on, the set cannot be found.
        _stop_server(settings)
        _remove_tiers(settings, keep_others=keep_home)
        remove_record(found, keep_home=keep_home)  # Remove files that the server wrote while it stopped.
        remove_deleted(base)


def _stop_server(settings: Config) -> None:
    with contextlib.suppress(ServerUnavailableError):
        end_server(settings)


def _remove_tiers(settings: Config, *, keep_others: bool) -> None:
    """Remove the tiers' directories that are named after this home, which only its servers create."""
    on_disk = settings.disk.directory
    if on_disk is not None and on_disk.name.endswith(settings.home_id):
        for directory in of_this_kernel(on_disk) if keep_others else [on_disk]:
            remove_tree(directory, ignore_errors=True)
    for directory in _memory_directories(settings):
        remove_tree(directory, ignore_errors=True)  # A killed server leaves its memory tier behind.
    remove_runtime_dirs(settings)


def _memory_directories(settings: Config) -> list[Path]:
    found = nearest_directory(settings.memory_dir).glob(f"prefeed-{os.getuid()}-{settings.node_id}*")
    return [path for path in found if is_private(path)]
