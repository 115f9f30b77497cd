"""What is only not mounted, or cannot be looked at, is not deleted; nothing is deleted across a mount."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cover import crossed
from mounting import bind, dead_fuse, needs_root, obey_modes, tmpfs, unmount, with_own_mounts
from prefeed.cli.main import cli
from prefeed.config import resolve
from prefeed.copying.staging import StageRequest, stage
from prefeed.errors import CopyError, EmptyListingError, JobError, JobSpecError, PrefeedError
from prefeed.jobs.options import SyncOptions, SyncResult
from prefeed.jobs.rmr import relative_paths, remove, survey
from prefeed.jobs.sync import sync
from prefeed.transfer.directory import DirectoryPlace
from prefeed.transfer.patterns import WORK_NAME, Rule
from unit.jobs.trees import make, tree

pytestmark = needs_root

FILES = {f"c{number % 3}/{number}": bytes([number]) * 50 for number in range(23)}


def run(source: Path, target: Path, **options: object) -> SyncResult:
    return sync(str(source), str(target), SyncOptions(**options), resolve())  # type: ignore[arg-type]


def said(result: SyncResult) -> str:
    return "\n".join(failure.message for failure in result.failures)


def refused(source: Path, target: Path, *named: object, **options: object) -> SyncResult:
    """A sync with ``delete_dst`` fails, names these paths, and deletes nothing."""
    before, originals = tree(target), tree_or_nothing(source)
    result = run(source, target, delete_dst=True, **options)
    assert not result.is_complete
    assert (result.num_deleted_dst, result.num_deleted_src) == (0, 0)
    for path in named:
        assert str(path) in said(result), said(result)
    assert tree(target).items() >= {path: data for path, data in before.items() if path not in originals}.items()
    return result


def tree_or_nothing(root: Path) -> dict[str, bytes]:
    try:
        return tree(root)
    except OSError:
        return {}


def rmr(root: Path, *paths: str, one_file_system: bool = True) -> tuple[int, list[str]]:
    named = relative_paths(str(root), paths)
    survey(str(root), named, resolve(), one_file_system=one_file_system)
    result = remove(str(root), named, resolve(), one_file_system=one_file_system)
    return result.num_removed, result.failures


# ---------------------------------------------------------------- what cannot be looked at


def _unsearchable(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {"a/b/c": b"1", "own": b"o", "d/e": b"2"})
    target = tmp_path / "target"
    run(source, target)
    make(target, {"extra": b"e"})
    make(source, {"new": b"n"})
    obey_modes()
    for mode, named in ((0o400, "a/b"), (0o100, "a"), (0o000, "a")):
        (source / "a").chmod(mode)
        for dry in (True, False):
            refused(source, target, source / named, dry=dry)
        assert run(source, target, delete_dst=True, rules=(Rule("a/", True), Rule("extra", True))).is_complete
        (source / "a").chmod(0o700)
    assert (target / "new").read_bytes() == b"n"
    (source / "d").chmod(0o400)
    refused(source, target, source / "d/e", delete_src=True)
    (source / "d").chmod(0o700)
    (source / "d/e").chmod(0)
    os.utime(source / "d/e")
    refused(source, target, source / "d/e")
    (source / "d/e").chmod(0o600)
    (target / "extra").unlink()
    (target / "d").chmod(0o400)
    make(source, {"newer": b"n"})
    result = run(source, target, delete_dst=True)
    assert not result.is_complete
    assert str(target / "d/e") in said(result)
    assert (target / "newer").exists()
    (target / "d").chmod(0o700)
    assert run(source, target, delete_dst=True).is_complete


def test_what_may_not_be_looked_at_is_not_deleted(tmp_path: Path) -> None:
    with_own_mounts(_unsearchable, tmp_path)


def _dead_mount(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {"m/b/c": b"1", "own": b"o"})
    target = tmp_path / "target"
    run(source, target)
    make(target, {"extra": b"e"})
    make(source, {"new": b"n"})
    with dead_fuse(source / "m"):
        refused(source, target, source / "m")
        (source / "link").symlink_to("m")
        refused(source, target, source / "m", source / "link")
        (source / "link").unlink()
    assert (target / "new").read_bytes() == b"n"
    with dead_fuse(target / "m"):
        result = run(source, target, delete_dst=True)
        assert (result.is_complete, result.num_deleted_dst) == (False, 0)
        assert str(target / "m") in said(result)
        with pytest.raises(JobError, match=str(target / "m")):
            rmr(target, "m")
        root = make(tmp_path / "root", {"x/y": b"1"})
        with dead_fuse(root / "x/m"):
            removed, failures = rmr(root, "x")
        assert removed == 1
        assert [failure.partition(":")[0] for failure in failures] == [str(root / "x/m")]
    with dead_fuse(source), pytest.raises(PrefeedError, match=str(source)):
        run(source, target, delete_dst=True)
    assert tree(target) == {"m/b/c": b"1", "own": b"o", "extra": b"e", "new": b"n"}
    assert run(source, target, delete_dst=True).num_deleted_dst == 1


def test_what_a_dead_file_system_does_not_show_is_not_deleted(tmp_path: Path) -> None:
    with_own_mounts(_dead_mount, tmp_path)


# ---------------------------------------------------------------- nothing is deleted across a mount


@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_rmr_removes_nothing_that_is_mounted_below(kind: str, tmp_path: Path) -> None:
    with_own_mounts(_rmr_across, kind, tmp_path)


def _rmr_across(kind: str, tmp_path: Path) -> None:
    root = make(tmp_path / "root", {"a/b/own": b"1", "a/x": b"2", "z": b"3"})
    point = root / "a/b/point"
    outside = bind(make(tmp_path / "outside", FILES), point) if kind == "bind" else make(tmpfs(point), FILES)

    [doomed] = survey(str(root), ["a"], resolve())
    assert (doomed.num_files, doomed.mounts) == (2, ("a/b/point",))
    number, failures = rmr(root, "a")
    assert (number, len(failures)) == (2, 1)
    assert str(point) in failures[0]
    assert tree(outside) == FILES
    with pytest.raises(JobError, match=str(point)):
        rmr(root, "a/b/point/c0")
    assert rmr(root, "a/b/point")[0] == 0
    assert rmr(root, "a", "z") == (1, failures)
    assert tree(outside) == FILES

    number, failures = rmr(root, "a", one_file_system=False)
    assert number == len(FILES)
    assert [failure for failure in failures if "busy" in failure]  # the place of the mount itself
    assert tree(outside) == {}
    unmount(point)
    assert rmr(root, "a") == (0, [])
    assert not (root / "a").exists()


def _delete_across(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {"own": b"o", "m/here": b"h"})
    target = make(tmp_path / "target", {"extra": b"e"})
    outside = bind(make(tmp_path / "outside", {**FILES, "here": b"h"}), target / "m")
    os.utime(outside / "here", ns=((source / "m/here").stat().st_mtime_ns,) * 2)

    assert run(source, target, delete_dst=True, dirs=True, one_file_system=True).num_deleted_dst == 1
    make(target, {"extra": b"e"})
    result = run(source, target, delete_dst=True, dirs=True)
    assert (result.num_deleted_dst, result.num_failed) == (1, len(FILES))
    assert str(target / "m") in said(result)
    assert tree(outside) == {**FILES, "here": b"h"}
    assert run(source, target, delete_dst=True, dirs=True, one_file_system=False).num_deleted_dst == len(FILES)
    assert tree(outside) == {"here": b"h"}


def test_a_sync_deletes_nothing_that_is_mounted_below_its_destination(tmp_path: Path) -> None:
    with_own_mounts(_delete_across, tmp_path)


def _originals_across(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"own": b"o"}), tmp_path / "target"
    outside = bind(make(tmp_path / "outside", FILES), source / "m")

    assert run(source, target, delete_src=True, one_file_system=True).num_deleted_src == 1
    assert tree(target) == {"own": b"o"}
    result = run(source, target, delete_src=True)
    assert (result.num_deleted_src, result.num_failed) == (0, len(FILES))
    assert tree(outside) == FILES
    assert run(source, target, delete_src=True, one_file_system=False).num_deleted_src == len(FILES)
    assert tree(target) == {"own": b"o", **{f"m/{path}": data for path, data in FILES.items()}}


def test_originals_behind_a_mount_are_deleted_only_when_told(tmp_path: Path) -> None:
    with_own_mounts(_originals_across, tmp_path)


def _very_same_files(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"m/a": b"1", "own": b"o"}), make(tmp_path / "target", {})
    bind(source / "m", target / "m")

    for option in (None, False):
        assert not run(source, target, delete_src=True, one_file_system=option).is_complete
        assert tree(source)["m/a"] == b"1"


def _mounted_work(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"own": b"o"}), make(tmp_path / "target", {})
    outside = bind(make(tmp_path / "outside", FILES), target / WORK_NAME)
    with pytest.raises(JobError, match=f"{WORK_NAME}.*mount"):
        run(source, target)
    assert tree(outside) == FILES


def test_what_is_mounted_where_files_are_made_is_not_emptied(tmp_path: Path) -> None:
    with_own_mounts(_mounted_work, tmp_path)


def test_a_file_is_not_deleted_for_being_its_own_copy(tmp_path: Path) -> None:
    with_own_mounts(_very_same_files, tmp_path)


def _mounted_meanwhile(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {"own": b"o"})
    target = make(tmp_path / "target", {"own": b"o", "m/a": b"1", "z": b"1"})
    outside = make(tmp_path / "outside", {"a": b"1"})
    os.utime(outside / "a", ns=((target / "m/a").stat().st_mtime_ns,) * 2)
    removed = DirectoryPlace.remove_unchanged

    def mount_before(self: DirectoryPlace, listed: object) -> object:
        bind(outside, target / "m")
        return removed(self, listed)  # type: ignore[arg-type]

    DirectoryPlace.remove_unchanged = mount_before  # type: ignore[method-assign, assignment]
    result = run(source, target, delete_dst=True)
    assert (result.num_deleted_dst, result.num_failed) == (1, 1)
    assert str(target / "m") in said(result)
    assert tree(outside) == {"a": b"1"}


def test_a_mount_made_before_the_deletion_is_not_entered(tmp_path: Path) -> None:
    with_own_mounts(_mounted_meanwhile, tmp_path)


# ---------------------------------------------------------------- what is not mounted any more


@pytest.mark.parametrize("how", ["bind", "tmpfs", "link", "removed", "sentinel", "root", "kept for years"])
def test_what_was_mounted_at_the_last_sync_is_not_deleted(how: str, tmp_path: Path) -> None:
    with_own_mounts(_vanished, how, tmp_path)


def _vanished(how: str, tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"own": b"o"}), tmp_path / "target"
    point = source / "sub/m"
    if how == "link":
        point = tmp_path / "elsewhere"
        (source / "sub").mkdir()
    elif how == "root":
        point = source
    if how == "bind":
        bind(make(tmp_path / "outside", FILES), point)
    else:
        make(tmpfs(point), FILES)
    if how == "link":
        (source / "sub/m").symlink_to(point)
    if how == "root":
        source = source / "c0"
    run(source, target)
    if how == "kept for years":  # the sync that saw it was killed, and one without it deletes nothing
        unmount(point)
        run(source, target)
        tmpfs(point)
        run(source, target)
    make(target, {"extra": b"e"})
    unmount(point)
    if how == "removed":
        point.rmdir()
    elif how == "sentinel":
        make(point, {"NOT MOUNTED": b""})
    elif how == "root":
        make(source, {"0": b"0"})

    where = source if how == "root" else source / "sub/m"
    for dry in (True, False, False):
        refused(source, target, where, dry=dry)
    run(source, target)  # copies as ever, and does not forget
    refused(source, target, where)
    refused(source, target, where, one_file_system=True)
    refused(source, target, where, one_file_system=False)
    if how == "root":
        return
    assert run(source, target, delete_dst=True, rules=(Rule("sub/", True),)).num_deleted_dst == 1
    refused(source, target, where)
    rmr(target, "sub/m")
    assert run(source, target, delete_dst=True).is_complete
    make(target, {"sub/m/9": b"e"})
    assert run(source, target, delete_dst=True).num_deleted_dst == 1  # forgotten by now


@pytest.mark.parametrize("where", ["m", ""])
def test_a_mount_of_the_destination_that_is_missing_stops_all_deletions(where: str, tmp_path: Path) -> None:
    with_own_mounts(_unmounted_target, where, tmp_path)


def _unmounted_target(where: str, tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"a": b"o"}), tmp_path / "target"
    point = tmpfs(target / where)
    run(source, target)
    assert run(source, target, delete_dst=True).is_complete
    unmount(point)
    make(target, {"extra": b"e"})
    for dry in (True, False, False):
        result = refused(source, target, point, dry=dry, delete_src=True)
    assert tree(source) == {"a": b"o"}
    if where:
        rules = (Rule("m/", True), Rule("extra", True))
        assert run(source, target, delete_dst=True, rules=rules).is_complete
        assert run(source, target, delete_dst=True, end="l").num_deleted_dst == 1
        assert not run(source, target, delete_src=True).is_complete
    Path(said(result).partition("remove ")[2].partition(",")[0]).unlink()
    assert run(source, target, delete_src=True).num_deleted_src == 1


def _empty_mount(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"own": b"o", "m/a": b"1"}), tmp_path / "target"
    run(source, target)
    tmpfs(source / "m")
    refused(source, target, source / "m")
    assert run(source, target, delete_dst=True, one_file_system=True).num_deleted_dst == 0
    unmount(source / "m")
    assert run(source, target, delete_dst=True).is_complete
    tmpfs(source)
    with contextlib.suppress(EmptyListingError):  # or it is seen first that the source is a mount now
        assert not run(source, target, delete_dst=True).is_complete
    assert tree(target) == {"own": b"o", "m/a": b"1"}


def test_a_mount_with_nothing_in_it_empties_no_copy(tmp_path: Path) -> None:
    with_own_mounts(_empty_mount, tmp_path)


def _only_one_file_system(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"own": b"o"}), make(tmp_path / "target", {"m/theirs": b"t"})
    make(tmpfs(source / "m"), {"a": b"1"})
    (target / "m/e").mkdir()
    assert run(source, target, delete_dst=True, dirs=True, one_file_system=True).is_complete
    assert tree(target) == {"own": b"o", "m/theirs": b"t"}
    assert (target / "m/e").is_dir()


def test_one_file_system_leaves_alone_what_lies_below_mounts_at_either_side(tmp_path: Path) -> None:
    with_own_mounts(_only_one_file_system, tmp_path)


# ---------------------------------------------------------------- mounts that come and go meanwhile


def _at_file(number: int, act: Callable[[], None]) -> None:
    """Do something when so many files were listed at the source; 0: before anything is."""
    real = DirectoryPlace.list_in_order

    def listed(self: DirectoryPlace, rules: object) -> object:
        if not number:
            act()
        for count, one in enumerate(real(self, rules), 1):  # type: ignore[arg-type]
            if count == number:
                act()
            yield one

    DirectoryPlace.list_in_order = listed  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("by_link", [False, True])
def test_a_mount_that_goes_before_it_is_looked_at_was_there(by_link: bool, tmp_path: Path) -> None:
    with_own_mounts(_gone_at_once, by_link, tmp_path)


def _gone_at_once(by_link: bool, tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"a": b"a"}), make(tmp_path / "target", {"m/x": b"x"})
    point = tmpfs(tmp_path / "elsewhere" if by_link else source / "m")
    if by_link:
        (source / "m").symlink_to(point)
    _at_file(0, lambda: unmount(point))
    refused(source, target, point)


@pytest.mark.parametrize(("what", "side"), crossed(["gone", "come", "root gone", "root come"], ["source", "target"]))
def test_a_mount_that_goes_or_comes_meanwhile_stops_all_deletions(what: str, side: str, tmp_path: Path) -> None:
    with_own_mounts(_meanwhile, what, side, tmp_path)


def _meanwhile(what: str, side: str, tmp_path: Path) -> None:
    data = {"a": b"a", **{f"m/d{number:03}/x": b"1" for number in range(300)}, "z": b"z"}
    source, target = make(tmp_path / "source", {"a": b"a"}), tmp_path / "target"
    root = source if side == "source" else target
    root.mkdir(exist_ok=True)
    point = root if what.startswith("root") else root / "m"
    if what.endswith("gone"):
        tmpfs(point)
    make(source, data)
    make(target, data)
    for path in data:
        os.utime(target / path, ns=((source / path).stat().st_mtime_ns,) * 2)
    make(target, {"extra": b"e"})
    outside = make(tmp_path / "outside", {"y": b"y"})
    _at_file(20, (lambda: unmount(point)) if what.endswith("gone") else (lambda: bind(outside, point) and None))
    result = None
    with contextlib.suppress(PrefeedError):
        result = run(source, target, delete_dst=True, delete_src=True)
    if result is not None:
        if side == "target" and what == "come":  # what was made there is not entered
            assert not result.is_complete
        else:
            assert (result.num_deleted_dst, result.num_deleted_src) == (0, 0)
            assert not result.is_complete
            assert str(point) in said(result), said(result)
    if what.endswith("come"):
        assert tree(outside) == {"y": b"y"}
        unmount(point)
        assert tree(target).items() >= data.items()
        assert tree(source) == data or (side, what) == ("target", "come")


# ---------------------------------------------------------------- a kernel that does not tell


@pytest.mark.parametrize("lacks", ["numbers", "list"])
def test_a_kernel_that_does_not_tell_mounts_apart_deletes_nothing(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefeed.system import removing
    from prefeed.transfer import mounted, ordered_walk

    source, target = make(tmp_path / "source", {"own": b"o"}), make(tmp_path / "target", {"extra": b"e"})
    if lacks == "numbers":
        for module in (removing, ordered_walk, mounted):
            monkeypatch.setattr(module, "mount_number", lambda _: None)
        with pytest.raises(JobError, match="kernel does not report"):
            rmr(target, "extra")
    else:
        monkeypatch.setattr(mounted, "mounts_by_number", dict)
    refused(source, target, target, "kernel does not report")
    assert (target / "own").exists()
    assert run(source, target, delete_dst=True, one_file_system=False).num_deleted_dst == 1


# ---------------------------------------------------------------- the commands


def _commands(tmp_path: Path) -> None:
    source, target = make(tmp_path / "source", {"own": b"o"}), make(tmp_path / "target", {"a/x": b"1", "b": b"2"})

    def prefeed(*arguments: object) -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)

    bind(make(tmp_path / "outside", FILES), source / "m")
    assert prefeed("sync", source, target).exit_code == 0
    unmount(source / "m")
    for more in ((), ("--dry-run",), ("-x",), ("--no-one-file-system",), ("--json",)):
        result = prefeed("sync", source, target, "--delete-dst", *more)
        assert result.exit_code == 1
        assert str(source / "m") in result.output
    assert set(tree(target)) == {"a/x", "b", "own", *(f"m/{path}" for path in FILES)}

    point = bind(tmp_path / "outside", target / "a/point")
    spec = {"type": "rmr", "rmrOptions": {"url": str(target), "paths": ["a"]}}
    for name, option, phase in (("one", {}, "Failed"), ("two", {"one-file-system": False}, "Failed")):
        document = {
            "apiVersion": "batch.paddlepaddle.org/v1alpha1", "kind": "SampleJob", "metadata": {"name": name},
            "spec": {**spec, "rmrOptions": {**spec["rmrOptions"], **option}},
        }  # fmt: skip
        (tmp_path / "job.yaml").write_text(json.dumps(document))
        result = prefeed("job", "apply", "-f", tmp_path / "job.yaml", "--yes")
        assert (result.exit_code, phase in result.output) == (1, True)
        assert str(point) in result.output
        assert bool(tree(tmp_path / "outside")) == (not option)


def _places_by_mounts(tmp_path: Path) -> None:
    source = make(tmp_path / "source", {f"a/sub/{path}": data for path, data in FILES.items()})
    view = bind(source / "a", tmp_path / "view")
    outside = make(tmp_path / "outside", FILES)
    bind(outside, source / "m")
    before = tree(source)
    for one, other in [(source, view / "sub"), (view / "sub", source), (view, source / "a" / "sub"), (source, outside)]:
        with pytest.raises(JobSpecError, match="overlap"):
            run(one, other, delete_dst=True, delete_src=True)
    for place in (view / "sub", outside):
        with pytest.raises(CopyError, match="overlap"):
            stage(StageRequest(url=str(source), place=place), resolve())
    assert tree(source) == before


def test_places_that_lie_in_one_another_by_a_mount_are_refused(tmp_path: Path) -> None:
    with_own_mounts(_places_by_mounts, tmp_path)


def test_the_commands_end_with_1_and_name_the_mount(tmp_path: Path) -> None:
    with_own_mounts(_commands, tmp_path)
