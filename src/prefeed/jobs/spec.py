"""A job as YAML of kind SampleJob, with the fields of the original."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prefeed.errors import JobSpecError, SpecError
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.warming import SEQUENCE, STRATEGIES, WarmupOptions
from prefeed.sampleset.locations import require_no_credentials
from prefeed.sampleset.spec import API_VERSION, take_metadata
from prefeed.sampleset.yaml_fields import Section
from prefeed.transfer.patterns import Rule, Rules

KIND: Final = "SampleJob"
SYNC, WARMUP, RMR, CLEAR = "sync", "warmup", "rmr", "clear"
TYPES: Final = (SYNC, WARMUP, RMR, CLEAR)

_OF_CLUSTERS: Final = ("http-port", "manager", "worker")
_NO_SCHEDULE: Final = (
    "jobs have no schedule here: let cron or a systemd timer run `prefeed job apply -f FILE` when it is time"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a document asks for.

    Attributes:
        name: Of the job, and of its record.
        type: ``sync``, ``warmup``, ``rmr`` or ``clear``.
        sample_set: Name of the set that it is done for; empty: none.
        terminate: Jobs of the set that are queued or running are ended first.
        source: Of a sync; empty: the set's source.
        target: Of a sync; empty: where the set's data is read.
        sync: Options of a sync.
        warmup: Options of a warm-up.
        url: Of the others, where there is no set.
        paths: Of rmr and clear.
        one_file_system: Of rmr: what is mounted below stays.
        notes: Sentences on fields that have no effect.
        document: The ``spec`` as it was written.
    """

    name: str
    type: str
    sample_set: str = ""
    terminate: bool = False
    source: str = ""
    target: str = ""
    sync: SyncOptions = field(default_factory=SyncOptions)
    warmup: WarmupOptions = field(default_factory=WarmupOptions)
    url: str = ""
    paths: tuple[str, ...] = ()
    one_file_system: bool = True
    notes: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def place(self) -> str:
        """URL of what the job is done to, but for a sync: the set, or the URL that was given."""
        return f"sampleset://{self.sample_set}" if self.sample_set else self.url


def parse_job(document: Section) -> JobSpec:
    """Return what a document asks for.

    Raises:
        SpecError: A field is unknown, missing or of another type; the message has its path.
    """
    kind, version = document.text("kind"), document.text("apiVersion")
    if kind != KIND or version != API_VERSION:
        hint = (
            "; sets and secrets are applied with `prefeed sampleset apply`" if kind in ("SampleSet", "Secret") else ""
        )
        raise SpecError(
            f"a job has kind {KIND} and apiVersion {API_VERSION}, not {kind!r:.60} and {version!r:.60}{hint}"
        )
    metadata = take_metadata(document)
    section = document.section("spec")
    if section is None:
        document.missing("spec")
    document.ignore("status")
    document.end()
    return parse_spec(metadata.name, section)


def parse_spec(name: str, section: Section) -> JobSpec:
    """Return what the fields of ``spec`` ask for; raises as ``parse_job``."""
    if section.has("schedule"):
        raise SpecError(f"{section.at('schedule')}: {_NO_SCHEDULE}")
    section.ignore("schedule")
    kind = section.text("type")
    if kind not in TYPES:
        raise SpecError(f"{section.at('type')} must be one of {', '.join(TYPES)}, not {kind!r:.60}")
    notes: list[str] = []
    fields: dict[str, Any] = {"sample_set": _reference(section, "sampleSetRef"), "terminate": section.flag("terminate")}
    if _reference(section, "secretRef"):
        notes.append(
            "secretRef: credentials are looked up by URL, in credentials.json of the set's home, which Secrets fill"
        )
    options = {option: section.section(f"{option}Options") for option in TYPES}
    other = next((option for option, given in options.items() if given is not None and option != kind), None)
    if other is not None:
        raise SpecError(f"{section.at(f'{other}Options')}: this job is a {kind}; its options are {kind}Options")
    section.end()
    own = options[kind] or Section({}, section.at(f"{kind}Options"))
    fields |= {SYNC: _sync, WARMUP: _warmup, RMR: _rmr, CLEAR: _clear}[kind](own, notes)
    own.end()
    spec = JobSpec(name=name, type=kind, notes=tuple(notes), document=section.fields, **fields)
    _require_places(spec, section)
    return spec


def _require_places(spec: JobSpec, section: Section) -> None:
    if spec.sample_set:
        if spec.url:
            raise SpecError(f"{section.path}: give either sampleSetRef or a url")
        return
    if spec.type == SYNC and not (spec.source and spec.target):
        raise SpecError(f"{section.at('syncOptions')}: without a sampleSetRef a sync needs source and destination")
    if spec.type != SYNC and not spec.url:
        raise SpecError(
            f"{section.at('sampleSetRef')} is missing: name the sample set, or give {spec.type}Options a url"
        )


