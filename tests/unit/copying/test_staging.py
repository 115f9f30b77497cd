from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.config import Config, resolve
from prefeed.copying import staging
from prefeed.copying.copies import COMPLETE, PARTIAL, read_record
from prefeed.copying.space import footprint
from prefeed.copying.staging import StageEvents, StagePlan, StageRequest, StageResult, stage
from prefeed.errors import CopyError, DoesNotFitError, EmptyListingError, ObjectNotFoundError, StoreError
from sandbox import Sandbox
from servers import FileServer, http_server, status, write_index
from slow_files import write_files
from small_files import small_file_system

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {f"class {number % 3}/{number}.jpg": bytes([number]) * (number * 500) for number in range(30)}


class Copier:
    """Stages one origin into one place."""

    def __init__(self, url: str | Path, place: Path) -> None:
        self.url, self.place = str(url), place
        self.plans: list[StagePlan] = []

    def __call__(self, *, config: Config | None = None, **more: object) -> StageResult:
        request = StageRequest(url=self.url, place=self.place, **more)  # type: ignore[arg-type]
        return stage(request, config or resolve(), StageEvents(planned=self.plans.append))


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    return write_files(sandbox.root / "origin", FILES)


@pytest.fixture
def copier(origin: Path, sandbox: Sandbox) -> Copier:
    return Copier(origin, sandbox.memory_dir)


@pytest.fixture
def server(origin: Path) -> Iterator[FileServer]:
    write_index(origin)
    with http_server(origin) as server:
        yield server


@pytest.fixture
def remote(server: FileServer, sandbox: Sandbox) -> Copier:
    return Copier(server.url, sandbox.memory_dir)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def links(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink()}


def asked(server: FileServer) -> list[str]:
    return sorted(path for _, path, _ in server.requests if path != "/index.txt")


# ---------------------------------------------------------------- all of it fits


def test_a_directory_is_copied_with_sizes_and_times(copier: Copier, origin: Path) -> None:
    result = copier()

    data = result.record.data
    assert tree(data) == FILES
    assert not links(data)
    assert {p: (data / p).stat().st_mtime_ns for p in FILES} == {p: (origin / p).stat().st_mtime_ns for p in FILES}
    assert (result.record.state, result.record.num_files, result.is_usable) == (COMPLETE, 30, True)
    assert result.record.bytes == sum(map(len, FILES.values()))
    assert Path(result.record.directory).stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(result.record.directory)) == ["copy.json", "data"]


def test_a_second_run_copies_nothing(copier: Copier) -> None:
    first, second = copier(), copier()

    assert second.summary.num_copied == 0
    assert (second.record.num_files, second.record.bytes) == (30, first.record.bytes)
    assert second.record.state == COMPLETE


def test_changes_at_the_origin_are_followed(copier: Copier, origin: Path) -> None:
    data = copier().record.data
    changed = dict(FILES)
    changed["class 0/3.jpg"] = b"another size"
    changed["class 1/4.jpg"] = bytes(len(FILES["class 1/4.jpg"]))  # another content of the same size
    changed["new/file"] = b"new"
    for gone in [path for path in FILES if path.startswith("class 2/")]:
        del changed[gone]
    shutil.rmtree(origin / "class 2")
    write_files(origin, {path: changed[path] for path in ("class 0/3.jpg", "class 1/4.jpg", "new/file")})

    result = copier()

    assert tree(data) == changed
    assert not (data / "class 2").exists()
    assert result.summary.num_copied == 3
    assert copier.plans[-1].num_removed == 10


def test_a_file_becomes_a_directory_and_the_reverse(copier: Copier, origin: Path) -> None:
    write_files(origin, {"x": b"file", "y/z": b"below"})
    data = copier().record.data
    (origin / "x").unlink()
    shutil.rmtree(origin / "y")
    write_files(origin, {"x/deep/er": b"now below", "y": b"now a file"})

    copier()

    assert tree(data) == FILES | {"x/deep/er": b"now below", "y": b"now a file"}


