from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.errors import SpecError
from prefeed.jobs.spec import JobSpec, parse_job
from prefeed.sampleset.yaml_fields import load_documents
from prefeed.transfer.patterns import Rule

HEAD = "apiVersion: batch.paddlepaddle.org/v1alpha1\nkind: SampleJob\nmetadata: {name: one, namespace: paddle-system}\nspec:\n"


def parsed(spec: str) -> JobSpec:
    [document] = load_documents(HEAD + spec, "job.yaml")
    return parse_job(document)


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

    assert (spec.name, spec.type, spec.sample_set, spec.source) == ("one", "sync", "imagenet", "s3://photos/train")
    options = spec.sync
    assert (options.threads, options.update, options.perms, options.dirs, options.delete_dst) == (
        20,
        True,
        True,
        True,
        True,
    )
    assert (options.start, options.end, options.bwlimit_mbit) == ("a", "z", 100)
    assert options.one_file_system
    assert options.rules == (Rule("keep.tmp", False), Rule("*.tmp", True), Rule("cache/", True))
    assert [note.split()[0] for note in spec.notes] == [
        "secretRef:", *(f"spec.syncOptions.{name}" for name in ("http-port", "manager", "worker")),
    ]  # fmt: skip


def test_a_warm_up_has_its_strategy_and_partitions() -> None:
    spec = parsed("""
  type: warmup
  sampleSetRef: imagenet
  warmupOptions: {paths: [train], strategyName: random, partitions: 4, partition: 3, file: /list.txt, threads: 50}
""")

    warmup = spec.warmup
    assert (warmup.paths, warmup.strategy, warmup.partitions, warmup.partition) == (("train",), "random", 4, 3)
    assert (warmup.file, warmup.threads) == (Path("/list.txt"), 50)
    assert spec.place == "sampleset://imagenet"


REFUSED = [
    ("type: sink", "spec.type must be one of"),
    ("type: rmr\n  sampleSetRef: a", "spec.rmrOptions.paths must name"),
    ("type: rmr\n  rmrOptions: {paths: [a]}", "spec.sampleSetRef is missing"),
    ("type: clear", "spec.sampleSetRef is missing: name the sample set, or give clearOptions a url"),
    ("type: warmup\n  sampleSetRef: a\n  warmupOptions: {strategyName: fast}", "spec.warmupOptions.strategyName"),
    ("type: warmup\n  sampleSetRef: a\n  warmupOptions: {partitions: 2, partition: 2}", "spec.warmupOptions.partition"),
    (
        "type: sync\n  sampleSetRef: a\n  syncOptions: {thread: 2}",
        "spec.syncOptions.thread is not known. Did you mean threads",
    ),
    ("type: sync\n  syncOptions: {source: /a}", "needs source and destination"),
    ("type: clear\n  sampleSetRef: a\n  rmrOptions: {paths: [a]}", "spec.rmrOptions: this job is a clear"),
    ("type: clear\n  sampleSetRef: a\n  schedule: '* * * * *'", "cron or a systemd timer"),
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

    assert parsed(f"\n  type: sync\n  syncOptions:\n    {options}\n").sync.one_file_system is taken
