"""URLs as people type them."""

from __future__ import annotations

from prefeed.config import Config
from prefeed.jobs.places import refuse_credentials
from prefeed.places import expanded
from prefeed.sampleset.names import resolve
from prefeed.sources.urls import BLOCKS, blocks_url


def absolute_url(text: str) -> str:
    """Return a URL as it is and a path as an absolute one: the server runs in another directory.

    Raises:
        JobSpecError: It is a URL with credentials in it, which lists of processes show.
    """
    refuse_credentials(text)
    if text.startswith(BLOCKS) and "://" not in text:
        return blocks_url(expanded(text[len(BLOCKS) :]))
    return text if "://" in text else str(expanded(text))


def located(text: str, config: Config) -> tuple[str, Config]:
    """Return where the data of a URL, a path or a name of a sample set is, and the settings of the node that caches it.

    Raises:
        SampleSetNotFoundError: There is no such set.
    """
    return resolve(absolute_url(text), config)
