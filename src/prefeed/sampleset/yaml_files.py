"""YAML files to documents. Nothing of a file is in a message: there may be keys in it."""

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
"""What PyYAML quotes from a text, but for its own ``'<block end>'``: a value that begins with ! or & is in it."""


def load_documents(text: str | bytes, file: str) -> Iterator[Document]:
    """Yield the documents of a YAML file that are not empty.

    Args:
        text: What is in it.
        file: How messages call it.

    Raises:
        SpecError: It is no YAML, holds a field twice, or is too large. Nothing of the text is in the message.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise SpecError(f"{file} is larger than {MAX_DOCUMENT_BYTES} bytes, and a document may not be larger")
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SpecError(
            f"{file}{where}: {_QUOTED.sub('…', err.problem or 'this is not YAML')}"
        ) from None  # its text has a piece of the file
    except (yaml.YAMLError, RecursionError, ValueError):
        raise SpecError(f"{file} is not YAML that can be read") from None
    for document in documents:
        if document is not None:
            if not isinstance(document, dict):
                raise SpecError(f"a document must have fields; it is {kind_name(document)}")
            yield document


@contextmanager
def errors_of(file: str) -> Iterator[None]:
    """Begin the message of each ``SpecError`` that is raised inside with the name of the file."""
    try:
        yield
    except SpecError as err:
        if err.message.startswith(file):
            raise
        raise type(err)(f"{file}: {err.message}", **err.details) from err.__cause__


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but a field given twice is an error, and there are no anchors to multiply what is written."""

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
