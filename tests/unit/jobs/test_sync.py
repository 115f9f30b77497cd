from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from prefeed.config import resolve
from prefeed.errors import CopyError, EmptyListingError, JobConflictError, JobError, JobSpecError, ObjectNotFoundError
from prefeed.jobs.options import SyncOptions, SyncResult
from prefeed.jobs.sync import sync
from prefeed.transfer import directory as directory_module
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.patterns import WORK_NAME, Rule
from prefeed.transfer.rooted_dir import RootedDir
from servers import S3_ENVIRONMENT, http_server, moto_server, status, write_index
from unit.jobs.trees import make, tree

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {f"class {number % 3}/{number}.jpg": bytes([number]) * (number * 100) for number in range(30)}


def run(source: object, target: object, **options: object) -> SyncResult:
    return sync(str(source), str(target), SyncOptions(**options), resolve())  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "source", FILES)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


# ---------------------------------------------------------------- what is copied


def test_all_is_copied_and_then_nothing(source: Path, target: Path) -> None:
    first, second = run(source, target), run(source, target)

    assert tree(target) == FILES
    assert (first.num_copied, first.num_skipped, first.bytes_copied) == (30, 0, sum(map(len, FILES.values())))
    assert (second.num_copied, second.num_skipped) == (0, 30)
    assert not (target / WORK_NAME).exists()


def test_only_what_changed_is_copied(source: Path, target: Path) -> None:
    run(source, target)
    (source / "class 0/3.jpg").write_bytes(b"n" * 300)
    (source / "new").write_bytes(b"new")

    assert run(source, target).num_copied == 2
    assert tree(target) == tree(source)


def test_update_takes_only_what_is_newer(source: Path, target: Path) -> None:
    run(source, target)
    os.utime(target / "class 0/0.jpg", (2_000_000_000, 2_000_000_000))
    (target / "class 0/3.jpg").write_bytes(b"theirs")
    os.utime(target / "class 0/3.jpg", (2_000_000_000, 2_000_000_000))
    (target / "class 0/6.jpg").write_bytes(b"old")
    os.utime(target / "class 0/6.jpg", (1, 1))

    assert run(source, target, update=True).num_copied == 1
    assert (target / "class 0/3.jpg").read_bytes() == b"theirs"
    assert run(source, target, update=True, delete_src=True).num_deleted_src == 0 or (source / "class 0/3.jpg").exists()
    assert (target / "class 0/3.jpg").read_bytes() == b"theirs"


def test_force_update_copies_all(source: Path, target: Path) -> None:
    run(source, target)

    assert run(source, target, force_update=True).num_copied == 30


def test_patterns_and_keys_choose(source: Path, target: Path) -> None:
    run(source, target, rules=(Rule("3.jpg", False), Rule("class 0/*", True)), end="class 1/4.jpg")

    expected = {path for path in FILES if path == "class 0/3.jpg" or "class 1/" <= path <= "class 1/4.jpg"}
    assert set(tree(target)) == expected


def test_a_dry_run_changes_nothing(source: Path, target: Path) -> None:
    result = run(source, target, dry=True, delete_dst=True, delete_src=True)

    assert (result.num_copied, result.num_deleted_src) == (30, 30)
    assert not target.exists()
    assert tree(source) == FILES


def test_modes_and_empty_directories_are_kept_on_request(source: Path, target: Path) -> None:
    (source / "class 0/0.jpg").chmod(0o751)
    (source / "empty/one").mkdir(parents=True)

    run(source, target, perms=True, dirs=True)

    assert (target / "class 0/0.jpg").stat().st_mode & 0o777 == 0o751
    assert (target / "empty/one").is_dir()
    (source / "empty/one").rmdir()
    run(source, target, dirs=True, delete_dst=True)
    assert not (target / "empty/one").exists()


