"""Parse YAML files into documents. Error messages contain no text of the file, which may contain keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from prefeed.errors import SpecError
from prefeed.sampleset.documents import Document, kind_name

MAX_DOCUMENT_BYTES: Final = 4 * 1024**2
_QUOTED: Final = re.compile(r"""'[^<].+'|".+"|(?<=name )\S+""")
"""Quotations in PyYAML's messages, which can contain values. Token names such as ``'<block end>'`` do not match."""


def load_documents(text: str | bytes, file: str) -> Iterator[Document]:
    """Yield the non-empty documents of a YAML file.

    Args:
        text: Content of the file.
        file: Name of the file for messages.

    Raises:
        SpecError: The text is not YAML, contains a field twice, or is too large.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise SpecError(f"{file} is larger than {MAX_DOCUMENT_BYTES} bytes, the maximum size of a document: split it")
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SpecError(
            f"{file}{where}: {_QUOTED.sub('…', err.problem or 'this is not YAML')}"
        ) from None  # The original message quotes the file.
    except (yaml.YAMLError, RecursionError, ValueError):
        raise SpecError(f"{file} is not valid YAML") from None
    for document in documents:
        if document is not None:
            if not isinstance(document, dict):
                raise SpecError(f"a document must have fields; it is {kind_name(document)}")
            yield document


@contextmanager
def errors_of(file: str) -> Iterator[None]:
    """Prefix the message of a ``SpecError`` raised in the block with the name of the file."""
    try:
        yield
    except SpecError as err:
        if err.message.startswith(file):
            raise
        raise type(err)(f"{file}: {err.message}", **err.details) from err.__cause__


class _Loader(yaml.SafeLoader):
    """Safe loader that rejects duplicate fields, and aliases, which can expand a small file to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in getattr(node, "value", ()):
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "this field is given twice", key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep=deep)
