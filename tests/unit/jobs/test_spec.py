from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import JobSpecError, SampleSetNotFoundError, SpecError
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.places import JobLocation
from prefeed.jobs.spec import JobFields, ResolvedJob, SyncFields, parse_job, resolve_job
from prefeed.jobs.warming import WarmupOptions
from prefeed.sampleset.yaml_files import load_documents
from prefeed.transfer.patterns import Rule
from unit.sampleset.documents import apply, sample_set

HEAD = "apiVersion: batch.paddlepaddle.org/v1alpha1\nkind: SampleJob\nmetadata: {name: one, namespace: paddle-system}\nspec:\n"


def parsed(spec: str) -> JobFields:
    [document] = load_documents(HEAD + spec, "job.yaml")
    return parse_job(document).spec


def resolved(spec: str) -> ResolvedJob:
    [document] = load_documents(HEAD + spec, "job.yaml")
    asked = parse_job(document)
    return resolve_job(asked.metadata.name, asked.spec, document["spec"], resolve())


def test_a_sync_has_the_options_of_the_original() -> None:
    spec = parsed(
        """
  type: sync
  sampleSetRef: {name: imagenet}
  secretRef: {name: imagenet}
  syncOptions:
    source: s3://photos/train
    threads: 20
    http-port: 6070
    update: true
    perms: true
    dirs: true
    delete-src: false
    delete-dst: true
    include: keep.tmp
    exclude: ["*.tmp", cache/]
    start: a
    end: z
    bwlimit: 100
    one-file-system: true
    manager: node1
    worker: node2
"""
    )

    own = spec.own
    assert isinstance(own, SyncFields)
    assert (spec.type, spec.sample_set, own.source) == (
        "sync",
        "imagenet",
        "s3://photos/train",
    )
    assert (own.threads, own.update, own.perms, own.dirs, own.delete_dst) == (20, True, True, True, True)
    assert (own.start, own.end, own.bwlimit, own.one_file_system) == ("a", "z", 100, True)
    assert [note.split()[0] for note in spec.notes] == [
        f"spec.syncOptions.{name}" for name in ("http-port", "manager", "worker")
    ]  # fmt: skip


@pytest.mark.usefixtures("sandbox")
def test_all_of_it_reaches_the_job() -> None:
    """What is not in a table of names is compared here: each option is given another value than its default."""
    job = resolved("""
  type: sync
  syncOptions: {source: /a, destination: /b, threads: 2, exclude: x, start: a, end: z, bwlimit: 3, update: true, force-update: true,
    perms: true, dirs: true, dry: true, delete-src: true, delete-dst: true, no-https: true, one-file-system: false}
""")

    assert [place.url for place in job.places] == ["/a", "/b"]
    assert job.sync == SyncOptions(
        threads=2, rules=(Rule("x", True),), start="a", end="z", bwlimit_mbit=3, update=True, force_update=True,
        perms=True, dirs=True, dry=True, delete_src=True, delete_dst=True, no_https=True, one_file_system=False,
    )  # fmt: skip
    assert all(getattr(job.sync, one.name) != one.default for one in fields(SyncOptions))


@pytest.mark.usefixtures("sandbox")
def test_a_warm_up_has_its_strategy_and_partitions() -> None:
    job = resolved("""
  type: warmup
  warmupOptions: {paths: [train], strategyName: random, seed: 7, partitions: 4, partition: 3, file: /list.txt, threads: 50,
    url: s3://photos}
""")
    assert job.warmup == WarmupOptions(
        paths=("train",),
        strategy="random",
        seed=7,
        partitions=4,
        partition=3,
        file=Path("/list.txt"),
        threads=50,
    )
    assert [place.url for place in job.places] == ["s3://photos"]


@pytest.mark.usefixtures("sandbox")
def test_patterns_count_in_the_order_in_which_they_were_written() -> None:
    ends = "  type: sync\n  syncOptions: {source: /a, destination: /b, "
    keep, leave = Rule("keep.tmp", False), (Rule("*.tmp", True), Rule("cache/", True))

    assert resolved(f"{ends}include: keep.tmp, exclude: ['*.tmp', cache/]}}\n").sync.rules == (keep, *leave)
    assert resolved(f"{ends}exclude: '*.tmp cache/', include: [keep.tmp]}}\n").sync.rules == (*leave, keep)


