"""Free the cached objects of a data set in the tiers of a node, for ``prefeed clear``. The origin is not changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import EmptyListingError, PrefeedError, ServerUnavailableError
from prefeed.jobs.places import JobLocation
from prefeed.jobs.rmr import relative_paths
from prefeed.sampleset.records import SampleSet, read_progress, record_progress, set_of_home
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.urls import is_of_store, open_source
from prefeed.system.paths import overlap_by_name
from prefeed.types import ClearResult


def clear(place: JobLocation, paths: Sequence[str], *, autostart: bool | None = None) -> ClearResult:
    """Free the objects of paths in the node's tiers, if a listing or catalogue contains them.

    Args:
        place: The root.
        paths: Paths below the root; empty for the whole root.
        autostart: True to start a server if none runs; None for the setting.

    Raises:
        JobSpecError: A path is not below the root.
        ServerUnavailableError: No server runs, and none may or can be started.
    """
    root = place.url
    wanted = [f"{root.rstrip('/')}/{path}" for path in relative_paths(root, paths)] if paths else [root]
    with NodeClient.connect(place.settings, autostart=autostart) as client:
        _open_listings(client, root, place.settings)
        results = [client.clear(one) for one in wanted]
    return ClearResult(entries=sum(r.entries for r in results), bytes=sum(r.bytes for r in results))


def free_removed(place: JobLocation, paths: Sequence[str], *, entries: bool = True) -> ClearResult:
    """Free objects and drop listings after data was removed or changed. Starts no server.

    The next reader lists the root again. A sample set is listed immediately, because its status shows the number of objects.

    Args:
        place: The root.
        paths: Paths below the root; empty for the whole root.
        entries: False to keep the entries. Unchanged objects have the same keys in the new listing.
    """
    root, settings = place.url, place.settings
    freed = ClearResult(entries=0, bytes=0)
    if entries:
        # Without a server, entries on disk become unreachable, because the new listing does not contain their keys.
        with contextlib.suppress(ServerUnavailableError):
            freed = clear(place, [path for path in paths if path], autostart=False)
    library = ManifestLibrary(settings.home)
    for manifest in library.list():
        if overlap_by_name(manifest.url, root):
            library.forget(manifest.url)
    found = place.sample_set or set_of_home(settings.home)
    if found is not None and overlap_by_name(found.read_url, root):
        _list_again(found, library, settings)
    return freed


def _list_again(found: SampleSet, library: ManifestLibrary, settings: Config) -> None:
    """List a sample set again, and record whether it is empty. If listing fails, nothing is recorded."""
    emptied = 0.0
    try:
        library.open(found.read_url, settings, mark=open_source(found.read_url, settings).mark)
    except EmptyListingError:
        emptied = time.time()
    except (PrefeedError, OSError):
        return
    if emptied or read_progress(found).emptied:
        record_progress(found, emptied=emptied)


def _open_listings(client: NodeClient, root: str, config: Config) -> None:
    """Open this home's listings of the root on the server, which finds entries by listed keys only."""
    library = ManifestLibrary(config.home)
    for manifest in library.list():
        if not overlap_by_name(manifest.url, root):
            continue
        directory, url = manifest.directory, manifest.url
        if is_of_store(url) and not library.is_of(directory.parent, url, open_source(url, config).mark):
            continue  # The listing belongs to another endpoint or account.
        client.open_dataset(url, manifest_dir=str(directory))
