"""Freeing what the tiers of a node hold of a data set; the origin is never touched. ``prefeed clear``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import EmptyListingError, PrefeedError, ServerUnavailableError
from prefeed.jobs.places import Place
from prefeed.jobs.rmr import relative_paths
from prefeed.sampleset.records import SampleSet, read_progress, record_progress, set_of_home
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.urls import is_of_store, open_source
from prefeed.system.paths import overlap_by_name
from prefeed.types import ClearResult


def clear(place: Place, paths: Sequence[str], *, autostart: bool | None = None) -> ClearResult:
    """Memory and disk tier of the node hold nothing of these paths, as far as listings and catalogues name it.

    Args:
        place: The root.
        paths: Below the root; none: all of it.
        autostart: Start a server when none runs; defaults to the setting.

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


def free_removed(place: Place, paths: Sequence[str], *, entries: bool = True) -> ClearResult:
    """The same after data was removed or changed: this home lists the root again, and no server is started for it.

    Who reads next lists it, but for a sample set, whose listing says how much there is: that is done now.

    Args:
        place: The root.
        paths: Below the root; none, or an empty one: all of it.
        entries: Free them; if not, unchanged objects stay, because their keys are the same in the new listing.
    """
    root, settings = place.url, place.settings
    freed = ClearResult(entries=0, bytes=0)
    if entries:
        # Without a server, what is kept cannot be reached any more once the listing is renewed: its keys are not named.
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
    """How much a sample set has is known, if its origin can be listed."""
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
    """Let the server know what listings of this home name below the root: entries of others it cannot tell apart."""
    library = ManifestLibrary(config.home)
    for manifest in library.list():
        if not overlap_by_name(manifest.url, root):
            continue
        directory, url = manifest.directory, manifest.url
        if is_of_store(url) and not library.is_of(directory.parent, url, open_source(url, config).mark):
            continue  # of another endpoint or account: this process does not speak for it
        client.open_dataset(url, manifest_dir=str(directory))
