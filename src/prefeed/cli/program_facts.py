"""What a program under ``prefeed run`` did, from what its processes counted, and how that is said. Pure.

Imports nothing that makes dataclasses, structs or named tuples: that is done by ``exec``, and when that is called after Ctrl-C,
Python forgets to end by the signal. (3.11, 2026-11)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NotRequired, TypedDict

from prefeed.system.units import format_bytes
from prefeed.tally import program

VERSION: Final = 1
"""Of the object for machines: another number where a field means something else."""

_RANK: Final = re.compile(r", rank \d+(?=\)|$)")
_STORE_URL: Final = re.compile(r"(?:^|=)((?:s3|gs|az)://[^?#\s]+)")
_PRONOUN: Final = re.compile(r"^its\b")
_MOST_NAMES: Final = 8
_MOST_CALLS: Final = 5
_MAPS: Final = re.compile(r"datasets\..*load_from_disk")
_LOAD_FROM_DISK: Final = "load_from_disk of datasets maps the files of a path past the cache; load_from_disk('prefeed://PATH') copies them through it"
_READS_ALL: Final = "PREFEED_READS=all answers reads that Python sees outside of loaders from the cache"
_LONG_START_SECONDS: Final = 10.0
_LONG_START_SHARE: Final = 0.1
"""The time before the first epoch is reported if it is as long as that, and as large a share of the program's time."""

_MANY_WAITS: Final = 1000
"""A file on a network file system makes a scan wait once or twice; the import of torch makes a program wait some tens of times."""


class LoaderFacts(TypedDict):
    """One loader, in all processes that had it: ranks, as a rule.

    Attributes:
        name: What the log calls it, without its rank.
        state: ``served``; ``not served``; ``not seen``: it made its iterators past prefeed.
        reasons: Why it was not served, in every epoch or in some.
        epochs: Epochs that ended, of all processes together; only where time was measured, as what follows.
        batches: Batches that loops got.
        seconds: Time of its epochs, up to the last batch.
        waited_seconds: Part of it in which loops waited for an iterator or a batch.
        processes: How many had it.
    """

    name: str
    state: str
    reasons: list[str]
    epochs: int
    batches: int
    seconds: float
    waited_seconds: float
    processes: int


class Files(TypedDict):
    """Reads of whole objects: their number, and their size in bytes."""

    files: int
    bytes: int


class PastTheCache(TypedDict):
    """Files below the roots that the program opened itself, by one call.

    Attributes:
        call: What was called: ``open``, ``numpy.load``.
        in_samples: While a served loader's sample was made, in the thread that made it; else beside the loops.
        opens: How often.
        in_own_threads: While a sample was made, by a thread that it had not started; absent if not.
    """

    call: str
    in_samples: bool
    opens: int
    in_own_threads: NotRequired[bool]


class ReadNatively(TypedDict):
    """A reader in C++ that the program made; how many files it opened is not known.

    Attributes:
        call: What was called: ``tf.data.TFRecordDataset``.
        root: Below which its files lie; empty: it is not known which they are.
    """

    call: str
    root: str


class ProgramFacts(TypedDict):
    """What the processes of a program did: the object that ``--json`` writes.

    Attributes:
        version: Of this layout.
        program: Its command line.
        began: When it was started, in seconds since 1970.
        seconds: How long it ran.
        is_enabled: False when prefeed was switched off.
        roots: Which files are for the cache, in words; of network file systems only those in which files were opened, if there were some.
        has_roots: False when that is none.
        has_torch: A process imported torch.
        frameworks: Others whose loaders prefeed serves, and that a process imported.
        loaders: Loaders that made an iterator.
        cache: What readers found in memory.
        origin: What readers waited for: the server fetched it, or they did.
        past_the_cache: The calls with the most opens first.
        opens_estimated: Of these opens, those that were reckoned from what other samples of their dataset opened.
        read_natively: Readers in C++, which open their files past the cache.
        loop_seconds: Time of all epochs, up to the last batch of each.
        waited_seconds: Part of it in which loops waited.
        start_seconds: Time before the first epoch, of a process with loaders, in the mean.
        start_waits: How often the process waited in it, for storage as a rule.
    """

    version: int
    program: list[str]
    began: float
    seconds: float
    is_enabled: bool
    roots: str
    has_roots: bool
    has_torch: bool
    frameworks: list[str]
    loaders: list[LoaderFacts]
    cache: Files
    origin: Files
    past_the_cache: list[PastTheCache]
    opens_estimated: int
    read_natively: list[ReadNatively]
    loop_seconds: float
    waited_seconds: float
    start_seconds: float
    start_waits: int