def test_odd_files_of_a_directory(copier: Copier, origin: Path, sandbox: Sandbox) -> None:
    """Empty files and directories, odd names, links within and out of it, hard links, a cycle, a broken link, a pipe."""
    outside = write_files(sandbox.root / "outside", {"a": b"outside", "sub/b": b"below"})
    write_files(origin, {"empty": b"", os.fsdecode(b"odd \xff\n"): b"odd", "hidden/.x": b"hidden"})
    (origin / "no files" / "here").mkdir(parents=True)
    (origin / "link").symlink_to(outside / "a")
    (origin / "linked directory").symlink_to(outside / "sub")
    (origin / "cycle").symlink_to(origin)
    (origin / "broken").symlink_to("nowhere")
    os.link(origin / "empty", origin / "hard link")
    os.mkfifo(origin / "pipe")
    (origin / "locked").mkdir(mode=0o500)

    data = copier().record.data

    assert tree(data) == FILES | {
        "empty": b"", os.fsdecode(b"odd \xff\n"): b"odd", "hidden/.x": b"hidden", "link": b"outside",
        "linked directory/b": b"below", "hard link": b"",
    }  # fmt: skip
    assert not links(data)
    assert (data / "no files" / "here").is_dir()
    assert (data / "locked").is_dir()
    assert copier().summary.num_copied == 0


def test_a_deep_tree(copier: Copier, origin: Path) -> None:
    deep = "/".join(["d" * 50] * 20) + "/file"
    write_files(origin, {deep: b"deep"})

    assert tree(copier().record.data)[deep] == b"deep"


def test_a_server_is_copied_and_only_what_changed_is_asked_for_again(
    remote: Copier, origin: Path, server: FileServer
) -> None:
    data = remote().record.data
    assert tree(data) == FILES
    assert len(asked(server)) == 30

    server.requests.clear()
    write_files(origin, {"class 0/3.jpg": b"another size"})
    write_index(origin)
    result = remote()

    assert asked(server) == ["/class%200/3.jpg"]
    assert (data / "class 0/3.jpg").read_bytes() == b"another size"
    assert result.record.state == COMPLETE


def test_an_object_with_another_etag_is_asked_for_again(origin: Path, sandbox: Sandbox) -> None:
    with http_server(origin, webdav=True) as server:
        remote = Copier(server.url, sandbox.memory_dir)
        data = remote().record.data
        server.requests.clear()
        assert remote().summary.num_copied == 0
        write_files(origin, {"class 1/4.jpg": bytes(len(FILES["class 1/4.jpg"]))})

        remote()

        assert asked(server) == ["/class%201/4.jpg"]
        assert (data / "class 1/4.jpg").read_bytes() == bytes(len(FILES["class 1/4.jpg"]))


# ---------------------------------------------------------------- not all of it fits


def test_what_does_not_fit_are_links_to_the_origin(copier: Copier, origin: Path) -> None:
    size = sum(sorted(footprint(len(data)) for data in FILES.values())[:10])

    result = copier(size_bytes=size)

    data = result.record.data
    assert tree(data) == FILES  # every path reads right
    assert links(data) == {f"class {number % 3}/{number}.jpg" for number in range(10, 30)}  # small ones were copied
    assert os.readlink(data / "class 1/28.jpg") == str(origin / "class 1/28.jpg")
    assert (result.record.state, result.record.num_files, result.record.num_linked) == (PARTIAL, 10, 20)
    assert result.is_usable
    assert copier.plans[0].why == "--size allows no more"


def test_more_room_later_turns_links_into_copies_and_less_room_copies_into_links(copier: Copier) -> None:
    small, large = (sum(sorted(footprint(len(data)) for data in FILES.values())[:count]) for count in (5, 20))
    for size, num_copied, num_linked in ((small, 5, 25), (large, 15, 10), (small, 0, 25), (1 << 30, 25, 0)):
        result = copier(size_bytes=size)
        assert (result.summary.num_copied, len(links(result.record.data))) == (num_copied, num_linked)
        assert tree(result.record.data) == FILES


def test_an_order_says_what_is_copied_first(copier: Copier) -> None:
    result = copier(size_bytes=footprint(29 * 500), order=["class 2/29.jpg", "class 1/28.jpg"])

    assert set(FILES) - links(result.record.data) == {"class 2/29.jpg"}


def test_the_floor_of_a_disk_is_kept(origin: Path, sandbox: Sandbox) -> None:
    place = sandbox.root / "disk"
    place.mkdir()
    with pytest.raises(
        DoesNotFitError, match=r"the smallest needs 5,120 bytes, and there is space for 0: .* stay free"
    ):
        Copier(origin, place)(config=resolve(limits={"disk_free_bytes": 1 << 60}))
    assert list(place.rglob("*.bin")) == []


