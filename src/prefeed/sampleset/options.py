"""What each of JuiceFS's mount options means here. docs/guide/sample-sets.md has the table; a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prefeed.config import SETTINGS
from prefeed.errors import ConfigError, SpecError
from prefeed.sampleset.yaml_fields import Section

OptionValue = str | int | float | bool

MAPPED, NO_EFFECT, REFUSED = "mapped", "no effect", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOption:
    """One option.

    Attributes:
        kind: ``text``, ``whole``, ``number``, ``ratio`` or ``flag``; a ratio is a text in the original's type, and may be a number.
        effect: ``mapped``, ``no effect`` or ``refused``; a flag that is refused may be false.
        meaning: A sentence: to what it is mapped, or why it has no effect.
    """

    kind: str
    effect: str
    meaning: str


def _mapped(kind: str, meaning: str) -> MountOption:
    return MountOption(kind=kind, effect=MAPPED, meaning=meaning)


def _ignored(kind: str, meaning: str) -> MountOption:
    return MountOption(kind=kind, effect=NO_EFFECT, meaning=meaning)


_NO_KERNEL: Final = (
    "nothing is mounted: each dataset lists the source when it is made, unless `listing_age` allows an older listing"
)

MOUNT_OPTIONS: Final[Mapping[str, MountOption]] = {
    "metrics": _mapped("text", "address at which the node server shows its own metrics: `metrics`"),
    "attr-cache": _ignored("number", _NO_KERNEL),
    "entry-cache": _ignored("number", _NO_KERNEL),
    "dir-entry-cache": _ignored("number", _NO_KERNEL),
    "enable-xattr": _ignored("flag", "extended attributes are not read: samples are made of bytes"),
    "get-timeout": _mapped("whole", "seconds that one request may take: `request_timeout`"),
    "put-timeout": _ignored("whole", "the node server writes nothing to the source"),
    "io-retries": _ignored("whole", "a failing request is tried again until `retry_deadline` seconds are over, not so many times"),
    "max-uploads": _ignored("whole", "the node server writes nothing to the source"),
    "buffer-size": _mapped("whole", "MiB that may be fetched ahead of each loader: `lookahead`"),
    "prefetch": _ignored("whole", "what comes next is known from the sampler, and as much is fetched at a time as the source takes"),
    "writeback": MountOption(
        kind="flag", effect=REFUSED, meaning="the source is only read; write to it with `prefeed job sync`"
    ),
    "cache-dir": _mapped("text", "without `cache.levels`: path of the one level, memory if it lies on a tmpfs, else disk"),
    "cache-size": _mapped("whole", "without `cache.levels`: MiB of the one level"),
    "free-space-ratio": _mapped("ratio", "share of the disk that stays free: `disk_free`"),
    "cache-partial-only": _ignored("flag", "whole objects are cached; one larger than the tier is read past it"),
    "open-cache": _ignored("number", "whether files opened by path have changed is asked once an epoch: `revalidate`"),
    "sub-dir": _mapped("text", "directory below the source that is read in place of all of it"),
}  # fmt: skip


def take_options(section: Section | None) -> dict[str, OptionValue]:
    """Return the options that are given, by name.

    Raises:
        SpecError: One is unknown, of another type, or asks for what cannot be.
    """
    if section is None:
        return {}
    given = {}
    for name, option in MOUNT_OPTIONS.items():
        present = section.has(name)
        value = _take(section, name, option.kind)
        if present:
            given[name] = value
    section.end()
    _require_possible(section, given)
    return given


def _take(section: Section, name: str, kind: str) -> OptionValue:
    if kind == "text":
        return section.text(name, "")
    if kind == "whole":
        return section.whole(name, 0)
    return section.flag(name) if kind == "flag" else section.number(name, 0.0, may_be_text=kind == "ratio")


def _require_possible(section: Section, given: Mapping[str, OptionValue]) -> None:
    for name, value in given.items():
        option = MOUNT_OPTIONS[name]
        if option.effect == REFUSED and value:
            raise SpecError(f"{section.at(name)}: {option.meaning}")
    if float(given.get("free-space-ratio", 0.0)) >= 1:
        raise SpecError(f"{section.at('free-space-ratio')} must be less than 1: it is the share that stays free")
    if given.get("get-timeout") == 0:
        raise SpecError(f"{section.at('get-timeout')} must be at least 1 second")
    _require_below(str(given.get("sub-dir", "")), section.at("sub-dir"))
    try:
        SETTINGS["metrics"].metadata["parse"](given.get("metrics", ""))
    except ConfigError as err:
        raise SpecError(f"{section.at('metrics')}: {err}") from err


def _require_below(path: str, what: str) -> None:
    if ".." in path.split("/") or "\0" in path:
        raise SpecError(f"{what} must name a directory below the source, without ..: {path!r:.100}")
