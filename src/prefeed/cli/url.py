"""Resolves URLs and paths that users type."""

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
    """Make a path absolute, because the server runs in another directory. URLs are not changed.

    Raises:
        JobSpecError: The URL contains credentials, which `ps` would show.
        UnknownSchemeError: The text is a mistyped URL, such as ``s3:/bucket``.
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
    """Resolve a URL, path or sample set to the URL of its data and the settings of the node that caches it.

    Raises:
        SampleSetNotFoundError: The set does not exist.
    """
    return resolve(absolute_url(text), config)