def _reference(section: Section, name: str) -> str:
    """Return a name that stands alone or, as Kubernetes has it, in a field ``name``."""
    if isinstance(section.fields.get(name), dict):
        inner = section.section(name)
        assert inner is not None
        found = inner.name("name")
        inner.ignore("namespace")
        inner.end()
        return found
    return section.name(name) if section.has(name) else section.text(name, "")


def _sync(section: Section, notes: list[str]) -> dict[str, Any]:
    given = [name for name in _OF_CLUSTERS if section.take(name) is not None]
    notes += [f"{section.at(name)} has no effect: a sync runs in one process, on this machine" for name in given]
    threads = section.whole("threads", 0)
    options = SyncOptions(
        threads=threads or None,
        rules=_rules(section),
        start=section.text("start", ""),
        end=section.text("end", ""),
        bwlimit_mbit=section.whole("bwlimit", 0),
        update=section.flag("update"),
        force_update=section.flag("force-update"),
        check=section.flag("check"),
        perms=section.flag("perms"),
        dirs=section.flag("dirs"),
        dry=section.flag("dry"),
        delete_src=section.flag("delete-src"),
        delete_dst=section.flag("delete-dst"),
        no_https=section.flag("no-https"),
        one_file_system=section.flag("one-file-system")
        if section.has("one-file-system")
        else section.take("one-file-system"),
    )
    return {"sync": options, "source": _url(section, "source"), "target": _url(section, "destination")}


def _url(section: Section, name: str) -> str:
    """Return a place; records and lists show it, so it may have no credentials in it."""
    found = section.text(name, "")
    if found:
        require_no_credentials(found, section.at(name))
    return found


def _root(section: Section) -> str:
    """Return the place of a job but a sync, whose places are never relative."""
    found = _url(section, "url")
    if found and "://" not in found:
        _require_absolute(section, "url", found)
    return found


def _require_absolute(section: Section, name: str, path: str) -> None:
    """Refuse a path that is another one in another directory: a detached job runs in one of its own."""
    if not path.startswith("/"):
        section.wrong(name, "an absolute path")


def _rules(section: Section) -> tuple[Rule, ...]:
    """Return patterns in the order in which ``exclude`` and ``include`` were written."""
    order = [name for name in section.fields if name in ("exclude", "include")]
    rules = [Rule(pattern, name == "exclude") for name in order for pattern in _one_or_many(section, name)]
    section.ignore("exclude", "include")
    try:
        Rules(rules)
    except JobSpecError as err:
        raise SpecError(f"{section.at('/'.join(order))}: {err}") from err
    return tuple(rules)


def _one_or_many(section: Section, name: str) -> list[str]:
    if not isinstance(section.fields.get(name), str):
        return section.texts(name)
    try:
        return shlex.split(section.text(name))
    except ValueError as err:
        raise SpecError(f"{section.at(name)}: {err}; patterns with quotes in them are written as a list") from err


def _warmup(section: Section, _: list[str]) -> dict[str, Any]:
    strategy = section.text("strategyName", SEQUENCE)
    if strategy not in STRATEGIES:
        raise SpecError(f"{section.at('strategyName')} must be {' or '.join(STRATEGIES)}, not {strategy!r:.60}")
    partitions = section.whole("partitions", 1, least=1)
    partition = section.whole("partition", 0)
    if partition >= partitions:
        raise SpecError(f"{section.at('partition')} must be below {partitions}: partitions are counted from 0")
    file = section.text("file", "")
    if file:
        _require_absolute(section, "file", file)
    options = WarmupOptions(
        paths=tuple(section.texts("paths")),
        strategy=strategy,
        seed=section.whole("seed", 0),
        partitions=partitions,
        partition=partition,
        file=Path(file) if file else None,
        threads=section.whole("threads", 0) or None,
        refresh=section.flag("refresh"),
    )
    return {"warmup": options, "url": _root(section)}


def _rmr(section: Section, _: list[str]) -> dict[str, Any]:
    paths = tuple(section.texts("paths"))
    if not paths:
        raise SpecError(f"{section.at('paths')} must name at least one path: rmr removes data at its origin")
    section.flag("relative", True)  # both kinds of paths are taken for what they are
    return {
        "paths": paths, "url": _root(section), "one_file_system": section.flag("one-file-system", True)
    }  # fmt: skip


def _clear(section: Section, _: list[str]) -> dict[str, Any]:
    return {"paths": tuple(section.texts("paths")), "url": _root(section)}