def facts_of(counted: Mapping[bytes, Sequence[int]], order: Mapping[str, Any], *, seconds: float) -> ProgramFacts:
    """Return what was counted, in words of users.

    Args:
        counted: Of all processes together, by key; see ``tally.program``.
        order: What ``prefeed run`` wrote down before the program began.
        seconds: How long it ran.
    """
    reads = counted.get(program.READS, (0,) * 4)
    num_started, passed, waits = counted.get(program.START, (0,) * 3)[:3]
    loaders = list(_loaders(counted))
    past = [
        _past(names[0], names[1], counters[0])
        for key, counters in counted.items()
        for kind, names in [program.parts_of(key)]
        if kind == program.PAST and counters[0]
    ]
    return ProgramFacts(
        version=VERSION,
        program=list(order["program"]),
        began=order["began"],
        seconds=seconds,
        is_enabled=order["is_enabled"],
        roots=_roots(counted, order),
        has_roots=order["has_roots"],
        has_torch=program.TORCH in counted,
        frameworks=sorted(
            names[0] for key in counted for kind, names in [program.parts_of(key)] if kind == program.FRAMEWORK
        ),
        loaders=loaders,
        cache=Files(files=reads[0], bytes=reads[1]),
        origin=Files(files=reads[2], bytes=reads[3]),
        past_the_cache=sorted(past, key=lambda one: (-one["opens"], one["call"], one["in_samples"])),
        opens_estimated=counted.get(program.ESTIMATED, (0,))[0],
        read_natively=[
            ReadNatively(call=call, root=root)
            for call, root in sorted(
                (names[0], names[1])
                for key in counted
                for kind, names in [program.parts_of(key)]
                if kind == program.NATIVE
            )
        ],
        loop_seconds=sum(loader["seconds"] for loader in loaders),
        waited_seconds=sum(loader["waited_seconds"] for loader in loaders),
        start_seconds=passed / 1e9 / max(1, num_started),
        start_waits=waits // max(1, num_started),
    )


def _past(call: str, where: str, opens: int) -> PastTheCache:
    past = PastTheCache(call=call, in_samples=where == program.IN_SAMPLE, opens=opens)
    if where == program.IN_OWN_THREAD:
        past["in_own_threads"] = True
    return past


def last_lines(facts: ProgramFacts) -> list[str]:
    """Return what is said at the end of a program: a few lines, at least one."""
    if not facts["is_enabled"]:
        return ["nothing was done: PREFEED_ENABLED is 0"]
    native = _native(facts)
    was_used = facts["loaders"] or facts["cache"]["files"] or facts["origin"]["files"] or facts["past_the_cache"]
    if not was_used:
        return [*(native or [f"nothing to do: {_no_loader(facts)}, and {_no_file(facts)}"]), *_unread_urls(facts)]
    if not facts["loaders"]:
        lines = [f"{_no_loader(facts)}; {_files(facts)}"]
        if facts["past_the_cache"] and not facts["cache"]["files"]:
            lines.append(_READS_ALL)
        return lines + native + _unread_urls(facts)
    lines = [_served(facts), _files(facts), _elsewhere(facts), _waits(facts), _start(facts)]
    return [line for line in lines if line] + native + _unread_urls(facts)


