"""Names that were replaced. An old name works for one release: it does what the new one does, and says so in one line.

This is the only list of them. ``docs/reference/commands.md`` and ``docs/configuration.md`` show it; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

COMMANDS: Final[Mapping[str, str]] = {
    "job sync": "sync",
    "job warmup": "warm",
    "job clear": "clear",
    "job rmr": "delete",
    "job terminate": "job stop",
    "sampleset get": "sampleset list",
    "session drop": "session delete",
    "unstage": "stage delete",
}
"""What was typed behind ``prefeed``: what is typed now."""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "delete": {"--dry": "--dry-run"},
    "stage": {"--list": "list"},
    "sync": {"--dry": "--dry-run", "-f": "--force-update"},
}
"""Command: its old options, which take what the new ones take; without a dash, the new one is a command behind it."""

FLAGS_OF_ONE_LETTER: Final[Mapping[str, str]] = {"sync": "ufxv"}
"""Command: letters that may stand together behind one dash, as in ``-uf``, and take no value."""


class Setting(NamedTuple):
    """What an old setting is called now; with ``is_opposite`` its values mean the opposite."""

    name: str
    is_opposite: bool = False


SETTINGS: Final[Mapping[str, Setting]] = {
    "resident": Setting("read_once", is_opposite=True),
}
"""Old name of a setting: its name now. Holds for keywords, ``PREFEED_*`` and files."""

FUNCTIONS: Final[Mapping[str, str]] = {"map": "mapped"}
"""Old name in ``prefeed``: its name now."""


def renamed(words: Sequence[str], with_values: Callable[[str], Collection[str]]) -> tuple[list[str], list[str]]:
    """Return the words behind ``prefeed`` with new names in place of old ones, and a line for each that was replaced.

    Args:
        words: As they were typed.
        with_values: Given a command that has old options; returns its options that take the word behind them, whatever that is.
    """
    words, notes = list(words), []
    named = [at for at, word in enumerate(words) if not word.startswith("-")]
    for places in (named[:2], named[:1]):
        old = " ".join(words[at] for at in places)
        new = COMMANDS.get(old)
        if new is not None:
            words[places[0]] = new.partition(" ")[0]
            for at in reversed(places[1:]):
                del words[at]
            if rest := new.partition(" ")[2]:
                words.insert(places[0] + 1, rest)
            notes.append(_note(old, new))
            break
    if not named or words[named[0]] not in OPTIONS:
        return words, notes
    begin = named[0] + 1
    end = words.index("--", begin) if "--" in words[begin:] else len(words)
    command = words[begin - 1]
    options = _options_renamed(command, words[begin:end], notes, with_values=with_values(command))
    return [*words[:begin], *options, *words[end:]], notes


def _options_renamed(
    command: str, words: Sequence[str], notes: list[str], *, with_values: Collection[str]
) -> list[str]:
    old_options, letters = OPTIONS[command], FLAGS_OF_ONE_LETTER.get(command, "")
    front: list[str] = []
    kept: list[str] = []
    is_value = False
    for word in words:
        was_value, is_value = is_value, False
        if was_value:
            kept.append(word)
            continue
        is_value = word in with_values or _takes_the_next(word, letters, with_values)
        name, equals, value = word.partition("=")
        one_letter = next((old for old in old_options if letters and _has_letter(word, old, letters)), "")
        if name in old_options:
            new = old_options[name]
            (kept if new.startswith("-") else front).append(f"{new}{equals}{value}")
            notes.append(_note(f"{command} {name}", f"{command} {new}"))
        elif one_letter:
            others = word.replace(one_letter[1:], "")
            kept += [others] if others != "-" else []
            kept.append(old_options[one_letter])
            notes.append(_note(f"{command} {one_letter}", f"{command} {old_options[one_letter]}"))
        else:
            kept.append(word)
    return [*front, *kept]


def _takes_the_next(word: str, letters: str, with_values: Collection[str]) -> bool:
    """Return whether letters behind one dash end with one that takes a value, as in ``-us KEY``."""
    return f"-{word[-1:]}" in with_values and re.fullmatch(f"-[{letters}]+.", word) is not None


def _has_letter(word: str, option: str, letters: str) -> bool:
    return option[1:] in word and re.fullmatch(f"-[{letters}]+", word) is not None


def _note(old: str, new: str) -> str:
    return f"`prefeed {old}` is `prefeed {new}` now; the old name works in this release only"
