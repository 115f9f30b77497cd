"""URLs as people type them."""

from __future__ import annotations

import re
from typing import Final

from prefeed.config import Config
from prefeed.errors import UnknownSchemeError
from prefeed.jobs.places import refuse_credentials
from prefeed.places import expanded
from prefeed.sampleset.names import resolve
from prefeed.sources.urls import BLOCKS, blocks_url

_ONE_SLASH: Final = re.compile(r"(?P<scheme>s3|gs|az|https?|file):/+")


def absolute_url(text: str) -> str:
    """Return a URL as it is and a path as an absolute one: the server runs in another directory.

    Raises:
        JobSpecError: It is a URL with credentials in it, which lists of processes show.
        UnknownSchemeError: It is no path, and almost a URL: ``s3:/bucket``.
    """
    refuse_credentials(text)
    if text.startswith(BLOCKS) and "://" not in text:
        return blocks_url(expanded(text[len(BLOCKS) :]))
    if "://" in text:
        return text
    path = expanded(text)
    if (typed := _ONE_SLASH.match(text)) and not path.exists():
        raise UnknownSchemeError(f"{path} does not exist; did you mean {typed['scheme']}://{text[typed.end() :]}?")
    return str(path)


def located(text: str, config: Config) -> tuple[str, Config]:
    """Return where the data of a URL, a path or a name of a sample set is, and the settings of the node that caches it.

    Raises:
        SampleSetNotFoundError: There is no such set.
    """
    return resolve(absolute_url(text), config)