def test_a_node_cache_counts_with_what_it_has_taken(origin: Path, sandbox: Sandbox) -> None:
    """The file of an idle server is as long as it may become, and takes next to nothing."""
    store = sandbox.memory_dir / f"prefeed-{os.getuid()}-12345678"
    store.mkdir()
    with (store / "data.mdb").open("wb") as data:
        data.truncate(1 << 40)
    result = Copier(origin, sandbox.memory_dir)()
    assert (result.record.num_files, links(result.record.data)) == (30, set())


def test_a_small_file_system_is_not_filled(origin: Path, sandbox: Sandbox) -> None:
    with small_file_system(sandbox.root / "small", "192k") as small:
        result = Copier(origin, small)()

        status = os.statvfs(small)
        assert status.f_bavail * status.f_frsize >= 0.1 * 192 * 1024
        assert 0 < result.record.num_files < 30
        assert tree(result.record.data) == FILES
        assert result.summary.full is None  # it was foreseen


def test_another_program_fills_the_disk_meanwhile(
    origin: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan believes that there is room: the file system says no."""
    monkeypatch.setattr(staging, "measure_space", lambda *_: (1 << 40, ""))
    with small_file_system(sandbox.root / "small", "192k") as small:
        copier = Copier(origin, small)
        result = copier()

        assert result.summary.full is not None
        assert "the file system is full" in result.summary.full
        assert (result.record.state, result.is_usable) == (PARTIAL, True)
        assert tree(result.record.data) == FILES
        assert 0 < result.record.num_files < 30


def test_too_few_inodes_are_said_beforehand(origin: Path, sandbox: Sandbox) -> None:
    with (
        small_file_system(sandbox.root / "small", "4m,nr_inodes=20") as small,
        pytest.raises(
            DoesNotFitError, match=r"30 new files are needed, and the file system of .* has room for 1\d more"
        ),
    ):
        Copier(origin, small)()


def test_a_part_of_a_store_must_be_asked_for(remote: Copier, server: FileServer) -> None:
    size = sum(sorted(footprint(len(data)) for data in FILES.values())[:10])
    with pytest.raises(DoesNotFitError, match="--partial"):
        remote(size_bytes=size)
    assert asked(server) == []

    result = remote(size_bytes=size, allow_partial=True)
    assert (result.record.num_files, result.record.num_missing, result.is_usable) == (10, 20, True)
    assert set(tree(result.record.data)) == {f"class {number % 3}/{number}.jpg" for number in range(10)}

    smaller = remote(size_bytes=footprint(1), allow_partial=True)
    assert len(tree(smaller.record.data)) == 1


# ---------------------------------------------------------------- what goes wrong


def test_a_file_that_cannot_be_read_is_reported_and_stays_the_origins(copier: Copier, origin: Path) -> None:
    (origin / "made up").symlink_to("/proc/self/status")  # reports a size of 0, and is not empty

    result = copier()

    assert [(failure.path, failure.code) for failure in result.failures] == [("made up", "passed-through")]
    assert links(result.record.data) == {"made up"}
    assert (result.record.state, result.record.num_files, result.is_usable) == (PARTIAL, 30, True)


def test_an_object_that_cannot_be_had_makes_the_copy_of_a_store_unusable(remote: Copier, server: FileServer) -> None:
    server.answers["/class%201/1.jpg"] = status(403)

    result = remote()

    assert [(failure.path, failure.code) for failure in result.failures] == [("class 1/1.jpg", "access-denied")]
    assert (result.record.num_files, result.record.num_missing, result.is_usable) == (29, 1, False)

    server.answers.clear()
    assert remote().is_usable


def test_paths_that_would_leave_the_copy_are_refused(origin: Path, remote: Copier, sandbox: Sandbox) -> None:
    with (origin / "index.txt").open("a") as index:
        index.write("../escaped\t3\nclass 0/../../../escaped\t3\nclass 0//../escaped\t3\nclass 0//0.jpg\t3\n")
    write_files(sandbox.root, {"escaped": b"bad"})

    result = remote()

    assert {failure.code for failure in result.failures} == {"bad-target-name"}
    assert [failure.path for failure in result.failures] == ["class 0//0.jpg"], "the listing has left out the others"
    assert not result.is_usable
    assert tree(result.record.data) == FILES
    assert not list(sandbox.memory_dir.rglob("escaped"))


def test_a_storage_that_is_not_mounted_empties_no_copy(copier: Copier, origin: Path) -> None:
    data = copier().record.data
    shutil.rmtree(origin)
    with pytest.raises(ObjectNotFoundError):
        copier()
    origin.mkdir()
    with pytest.raises(EmptyListingError, match="mounted"):
        copier()

    assert tree(data) == FILES
    record = read_record(data.parent)
    assert record is not None
    assert record.state == COMPLETE


def test_what_a_killed_run_left_is_no_part_of_the_copy(copier: Copier) -> None:
    directory = Path(copier().record.directory)
    (directory / "data" / "class 0" / "0.jpg").unlink()
    (directory / "incoming").mkdir()
    (directory / "incoming" / "0").write_bytes(b"half a file")

    assert copier().summary.num_copied == 1
    assert tree(directory / "data") == FILES
    assert sorted(os.listdir(directory)) == ["copy.json", "data"]


@pytest.mark.parametrize("place", ["origin", "origin/class 0", ""])
def test_a_copy_does_not_lie_in_its_origin_nor_the_reverse(sandbox: Sandbox, origin: Path, place: str) -> None:
    target = sandbox.root / place
    if place:
        with pytest.raises(CopyError, match="overlap; name another place"):
            Copier(origin, target)()
    else:
        data = Copier(origin, target)().record.data
        with pytest.raises(CopyError, match="overlap; name another place"):
            Copier(target, target)()
        assert tree(data) == FILES


def test_a_copy_that_was_tampered_with_is_an_error_with_the_path(copier: Copier) -> None:
    data = copier().record.data
    shutil.rmtree(data)
    data.write_text("not a directory")

    with pytest.raises(CopyError, match=rf"{data}: .*; copied files stay"):
        copier()


def test_a_failed_start_leaves_nothing_behind(sandbox: Sandbox, remote: Copier) -> None:
    with pytest.raises(ObjectNotFoundError):
        Copier(sandbox.root / "nothing", sandbox.memory_dir)()
    with pytest.raises(DoesNotFitError):
        remote(size_bytes=0)

    assert list(sandbox.memory_dir.iterdir()) == []


def test_a_place_that_is_not_there_is_not_made(origin: Path, sandbox: Sandbox) -> None:
    with pytest.raises(CopyError, match="mount its disk"):
        Copier(origin, sandbox.root / "nvme")()
    assert not (sandbox.root / "nvme").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_directory_of_somebody_else_is_not_used(copier: Copier, sandbox: Sandbox) -> None:
    theirs = sandbox.memory_dir / f"prefeed-staged-{os.geteuid()}"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)

    with pytest.raises(StoreError, match="not a directory of this user"):
        copier()


def test_two_origins_of_one_name_have_two_copies(sandbox: Sandbox) -> None:
    copies = [
        Copier(write_files(sandbox.root / parent / "train", {"a": parent.encode()}), sandbox.memory_dir)()
        for parent in ("x", "y")
    ]

    assert [tree(copy.record.data) for copy in copies] == [{"a": b"x"}, {"a": b"y"}]


def test_a_link_in_the_place_of_the_copy_is_not_followed(copier: Copier, sandbox: Sandbox) -> None:
    """Else what the origin does not have would be removed where the link leads."""
    data = copier().record.data
    other = write_files(sandbox.root / "other", {"precious": b"p"})
    shutil.rmtree(data)
    data.symlink_to(other)

    with pytest.raises(CopyError, match="is a link"):
        copier()
    assert tree(other) == {"precious": b"p"}
    data.unlink()
    assert tree(copier().record.data) == FILES


def test_an_order_that_names_nothing_is_said(copier: Copier, sandbox: Sandbox) -> None:
    with pytest.raises(CopyError, match=r"none of the 2 paths of the order, such as 'x/1\.jpg\\r'"):
        copier(order=["x/1.jpg\r", "x/2.jpg\r", ""])
    assert not list(sandbox.memory_dir.iterdir())


def test_a_link_to_the_place_of_the_copy_does_not_copy_the_copy(copier: Copier, origin: Path, sandbox: Sandbox) -> None:
    (origin / "fast").symlink_to(sandbox.memory_dir)
    write_files(sandbox.memory_dir, {"mine": b"m"})

    for _ in range(3):
        data = copier().record.data
        assert tree(data) == FILES | {"fast/mine": b"m"}