@pytest.mark.usefixtures("sandbox")
def test_the_places_of_a_job_are_those_of_its_set_and_may_be_in_another() -> None:
    apply(sample_set("imagenet", source={"uri": "/data"}), sample_set("other", source={"uri": "/more"}))
    sync = "  type: sync\n  sampleSetRef: imagenet\n  syncOptions: {destination: 'sampleset://other/x'}\n"
    job, freed = (resolved(spec) for spec in (sync, "  type: clear\n  sampleSetRef: imagenet\n"))

    assert (job.set_name, [place.url for place in job.places], job.fills_origin) == (
        "imagenet",
        ["/data", "/more/x"],
        False,
    )
    assert [place.settings.home.parent.name for place in job.places] == ["imagenet", "other"]
    assert freed.places == (JobLocation(url="/data", settings=job.places[0].settings, sample_set=job.sample_set),)
    with pytest.raises(JobSpecError, match="nothing is copied: give syncOptions a destination"):
        resolved("  type: sync\n  sampleSetRef: imagenet\n")
    with pytest.raises(JobSpecError, match="from cron or a systemd timer"):
        resolved("  type: clear\n  sampleSetRef: imagenet\n  schedule: '0 3 * * *'\n")
    with pytest.raises(SampleSetNotFoundError, match="there is no sample set 'gone'"):
        resolved("  type: clear\n  sampleSetRef: gone\n")


REFUSED = [
    ("type: sink", "spec.type must be one of"),
    ("type: rmr\n  sampleSetRef: a", "spec.rmrOptions.paths must name"),
    ("type: rmr\n  rmrOptions: {paths: [a]}", "spec.sampleSetRef is missing"),
    ("type: clear", "spec.sampleSetRef is missing: name the sample set, or give the options a url"),
    ("type: warmup\n  sampleSetRef: a\n  warmupOptions: {strategyName: fast}", "spec.warmupOptions.strategyName"),
    ("type: warmup\n  sampleSetRef: a\n  warmupOptions: {partitions: 2, partition: 2}", "spec.warmupOptions.partition"),
    (
        "type: sync\n  sampleSetRef: a\n  syncOptions: {thread: 2}",
        "spec.syncOptions.thread is not known. Did you mean threads",
    ),
    ("type: sync\n  syncOptions: {source: /a}", "needs source and destination"),
    (
        "type: clear\n  sampleSetRef: a\n  rmrOptions: {paths: [a]}",
        "spec.rmrOptions: only jobs of type rmr have rmrOptions; this job is a clear",
    ),
    ("type: clear\n  sampleSetRef: a\n  schedule: daily", "five fields of cron"),
    ("type: sync\n  sampleSetRef: a\n  syncOptions: {exclude: '['}", "spec.syncOptions.exclude"),
    (
        'type: sync\n  sampleSetRef: a\n  syncOptions: {exclude: "it\'s"}',
        "spec.syncOptions.exclude: No closing quotation",
    ),
    ("type: sync\n  sampleSetRef: ../a", "lower-case letters"),
    ("type: rmr\n  rmrOptions: {paths: [a], url: data}", "spec.rmrOptions.url must be an absolute path, not 'data'"),
    ("type: warmup\n  warmupOptions: {url: /data, file: list.txt}", "spec.warmupOptions.file must be an absolute path"),
]


@pytest.mark.parametrize(("spec", "said"), REFUSED)
def test_what_is_not_understood_is_refused_with_its_path(spec: str, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        parsed(f"  {spec}\n")
    assert said in str(raised.value)


def test_credentials_in_a_place_are_refused_and_not_shown() -> None:
    with pytest.raises(SpecError) as raised:
        parsed("  type: sync\n  sampleSetRef: a\n  syncOptions: {source: 's3://key:hidden@bucket/x'}\n")
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(("said", "taken"), [("", None), ("one-file-system: false", False), ("one-file-system:", None)])
def test_whether_mounts_are_a_part_is_left_open_unless_said(said: str, taken: bool | None) -> None:
    options = f"source: /a\n    destination: /b\n    {said}"

    assert parsed(f"\n  type: sync\n  syncOptions:\n    {options}\n").own.one_file_system is taken
