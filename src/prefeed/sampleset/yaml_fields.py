"""Fields of a YAML document taken one by one; what nobody took is an error that says what is known there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import yaml

from prefeed.errors import SpecError

MAX_DOCUMENT_BYTES: Final = 4 * 1024**2
MAX_NAME: Final = 63
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_NUMBER: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_QUOTED: Final = re.compile(r"""'[^<].+'|".+"|(?<=name )\S+""")
"""What PyYAML quotes from a text, but for its own ``'<block end>'``: a value that begins with ! or & is in it."""


class Section:
    """A mapping of a document, with the path that leads to it.

    Take each field with the method of its type, then call ``end``. Values are never shown in errors where ``secret``.
    """

    def __init__(self, value: object, path: str, *, secret: bool = False) -> None:
        """Hold a mapping; ``path`` is how messages call it, empty for the whole document.

        Raises:
            SpecError: It is none, or has a field whose name is no text.
        """
        if not isinstance(value, dict):
            raise SpecError(f"{path or 'a document'} must have fields; it is {_kind_of(value)}")
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            raise SpecError(f"{path or 'the document'} has a field whose name is {_kind_of(odd)}; put it into quotes")
        self.path = path
        self.fields: dict[str, Any] = value
        self._secret = secret
        self._known: list[str] = []

    def at(self, name: str) -> str:
        """Return how messages call a field."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Return True when the field is there and not null."""
        return self.fields.get(name) is not None

    def take(self, name: str) -> Any:
        """Return a field's value, whatever it is; None when it is not there."""
        self._known.append(name)
        return self.fields.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it must be there."""
        value = self.take(name)
        if value is None:
            if default is None:
                self.missing(name)
            return default
        if not isinstance(value, str):
            self.wrong(name, "a text")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; empty when it is not there."""
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.wrong(name, "a list of texts")
        return list(value)

    def whole(self, name: str, default: int | None = None, *, least: int = 0, unit: str = "") -> int:
        """Return a whole number of at least ``least``; without a default it must be there. Messages name the unit."""
        value = self.take(name)
        if value is None:
            if default is None:
                self.missing(name)
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.wrong(name, f"a whole number {f'of {unit}, ' if unit else 'of '}at least {least}")
        return value

    def number(self, name: str, default: float, *, may_be_text: bool = False) -> float:
        """Return a number that is not negative; ``may_be_text``: it may stand in quotes, as some types of Kubernetes want it."""
        value = self.take(name)
        if value is None:
            return default
        number = float(value) if may_be_text and isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number < float("inf"):
            self.wrong(name, "a number that is not negative" + (", such as 0.1 or '0.1'" if may_be_text else ""))
        return float(number)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "true or false")
        return value

    def section(self, name: str) -> Section | None:
        """Return the fields below a field; None when it is not there."""
        value = self.take(name)
        return None if value is None else Section(value, self.at(name), secret=self._secret)

    def sections(self, name: str) -> list[Section]:
        """Return the entries of a list, each with its fields; empty when it is not there."""
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(name, "a list")
        return [Section(entry, f"{self.at(name)}[{index}]", secret=self._secret) for index, entry in enumerate(value)]

    def name(self, name: str, default: str | None = None) -> str:
        """Return a name as Kubernetes has them, which is also safe as a name of a directory."""
        value = self.text(name, default)
        require_name(value, self.at(name))
        return value

    def ignore(self, *names: str) -> None:
        """These may be there and mean nothing."""
        self._known.extend(names)

    def end(self) -> None:
        """Refuse fields that nobody took.

        Raises:
            SpecError: There is one; the message says what is known beside it.
        """
        unknown = next((name for name in self.fields if name not in self._known), None)
        if unknown is None:
            return
        near = difflib.get_close_matches(unknown, self._known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        known = ", ".join(sorted(dict.fromkeys(self._known))) or "no field at all"
        raise SpecError(f"{self.at(unknown)} is not known.{meant} Known there: {known}")

    def missing(self, name: str) -> NoReturn:
        """Refuse the document: a field must be there."""
        near = difflib.get_close_matches(name, [given for given in self.fields if given not in self._known], n=1)
        meant = f": {near[0]} stands there, which is not known" if near else ""
        raise SpecError(f"{self.at(name)} is missing{meant}")

    def wrong(self, name: str, wanted: str) -> NoReturn:
        """Refuse the value of a field."""
        value = self.fields.get(name)
        given = "" if self._secret else f", not {_shown(value)}{_cure(wanted, value)}"
        raise SpecError(f"{self.at(name)} must be {wanted}{given}")


def require_name(value: str, what: str) -> None:
    """Refuse what is no name: lower-case letters, digits and ``-``, at most 63, none of them ``-`` at an end.

    Raises:
        SpecError: It is none.
    """
    if len(value) > MAX_NAME or not _NAME.fullmatch(value):
        raise SpecError(
            f"{what} must be made of lower-case letters, digits and - between them, at most {MAX_NAME}, not {value!r:.100}"
        )


def load_documents(text: str | bytes, file: str) -> Iterator[Section]:
    """Yield the documents of a YAML file that are not empty.

    Args:
        text: What is in it.
        file: How messages call it.

    Raises:
        SpecError: It is no YAML, holds a field twice, or is too large. Nothing of the text is in the message.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise SpecError(f"{file} is larger than {MAX_DOCUMENT_BYTES} bytes, which no such document is")
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SpecError(
            f"{file}{where}: {_QUOTED.sub('…', err.problem or 'this is no YAML')}"
        ) from None  # its text has a piece of the file
    except (yaml.YAMLError, RecursionError, ValueError):
        raise SpecError(f"{file} is no YAML that can be read") from None
    for document in documents:
        if document is not None:
            yield Section(document, "")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but a field given twice is an error, and there are no anchors to multiply what is written."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not taken", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in getattr(node, "value", ()):
            if key.value in seen and isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "this field is given twice", key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep=deep)


def _kind_of(value: object) -> str:
    kinds: Sequence[tuple[type, str]] = (
        (bool, "true or false"), (int, "a number"), (float, "a number"), (str, "a text"), (list, "a list"), (dict, "a mapping"),
    )  # fmt: skip
    return next(
        (name for kind, name in kinds if isinstance(value, kind)), "empty" if value is None else "something else"
    )


def _cure(wanted: str, value: object) -> str:
    """Return what to change where YAML took a number for a text, or a text for a number."""
    if "number" in wanted and isinstance(value, str) and _NUMBER.fullmatch(value):
        return ": write it without quotes"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ": put it into quotes" if wanted == "a text" and is_number else ""


def _shown(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | bool) else _kind_of(value)