def _elsewhere(facts: ProgramFacts) -> str:
    """Return what to change where most files, or those of samples, are opened by threads that no sample has started."""
    past = facts["past_the_cache"]
    if any("in_own_threads" in one for one in past):
        return "reads in threads of its own bypass the cache: PREFEED_READS=all answers them"
    outside = sum(one["opens"] for one in past if not one["in_samples"] and not _MAPS.fullmatch(one["call"]))
    is_most = outside > sum(one["files"] for one in (facts["cache"], facts["origin"]))
    return _READS_ALL if is_most else ""


def _loaders(counted: Mapping[bytes, Sequence[int]]) -> Iterable[LoaderFacts]:
    found: dict[str, list[int]] = {}
    reasons: dict[str, dict[str, None]] = {}
    unseen: dict[str, None] = {}
    for key, counters in counted.items():
        kind, names = program.parts_of(key)
        if kind == program.UNSEEN:
            unseen[names[0]] = None
        elif kind == program.WHY:
            reasons.setdefault(_RANK.sub("", names[0]), {})[names[1]] = None
        elif kind == program.LOADER:
            name = _RANK.sub("", names[0])
            before = found.get(name, [0] * len(counters))
            found[name] = [one + other for one, other in zip(before, counters, strict=True)]
    for name, (served, _, let_go, epochs, batches, nanoseconds, waited, processes) in found.items():
        yield LoaderFacts(
            name=name,
            state="served" if served and not let_go else "not served",
            reasons=list(reasons.get(name, ())),
            epochs=epochs,
            batches=batches,
            seconds=nanoseconds / 1e9,
            waited_seconds=waited / 1e9,
            processes=processes,
        )
    for name in unseen:
        yield LoaderFacts(
            name=name, state="not seen", reasons=[], epochs=0, batches=0, seconds=0.0, waited_seconds=0.0, processes=0
        )


def _no_loader(facts: ProgramFacts) -> str:
    if facts["has_torch"]:
        return "no DataLoader of torch's was used"
    if facts["frameworks"]:
        return f"no loader that prefeed serves was used of {', '.join(facts['frameworks'])}"
    return "torch was not imported"


def _roots(counted: Mapping[bytes, Sequence[int]], order: Mapping[str, Any]) -> str:
    touched = [names[0] for key in counted for kind, names in [program.parts_of(key)] if kind == program.TOUCHED]
    if order["has_named_roots"] or not order["has_roots"]:
        return str(order["roots"])
    return ", ".join(sorted(touched)) or "a network file system"


def _no_file(facts: ProgramFacts) -> str:
    if facts["has_roots"]:
        return f"no file below {facts['roots']} was opened"
    return f"files were not looked at: {facts['roots']}; name directories with --root"


def _served(facts: ProgramFacts) -> str:
    of = {
        state: [one for one in facts["loaders"] if one["state"] == state]
        for state in ("served", "not served", "not seen")
    }
    served, refused, unseen = of["served"], of["not served"], of["not seen"]
    text = f"{_number(len(served), 'loader')} served"
    if served:
        text += f": {_listed([one['name'] for one in served])}"
    if refused:
        text += f"{';' if served else ','} {len(refused)} not: {_listed(_whys(refused), '; ')}"
    if unseen:
        text += f"{';' if served or refused else ','} {len(unseen)} iterated without prefeed: {_listed([one['name'] for one in unseen])}"
    return text


def _files(facts: ProgramFacts) -> str:
    cache, origin = facts["cache"], facts["origin"]
    parts = []
    if cache["files"] or origin["files"]:
        parts.append(f"{_number(cache['files'], 'file')} from the cache ({format_bytes(cache['bytes'])})")
        parts.append(f"{origin['files']:,} from the origin ({format_bytes(origin['bytes'])})")
    if facts["past_the_cache"]:
        opens = sum(one["opens"] for one in facts["past_the_cache"])
        calls = [f"{one['call']} {one['opens']:,} {_where(one)}" for one in facts["past_the_cache"]]
        where = "" if parts else f" below {facts['roots']}"
        about = "about " if facts["opens_estimated"] else ""
        parts.append(f"{about}{_number(opens, 'open')}{where} bypassed the cache ({_listed(calls, most=_MOST_CALLS)})")
    return ", ".join(parts)


