"""A tree shows what a manifest's paths imply, in every order of names, and the same numbers in every process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_sources import MemorySource
from prefeed.mount.tree import ROOT, File, Link, Tree, TreeDirectory, find_hidden
from prefeed.sources.manifest import Manifest
from prefeed.sources.manifest_writer import build_manifest
from profiles import examples


def manifest_of(directory: Path, paths: list[str], url: str = "memory://test") -> Manifest:
    return build_manifest(
        MemorySource({path: path.encode("utf-8", "surrogateescape") for path in paths}, url=url), directory
    )


def shown(tree: Tree, number: int = ROOT, prefix: bytes = b"") -> dict[bytes, int]:
    """Return every file that the tree lists, by path; each name is looked up as well, and found again by its number."""
    found = {}
    directory = tree.node(number)
    assert isinstance(directory, TreeDirectory)
    for child, name, _ in tree.list_entries(number, 0):
        if name in (b".", b".."):
            continue
        assert tree.look_up(directory, name) == child
        node = tree.node(child)
        if isinstance(node, TreeDirectory):
            assert node.prefix == prefix + name + b"/"
            found.update(shown(tree, child, node.prefix))
        elif isinstance(node, File):
            found[prefix + name] = node.object_id
    return found


def names(tree: Tree, number: int = ROOT, offset: int = 0) -> list[bytes]:
    return [name for _, name, _ in tree.list_entries(number, offset)]


PATHS = ["a", "a-b/c", "a0", "b/c/d", "b/c/e", "b/f", "b.x", "c", "train/0/x.jpg", "train/1/x.jpg", "\udcff\udcfe/y"]


def test_all_files_are_shown_and_found(tmp_path: Path) -> None:
    tree = Tree(manifest_of(tmp_path / "m", PATHS))
    assert shown(tree) == {
        path.encode("utf-8", "surrogateescape"): i for i, path in enumerate(sorted(PATHS, key=_bytes))
    }


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def test_a_listing_resumes_at_each_offset(tmp_path: Path) -> None:
    tree = Tree(manifest_of(tmp_path / "m", PATHS), {b"logs": b"/tmp"})
    lines = list(tree.list_entries(ROOT, 0))
    for at, line in enumerate(lines):
        assert list(tree.list_entries(ROOT, line.next_offset)) == lines[at + 1 :]


def test_what_is_not_listed_is_not_found(tmp_path: Path) -> None:
    tree = Tree(manifest_of(tmp_path / "m", PATHS))
    root = tree.node(ROOT)
    assert isinstance(root, TreeDirectory)
    for name in (b"aa", b"trai", b"zzz"):
        assert tree.look_up(root, name) == 0
    assert tree.node(2) is None
    assert tree.node(1024 + len(PATHS)) is None
    assert tree.node(1 << 40) is None
    assert tree.node((1 << 40) + 1024 + len(PATHS)) is None
    assert tree.node((9 << 40) + 1024) is None


def test_links_lead_from_the_root(tmp_path: Path) -> None:
    tree = Tree(manifest_of(tmp_path / "m", PATHS), {b"logs": b"/tmp/logs"})
    root = tree.node(ROOT)
    assert isinstance(root, TreeDirectory)
    assert tree.node(tree.look_up(root, b"logs")) == Link(b"logs", b"/tmp/logs")
    assert b"logs" in names(tree)
    below = tree.node(tree.look_up(root, b"train"))
    assert isinstance(below, TreeDirectory)
    assert tree.look_up(below, b"logs") == 0
    assert b"logs" not in names(tree, tree.look_up(root, b"train"))


@pytest.mark.parametrize("name", [b"a", b"train"])
def test_a_link_takes_no_listed_name(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(ValueError, match="already"):
        Tree(manifest_of(tmp_path / "m", PATHS), {name: b"/tmp"})


def test_where_a_store_has_an_object_and_a_directory_of_one_name_the_directory_is_shown(tmp_path: Path) -> None:
    tree = Tree(manifest_of(tmp_path / "m", ["x", "x-y", "x/a"]))
    assert sorted(shown(tree)) == [b"x-y", b"x/a"]
    assert names(tree) == [b".", b"..", b"x", b"x-y"]


def test_names_that_no_file_system_has_are_not_shown(tmp_path: Path) -> None:
    long = "n" * 256
    tree = Tree(manifest_of(tmp_path / "m", ["./a", "../b", "c//d", "e/\0", f"f/{long}", f"{long}/g", "h" * 255, "/i"]))
    assert sorted(shown(tree)) == [b"h" * 255]
    assert sorted(names(tree)) == [b".", b"..", b"c", b"e", b"f", b"h" * 255]


def test_numbers_are_the_same_in_another_process(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", PATHS)
    first = Tree(manifest)
    numbers = {number for number, _, _ in first.list_entries(ROOT, 0)}
    second = Tree(Manifest.open(manifest.directory))
    assert [second.node(number) for number in numbers] == [first.node(number) for number in numbers]


NAMES = st.sampled_from(["a", "a-", "a.", "a0", "b", "B", "-", "0", "\udcff"])


@settings(max_examples=examples(200))
@given(st.sets(st.lists(NAMES, min_size=1, max_size=4).map("/".join), min_size=1, max_size=30))
def test_a_tree_shows_each_path_that_no_other_one_makes_a_directory(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str]
) -> None:
    tree = Tree(manifest_of(tmp_path_factory.mktemp("m"), sorted(paths)))
    files = {_bytes(path) for path in paths if not any(other.startswith(path + "/") for other in paths)}
    assert set(shown(tree)) == files


ODD_NAMES = st.sampled_from(["a", "a-", "b", "", ".", "..", "..a", ".b", "b.", "n\0", "x" * 255, "x" * 256])


@settings(max_examples=examples(200))
@given(st.sets(st.lists(ODD_NAMES, min_size=1, max_size=4).map("/".join).filter(bool), min_size=1, max_size=30))
def test_every_path_is_shown_or_named(tmp_path_factory: pytest.TempPathFactory, paths: set[str]) -> None:
    manifest = manifest_of(tmp_path_factory.mktemp("m"), sorted(paths))
    left_out = find_hidden(manifest)
    assert left_out.count == len(paths) - len(shown(Tree(manifest)))
    assert left_out.count or not left_out.described()


def test_a_directory_with_many_files_between_directories_is_looked_at_once(tmp_path: Path) -> None:
    paths = [f"f{i:05d}" for i in range(0, 3000, 2)] + [f"f{i:05d}/x" for i in range(1, 600, 2)]
    tree = Tree(manifest_of(tmp_path / "m", paths))
    assert len(shown(tree)) == len(paths)
    assert sum(len(run) for run in tree.children(ROOT).runs) == 1500
    assert len(tree.children(ROOT).directories) == 300
