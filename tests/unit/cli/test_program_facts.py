"""What the last line says, word for word, and what machines get: from counters, without a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from prefeed.cli.program_facts import ProgramFacts, facts_of, last_lines
from prefeed.tally.program import (
    ESTIMATED,
    FRAMEWORK,
    LOADER,
    NATIVE,
    PAST,
    READS,
    START,
    TORCH,
    TOUCHED,
    UNSEEN,
    WHY,
    key_of,
)

ORDER: dict[str, Any] = {
    "program": ["python", "train.py"], "began": 5.0, "is_enabled": True, "roots": "/data (nfs4)", "has_roots": True, "has_named_roots": True,
}  # fmt: skip


def counters(*first: int) -> list[int]:
    return [*first, *[0] * (8 - len(first))]


def facts(counted: dict[bytes, Sequence[int]], **order: Any) -> ProgramFacts:
    return facts_of(counted, ORDER | order, seconds=412.0)


def loader(
    name: str, *, served: int = 0, refused: int = 0, let_go: int = 0, seconds: float = 0, waited: float = 0
) -> dict[bytes, list[int]]:
    numbers = [served, refused, let_go, served, 10 * served, int(seconds * 1e9), int(waited * 1e9), 1]
    return {key_of(LOADER, name): numbers}


def why(name: str, reason: str) -> dict[bytes, list[int]]:
    return {key_of(WHY, name, reason): counters(1)}


def past(call: str, opens: int, *, in_samples: bool = False) -> dict[bytes, list[int]]:
    return {key_of(PAST, call, "s" if in_samples else ""): counters(opens)}


USED = {TORCH: counters(1)}
READ = {READS: counters(48210, 9_771_050_599, 24105, 4_831_838_208)}

ALL_READ = "48,210 files from the cache (9.1 GiB), 24,105 from the origin (4.5 GiB)"
CASES: dict[str, tuple[dict[bytes, Sequence[int]], dict[str, Any], list[str]]] = {
    "all": (
        USED
        | READ
        | loader("train_loader", served=2, seconds=300, waited=6)
        | loader("val_loader", served=2, seconds=112, waited=6.772)
        | loader("Stream", refused=1)
        | why("Stream", "an IterableDataset has no order to know beforehand")
        | past("PIL.Image.open", 106),
        {},
        [
            "2 loaders served: train_loader, val_loader; 1 not: Stream: an IterableDataset has no order to know beforehand",
            ("48,210 files from the cache (9.1 GiB), 24,105 from the origin (4.5 GiB), 106 opens bypassed the cache ("
            "PIL.Image.open 106 outside of samples)"),
            "waited 3.1 % of 412.0 s for data; epochs took 100 % of the program's 412.0 s",
        ],
    ),
    "ranks": (
        READ | loader("photos (Photos, rank 0)", served=1, seconds=10, waited=1) | loader("photos (Photos, rank 1)", served=1, seconds=10),
        {},
        [
            "1 loader served: photos (Photos)",
            "48,210 files from the cache (9.1 GiB), 24,105 from the origin (4.5 GiB)",
            "waited 5.0 % of 20.0 s of 2 processes for data; epochs took 2 % of the program's 412.0 s",
        ],
    ),
    "long start": (
        loader("photos", served=1, seconds=103) | {START: counters(2, 270_000_000_000, 24_000)},
        {},
        [
            "1 loader served: photos",
            "waited 0.0 % of 103.0 s for data; epochs took 25 % of the program's 412.0 s",
            ("135.0 s passed before the first epoch, and the program waited 12,000 times in them, as a scan of the files' names or "
            "sizes does; prefeed caches only contents: keep the result of a scan in a file"),
        ],
    ),
    "long start that computes": (
        loader("photos", served=1, seconds=103) | {START: counters(1, 135_000_000_000, 500)},
        {},
        [
            "1 loader served: photos",
            "waited 0.0 % of 103.0 s for data; epochs took 25 % of the program's 412.0 s",
            "135.0 s passed before the first epoch",
        ],
    ),
    "URL of a store": (
        USED,
        {"program": ["python", "train.py", "--data=s3://key:secret@bucket/train?signature", "gs://b/x", "https://b/y"]},
        [
            "nothing to do: no DataLoader of torch's was used, and no file below /data (nfs4) was opened",
            *(f"{url} was given to the program, and none of it was read through prefeed: open it with prefeed.datasets, or as files, "
            f"by `prefeed mount {url} DIR` or `prefeed stage {url}`" for url in ("s3://bucket/train", "gs://b/x")),
        ],
    ),
    "URL of a store that was read": (
        READ | loader("photos", served=1, seconds=103) | {START: counters(1, 0, 0)},
        {"program": ["python", "train.py", "s3://bucket/train"]},
        [
            "1 loader served: photos",
            "48,210 files from the cache (9.1 GiB), 24,105 from the origin (4.5 GiB)",
            "waited 0.0 % of 103.0 s for data; epochs took 25 % of the program's 412.0 s",
        ],
    ),
    "readers in C++": (
        {key_of(FRAMEWORK, "tensorflow"): counters(1)}
        | {key_of(NATIVE, call, root): counters(1) for call, root in [("tf.io.read_file", "/data/b"), ("tf.io.read_file", "/data/a")]}
        | {key_of(NATIVE, "tf.data.TFRecordDataset", ""): counters(3)},
        {},
        [
            ("read in C++, past the cache: tf.data.TFRecordDataset, tf.io.read_file below /data/a, /data/b; such readers use it on a "
            "mount: prefeed mount --help")
        ],
    ),
    "nothing": ({}, {}, ["nothing to do: torch was not imported, and no file below /data (nfs4) was opened"]),
    "no loader": (USED, {}, ["nothing to do: no DataLoader of torch's was used, and no file below /data (nfs4) was opened"]),
    "mounts": (
        USED | past("open", 3) | {key_of(TOUCHED, "/mnt/b"): counters(2)},
        {"has_named_roots": False, "roots": "/mnt/a (nfs4), /mnt/b (fuse.x), /mnt/c (cifs)"},
        [
            "no DataLoader of torch's was used; 3 opens below /mnt/b bypassed the cache (open 3 outside of samples)",
            "PREFEED_READS=all answers reads that Python sees outside of loaders from the cache",
        ],
    ),
    "mounts without files": (
        USED,
        {"has_named_roots": False, "roots": "/mnt/a (nfs4), /mnt/b (fuse.x), /mnt/c (cifs)"},
        ["nothing to do: no DataLoader of torch's was used, and no file below a network file system was opened"],
    ),
    "no roots": (
        USED,
        {"has_roots": False, "roots": "no network file system is mounted"},
        [
            ("nothing to do: no DataLoader of torch's was used, and files were not looked at: no network file system is mounted; "
            "name directories with --root")
        ],
    ),
    "only opens": (
        USED | past("numpy.memmap", 2000) | past("open", 1) | past("os.open", 3, in_samples=True),
        {},
        [
            ("no DataLoader of torch's was used; 2,004 opens below /data (nfs4) bypassed the cache (numpy.memmap 2,000 outside of "
            "samples, os.open 3 in samples, open 1 outside of samples)"),
            "PREFEED_READS=all answers reads that Python sees outside of loaders from the cache",
        ],
    ),
    "opens that were not counted one by one": (
        USED | past("open", 39_934, in_samples=True) | {ESTIMATED: counters(38_000)},
        {},
        [
            ("no DataLoader of torch's was used; about 39,934 opens below /data (nfs4) bypassed the cache (open 39,934 in samples)"),
            "PREFEED_READS=all answers reads that Python sees outside of loaders from the cache",
        ],
    ),
    "another framework": (
        {key_of(FRAMEWORK, "paddle"): counters(1)}, {},
        ["nothing to do: no loader that prefeed serves was used of paddle, and no file below /data (nfs4) was opened"],
    ),
    "loaders of another framework": (
        {key_of(FRAMEWORK, "grain"): counters(2)} | READ | loader("grain.DataLoader (Files)", served=1),
        {},
        ["1 loader served: grain.DataLoader (Files)", "48,210 files from the cache (9.1 GiB), 24,105 from the origin (4.5 GiB)"],
    ),
    "none served": (
        USED | loader("A", refused=3) | why("A", "one") | why("A", "two") | loader("B", refused=1),
        {},
        ["no loaders served, 2 not: A: one / two; B: the reason is not known"],
    ),
    "a reason of several": (
        USED | loader("A", refused=1) | loader("B", refused=1) | loader("C", refused=1)
        | why("A", "its files are quick") | why("B", "other") | why("C", "its files are quick"),
        {},
        ["no loaders served, 3 not: A, C: their files are quick; B: other"],
    ),
    "let go": (
        USED | loader("A", served=1, let_go=1, refused=2, seconds=1) | why("A", "its samples open no files"),
        {},
        ["no loaders served, 1 not: A: its samples open no files", "waited 0.0 % of 1.0 s for data; epochs took 0 % of the program's 412.0 s"],
    ),
    "later served": (USED | loader("A", served=1, refused=1) | why("A", "no server"), {}, ["1 loader served: A"]),
    "past prefeed": (
        USED | loader("A", served=1) | {key_of(UNSEEN, "Pets"): counters(4)},
        {},
        ["1 loader served: A; 1 iterated without prefeed: Pets"],
    ),
    "many": (
        USED
        | {key: value for n in range(11) for key, value in loader(f"loader{n:02}", served=1).items()}
        | {key: value for n in range(7) for key, value in past(f"call{n}", 9 - n).items()},
        {},
        [
            "11 loaders served: " + ", ".join(f"loader{n:02}" for n in range(8)) + ", and 3 more",
            "42 opens below /data (nfs4) bypassed the cache ("
            + ", ".join(f"call{n} {9 - n} outside of samples" for n in range(5))
            + ", and 2 more)",
            "PREFEED_READS=all answers reads that Python sees outside of loaders from the cache",
        ],
    ),
    "own threads": (
        READ | loader("A", served=1) | {key_of(PAST, "open", "t"): counters(7)},
        {},
        [
            "1 loader served: A",
            f"{ALL_READ}, 7 opens bypassed the cache (open 7 in threads of its own)",
            "reads in threads of its own bypass the cache: PREFEED_READS=all answers them",
        ],
    ),
    "mapped": (
        loader("loader", served=1) | past("datasets.load_from_disk", 2),
        {},
        [
            "1 loader served: loader",
            "2 opens below /data (nfs4) bypassed the cache (datasets.load_from_disk 2 outside of samples)",
            "load_from_disk of datasets maps the files of a path past the cache; load_from_disk('prefeed://PATH') copies them through it",
        ],
    ),
    "off": (READ, {"is_enabled": False}, ["nothing was done: PREFEED_ENABLED is 0"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(case: str) -> None:
    counted, order, expected = CASES[case]
    assert last_lines(facts(counted, **order)) == expected


def test_machines_get_the_same() -> None:
    counted = CASES["all"][0]
    found = json.loads(json.dumps(facts(counted)))

    assert found["loaders"][0] == {
        "name": "train_loader", "state": "served", "reasons": [], "epochs": 2, "batches": 20, "seconds": 300.0,
        "waited_seconds": 6.0, "processes": 1,
    }  # fmt: skip
    assert found["loaders"][2]["reasons"] == ["an IterableDataset has no order to know beforehand"]
    del found["loaders"]
    assert found == {
        "version": 1, "program": ["python", "train.py"], "began": 5.0, "seconds": 412.0, "is_enabled": True,
        "roots": "/data (nfs4)", "has_roots": True, "has_torch": True, "frameworks": [],
        "cache": {"files": 48210, "bytes": 9_771_050_599}, "origin": {"files": 24105, "bytes": 4_831_838_208},
        "past_the_cache": [{"call": "PIL.Image.open", "in_samples": False, "opens": 106}],
        "opens_estimated": 0, "read_natively": [],
        "loop_seconds": 412.0, "waited_seconds": 12.772, "start_seconds": 0.0, "start_waits": 0,
    }  # fmt: skip