def _where(one: PastTheCache) -> str:
    if one["in_samples"]:
        return "in samples"
    return "in threads of its own" if "in_own_threads" in one else "outside of samples"


def _native(facts: ProgramFacts) -> list[str]:
    """Return lines about readers that read past the cache, in C++ or mapped; none if there were none."""
    calls_past = [one["call"] for one in facts["past_the_cache"]]
    lines = [_LOAD_FROM_DISK] if any(map(_MAPS.fullmatch, calls_past)) else []
    roots: dict[str, list[str]] = {}
    for one in facts["read_natively"]:
        roots.setdefault(one["call"], []).extend([one["root"]] if one["root"] else [])
    if not roots:
        return lines
    calls = [f"{call} below {_listed(places)}" if places else call for call, places in roots.items()]
    return [
        *lines,
        f"read in C++, past the cache: {_listed(calls, most=_MOST_CALLS)}; such readers use it on a mount: prefeed mount --help",
    ]


def _unread_urls(facts: ProgramFacts) -> list[str]:
    """Return a line about URLs of stores that the program was given, if nothing was read through prefeed; credentials are left out."""
    if facts["cache"]["files"] or facts["origin"]["files"]:
        return []
    found = [match[1] for word in facts["program"][1:] if (match := _STORE_URL.search(word)) is not None]
    urls = [re.sub(r"//[^/]*@", "//", url) for url in found]
    return [
        f"{url} was given to the program, and none of it was read through prefeed: open it with prefeed.datasets, or as files, by "
        f"`prefeed mount {url} DIR` or `prefeed stage {url}`"
        for url in dict.fromkeys(urls)
    ]


def _waits(facts: ProgramFacts) -> str:
    seconds, waited = facts["loop_seconds"], facts["waited_seconds"]
    if not seconds:
        return ""
    processes = max(one["processes"] for one in facts["loaders"])
    together = f" of {processes} processes" if processes > 1 else ""
    share = min(1.0, seconds / processes / facts["seconds"]) if facts["seconds"] else 1.0
    of_program = f"epochs took {100 * share:.0f} % of the program's {facts['seconds']:,.1f} s"
    return f"waited {100 * waited / seconds:.1f} % of {seconds:,.1f} s{together} for data; {of_program}"


def _start(facts: ProgramFacts) -> str:
    """Return how long it took until the first epoch, if that was long; "" otherwise."""
    seconds, waits = facts["start_seconds"], facts["start_waits"]
    if seconds < max(_LONG_START_SECONDS, _LONG_START_SHARE * facts["seconds"]):
        return ""
    text = f"{seconds:,.1f} s passed before the first epoch"
    if waits < _MANY_WAITS:
        return text
    return (
        f"{text}, and the program waited {waits:,} times in them, as a scan of the files' names or sizes does; prefeed caches only "
        "contents: keep the result of a scan in a file"
    )


def _whys(loaders: Sequence[LoaderFacts]) -> list[str]:
    """Return a text per reason, with the loaders that have it."""
    names: dict[str, list[str]] = {}
    for loader in loaders:
        why = " / ".join(loader["reasons"]) or "the reason is not known"
        names.setdefault(why, []).append(loader["name"])
    return [
        f"{_listed(of)}: {why if len(of) == 1 else _PRONOUN.sub('their', why, count=1)}" for why, of in names.items()
    ]


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"no {noun}s"


def _listed(texts: Sequence[str], separator: str = ", ", *, most: int = _MOST_NAMES) -> str:
    more = len(texts) - most
    return separator.join(texts[:most]) + (f"{separator}and {more:,} more" if more > 0 else "")