def test_a_directory_that_cannot_be_made_ends_it_as_a_file_does(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CopyError("x cannot be written: Read-only file system; what was copied stays", path="x")

    monkeypatch.setattr(DirectorySink, "make_directory", refuse)
    with pytest.raises(JobError, match="Read-only file system; what was copied stays") as caught:
        run(source, target, dirs=True)
    assert caught.value.details == {"path": "x"}


def test_names_that_are_no_text_are_copied(source: Path, target: Path) -> None:
    (source / os.fsdecode(b"\xff\n")).write_bytes(b"odd")

    run(source, target)

    assert (target / os.fsdecode(b"\xff\n")).read_bytes() == b"odd"


# ---------------------------------------------------------------- what is deleted


def test_what_the_source_does_not_have_is_deleted_when_asked_for(source: Path, target: Path) -> None:
    make(target, {"extra": b"e", "class 0/extra": b"e"})
    os.symlink("/etc/passwd", target / "link")

    assert run(source, target).num_deleted_dst == 0
    assert run(source, target, delete_dst=True).num_deleted_dst == 3
    assert tree(target) == FILES


def test_what_is_excluded_is_not_deleted(source: Path, target: Path) -> None:
    make(target, {"keep.log": b"k"})

    run(source, target, delete_dst=True, rules=(Rule("*.log", True),))

    assert (target / "keep.log").exists()


def test_an_empty_source_does_not_empty_the_target(tmp_path: Path, target: Path) -> None:
    make(target, FILES)
    (tmp_path / "empty").mkdir()

    with pytest.raises(EmptyListingError, match="may not be mounted"):
        run(tmp_path / "empty", target, delete_dst=True)
    assert tree(target) == FILES


def test_nothing_is_deleted_when_something_failed(source: Path, target: Path) -> None:
    make(target, {"class 0": b"in the way", "extra": b"e"})

    result = run(source, target, delete_dst=True, delete_src=True)

    assert result.num_failed == 10
    assert (result.num_deleted_dst, result.num_deleted_src) == (0, 0)
    assert (target / "extra").exists()
    assert tree(source) == FILES


def test_the_source_is_deleted_only_where_the_target_has_the_same_bytes(source: Path, target: Path) -> None:
    run(source, target)
    hidden = target / "class 1/10.jpg"
    before = hidden.stat()
    hidden.write_bytes(b"x" * before.st_size)
    os.utime(hidden, ns=(before.st_atime_ns, before.st_mtime_ns))

    result = run(source, target, delete_src=True)

    assert (result.num_deleted_src, result.num_copied) == (30, 1)
    assert tree(source) == {}
    assert tree(target) == FILES


def test_what_lies_behind_a_link_is_copied_and_never_deleted(source: Path, target: Path, tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", {"a": b"a"})
    os.symlink(outside, source / "linked")

    result = run(source, target, delete_src=True)

    assert (target / "linked/a").read_bytes() == b"a"
    assert (outside / "a").exists()
    assert [failure.code for failure in result.failures] == ["not-deleted"]


# ---------------------------------------------------------------- where nothing may go


def test_links_of_the_target_are_not_followed(source: Path, target: Path, tmp_path: Path) -> None:
    outside = make(tmp_path / "outside", {"a": b"a"})
    target.mkdir()
    os.symlink(outside, target / "class 0")
    make(target, {"class 1/x": b""})
    os.symlink(outside / "a", target / "class 1/1.jpg")

    result = run(source, target)

    assert tree(outside) == {"a": b"a"}
    assert result.num_failed == 10
    assert "is a link and is not followed" in result.failures[0].message
    assert (target / "class 1/1.jpg").read_bytes() == FILES["class 1/1.jpg"]
    assert not (target / "class 1/1.jpg").is_symlink()


@pytest.mark.parametrize(("one", "other"), [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a", "link/b")])
def test_places_in_one_another_are_refused(tmp_path: Path, one: str, other: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    os.symlink(tmp_path / "a", tmp_path / "link")

    with pytest.raises(JobSpecError, match=r"overlap, one inside the other|the same place"):
        run(tmp_path / one, tmp_path / other)


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s3://key:secret@bucket/x", {}, "credentials"),
        ("https://user:secret@host/x", {}, "credentials"),
        ("pack+/a", {}, "is a pack|not a directory"),
        ("http://host/x", {"update": True}, "needs the times"),
        ("http://host/x", {"delete_src": True}, "removes"),
        ("s3://bucket", {"no_https": True}, "endpoint"),
        ("s3://bucket", {"update": True, "force_update": True}, "either"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    tmp_path: Path, url: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises((JobSpecError, ObjectNotFoundError), match=said) as raised:
        run(url, tmp_path / "target", **options)
    assert "secret" not in str(raised.value)


def test_a_web_server_is_no_target(source: Path) -> None:
    with pytest.raises(JobSpecError, match="cannot be written to"):
        run(source, "http://host/x")


def test_a_source_that_is_not_there_leaves_no_target(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        run(tmp_path / "nothing", target)
    assert not target.exists()


def test_two_at_one_target_is_refused(source: Path, target: Path) -> None:
    target.mkdir()
    with RootedDir(str(target)) as root:
        sink = DirectorySink(root)
        with pytest.raises(JobConflictError, match="another sync"):
            run(source, target)
        sink.close()


def test_what_a_killed_one_left_goes(source: Path, target: Path) -> None:
    make(target, {f"{WORK_NAME}/0": b"half", f"{WORK_NAME}/odd/1": b"half"})

    run(source, target)

    assert tree(target) == FILES


def test_what_reads_back_otherwise_gets_no_name(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_wrongly(file: int, view: memoryview) -> None:
        os.write(file, bytes(len(view)))

    monkeypatch.setattr(directory_module, "_write_all", write_wrongly)
    with pytest.raises(JobError, match="read back"):
        run(source, target, start="class 0/3.jpg")
    assert not any(data for data in tree(target).values())


# ---------------------------------------------------------------- other places


def test_a_web_server_is_copied_by_its_index(source: Path, target: Path) -> None:
    write_index(source)
    with http_server(source) as server:
        assert run(server.url, target).num_copied == 30
        assert run(server.url, target).num_skipped == 30
        server.answers["/class%200/3.jpg"] = status(404)
        (target / "class 0/3.jpg").unlink()
        result = run(server.url, target)
    assert (result.num_failed, result.num_copied) == (1, 0)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(64 * 1024**2))  # else it keeps a file of each large one
    with moto_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket="photos")
        client.close()
        yield "s3://photos/sets"


def test_into_a_store_and_back(source: Path, target: Path, bucket: str, tmp_path: Path) -> None:
    (source / "large").write_bytes(os.urandom(17 * 1024**2))
    for path in source.rglob("*"):  # a store tells whole seconds: what was written in the same one is copied again
        os.utime(path, (1_700_000_000, 1_700_000_000))

    assert run(source, bucket).num_copied == 31
    assert run(source, bucket).num_copied == 0
    (source / "class 0/3.jpg").unlink()
    assert run(source, bucket, delete_dst=True).num_deleted_dst == 1
    assert run(bucket, target).num_copied == 30
    assert run(bucket, target).num_copied == 0
    assert tree(target) == tree(source)
    assert run(bucket, "s3://photos/other").num_copied == 30
    assert run(bucket, "s3://photos/other", delete_src=True).num_deleted_src == 30
    assert run("s3://photos/other", tmp_path / "third").num_copied == 30
