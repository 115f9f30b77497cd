"""Defects that were found in the code of other caches for torch's loaders: each has a test that prefeed is without it.

Not repeated here: another user at the control socket (``unit/server/test_loop.py``, ``unit/wire/test_endpoint.py``,
``fault/test_home_faults.py``), and a server held up while workers read (``process/test_server_kill.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.io import read_image

import prefeed
import warm
from e2e.automatic import auto
from e2e.images import NUM_IMAGES, make_image_folder
from leaks import read_proc, wait_until
from limits import set_limits
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.types import ServerStatus, Statistics
from sandbox import Sandbox, servers_of

NUM_FILES = 40
FILE_BYTES = 2000


class Files(Dataset[Any]):
    """Reads one file a sample, and says so."""

    def __init__(self, paths: list[str], read: Callable[[str], Any]) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.paths[index])

    def prefeed_paths(self, index: int) -> str:
        return self.paths[index]


class Untold(Dataset[Any]):
    """Reads one file a sample, and nobody knows which."""

    def __init__(self, paths: list[str], read: Callable[[str], Any]) -> None:
        self._inner = Files(paths, read)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        return self._inner[index]


def contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write_files(root: Path, *, count: int = NUM_FILES, size: int = FILE_BYTES) -> list[str]:
    root.mkdir()
    rng = np.random.default_rng(5)
    for index in range(count):
        (root / f"{index:03}.bin").write_bytes(rng.bytes(size))
    return [str(path) for path in sorted(root.iterdir())]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path / "data"))
    return write_files(tmp_path / "data")


def epoch(loader: Any) -> list[Any]:
    return [sample for batch in loader for sample in batch]


def loader_of(dataset: Any, **kwargs: Any) -> Any:
    return prefeed.DataLoader(dataset, batch_size=4, collate_fn=list, **kwargs)


def server() -> ServerStatus:
    with NodeClient.connect(resolve(), autostart=False) as node:
        return node.status()


def statistics_when(condition: Callable[[Statistics], bool]) -> Statistics:
    """Return the counts when they meet the condition, or after a while as they are."""
    wait_until(lambda: condition(prefeed.statistics()), timeout_seconds=60)
    return prefeed.statistics()


# ---------------------------------------------------------------- server and settings


def test_server_that_answers_not_is_not_waited_for_100_seconds(
    paths: list[str], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is read from the origin, and the reads are counted as such."""
    set_limits(monkeypatch, request_seconds=0.1)
    monkeypatch.setattr("prefeed.client.reader._GRACE_SECONDS", 0.0)
    monkeypatch.setattr("prefeed.client.reader._RECONNECT_SECONDS", 0.0)
    monkeypatch.setattr("prefeed.client.consumer._COUNTS_SECONDS", 0.1)
    monkeypatch.setattr("prefeed.torch.planning.is_readable_ahead", lambda sampler: False)  # nothing is fetched ahead
    monkeypatch.setattr("prefeed.torch.planning.try_forecast", lambda sampler: None)
    loader = loader_of(Files(paths, contents))
    iterator = iter(loader)
    seen = list(next(iterator))
    (pid,) = servers_of(sandbox)
    os.kill(pid, signal.SIGSTOP)
    try:
        seen += next(iterator)
    finally:
        os.kill(pid, signal.SIGCONT)
    seen += [sample for batch in iterator for sample in batch]
    assert seen == [contents(path) for path in paths]
    del iterator, loader
    found = statistics_when(lambda s: s.direct_reads > 0)
    assert found.direct_reads >= 1


def test_server_that_cannot_read_a_file_leaves_it_to_the_loop(paths: list[str], tmp_path: Path) -> None:
    """It is an error of the file alone, in Python's own words; the other files are served."""
    missing = str(tmp_path / "data" / "missing.bin")

    def read(path: str) -> Any:
        try:
            return contents(path)
        except FileNotFoundError as err:
            return err.filename

    mixed = [*paths[:10], missing, *paths[10:]]
    loader = loader_of(Files(mixed, read))
    expected = [read(path) for path in mixed]
    assert epoch(loader) == expected
    assert epoch(loader) == expected
    assert expected[10] == missing
    assert prefeed.statistics().resident_objects == len(paths)


@pytest.mark.parametrize("trouble", ["no server", "home", "memory", "runtime"])
def test_nothing_missing_is_an_error_at_construction(
    paths: list[str], tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor later: the loader is torch's."""
    file = tmp_path / "file"
    file.touch()
    name, value = {
        "no server": ("PREFEED_AUTOSTART", "0"),
        "home": ("PREFEED_HOME", str(file / "home")),
        "memory": ("PREFEED_MEMORY_DIR", str(file / "memory")),
        "runtime": ("XDG_RUNTIME_DIR", str(file / "run")),
    }[trouble]
    monkeypatch.setenv(name, value)
    expected = [contents(path) for path in paths]
    assert epoch(loader_of(Files(paths, contents))) == expected
    with auto():
        assert epoch(DataLoader(Files(paths, contents), batch_size=4, collate_fn=list)) == expected


def test_no_variable_has_to_be_set() -> None:
    """Not one of prefeed's own, nor one of the names that other caches want."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFEED_")}
    program = warm.given_as_text(
        "import prefeed.auto\n"
        "from torch.utils.data import DataLoader\n"
        "print([batch.tolist() for batch in DataLoader(range(5), batch_size=4)])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "[[0, 1, 2, 3], [4]]\n"), result.stderr


# ---------------------------------------------------------------- what is fetched


@pytest.mark.parametrize("kind", [Files, Untold])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_empty_file_in_a_batch_makes_no_miss_of_the_rest(
    paths: list[str], kind: Callable[..., Dataset[Any]], num_workers: int
) -> None:
    for index in (1, 2, 17, len(paths) - 1):
        Path(paths[index]).write_bytes(b"")
    expected = [contents(path) for path in paths]
    loader = loader_of(kind(paths, contents), num_workers=num_workers)
    for number in (1, 2, 3):
        assert epoch(loader) == expected
        assert statistics_when(lambda s: s.reads == number * len(paths)).reads == number * len(paths)  # noqa: B023
    found = prefeed.statistics()
    assert (found.direct_reads, found.errors) == (0, {})
    assert found.origin_requests == found.resident_objects == len(paths)


def test_unread_files_of_epochs_broken_off_are_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither bytes nor requests are left when the loader is gone; nor does it grow from epoch to epoch."""
    paths = write_files(tmp_path / "data", count=120, size=100_000)
    monkeypatch.setenv("PREFEED_MEMORY", "6MiB")
    set_limits(monkeypatch, lookahead_bytes=1 << 20)
    loader = loader_of(Files(paths, contents), shuffle=True, num_workers=2)
    for _ in range(5):
        iterator = iter(loader)
        next(iterator)
        del iterator
        found = prefeed.statistics()
        assert found.resident_bytes + found.transient_bytes <= found.budget_bytes
    del loader
    assert statistics_when(lambda s: s.transient_objects == 0).transient_bytes == 0
    assert wait_until(lambda: server().in_flight == 0, timeout_seconds=60)
    assert server().plans == 0


def test_read_once_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_READ_ONCE", "1")
    paths = write_files(tmp_path / "data")
    loader = loader_of(Files(paths, contents), num_workers=2)
    assert epoch(loader) == [contents(path) for path in paths]
    del loader
    found = statistics_when(lambda s: s.transient_objects == 0)
    assert (found.transient_bytes, found.resident_bytes) == (0, 0)


def test_memory_is_bounded(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data three times as large as what may be used: by the server's own account, and by the kernel's."""
    most = 8 * 1024**2
    paths = write_files(tmp_path / "data", count=240, size=100_000)
    monkeypatch.setenv("PREFEED_MEMORY", str(most))
    loader = loader_of(Files(paths, contents), shuffle=True)
    for _ in range(2):
        num_samples = 0
        for batch in loader:
            num_samples += len(batch)
            found = prefeed.statistics()
            assert found.resident_bytes + found.transient_bytes <= found.budget_bytes <= most
            assert 0 < tier_bytes(*servers_of(sandbox)) <= most
        assert num_samples == len(paths)


def tier_bytes(pid: int) -> int:
    """Return the allocated bytes of a server's memory tier."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += path.stat().st_blocks * 512 if os.readlink(path).startswith("/memfd:prefeed-") else 0
    return found


# ---------------------------------------------------------------- threads and processes


def tasks_of(pid: int) -> list[int]:
    return sorted(map(int, os.listdir(f"/proc/{pid}/task")))


def activity_of(pid: int, *, without: int = 0) -> dict[int, tuple[bytes, ...]]:
    """Return for each thread how often it was switched away from, and its processor time so far."""
    found = {}
    for task in tasks_of(pid):
        if task != without:
            switches = [line for line in read_proc(pid, f"task/{task}/status").splitlines() if b"ctxt_switches" in line]
            times = read_proc(pid, f"task/{task}/stat").rpartition(b")")[2].split()[11:13]
            found[task] = (*switches, *times)
    return found


def comes_to_rest(look: Callable[[], Any], *, timeout_seconds: float) -> bool:
    """Return True once looks that grow further and further apart, eight in a row, have seen no change.

    They take a third of a second: the server looks once a second how much memory is left.
    """
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        first, num_looks = look(), 0

        def has_changed(first: Any = first) -> bool:
            nonlocal num_looks
            num_looks += 1
            return num_looks > 8 or look() != first

        wait_until(has_changed, timeout_seconds=timeout_seconds)
        if num_looks > 8:
            return True
    return False


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_busy_while_the_loop_is(paths: list[str], sandbox: Sandbox, num_workers: int) -> None:
    """The loop computes on a batch: server, workers and every thread of ours sleep until it asks again."""
    iterator = iter(loader_of(Files(paths, contents), shuffle=True, num_workers=num_workers))
    next(iterator)
    (pid,) = servers_of(sandbox)
    workers = [worker.pid for worker in getattr(iterator, "_workers", [])]
    assert len(workers) == num_workers

    def look() -> Any:
        return [activity_of(os.getpid(), without=os.getpid()), *map(activity_of, [pid, *workers])]

    assert comes_to_rest(look, timeout_seconds=60)
    assert len(list(iterator)) == len(paths) // 4 - 1


def test_a_busy_process_would_be_noticed() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        first = activity_of(busy.pid)
        assert wait_until(lambda: activity_of(busy.pid) != first, timeout_seconds=60)
    finally:
        busy.kill()
        busy.wait()
    assert not comes_to_rest(itertools.count().__next__, timeout_seconds=1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_thread_or_descriptor_stays_after_a_batch(
    paths: list[str], sandbox: Sandbox, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 100 batches, in the loop's process, in the worker and in the server.

    The server's pool ``prefeed-fetch`` starts a thread whenever more fetches and checks are pending than it has threads: here one is all.
    """
    set_limits(monkeypatch, max_in_flight=1)
    loader = loader_of(Files(paths * 5, contents), num_workers=num_workers, persistent_workers=num_workers > 0)
    assert len(epoch(loader)) == len(paths) * 5
    (pid,) = servers_of(sandbox)
    seen = []
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        processes = [os.getpid(), pid, *(worker.pid for worker in getattr(iterator, "_workers", []))]
        seen += [[(len(tasks_of(p)), len(os.listdir(f"/proc/{p}/fd"))) for p in processes] for _ in iterator]
        del iterator
    assert len(seen) == 2 * (len(paths) * 5 // 4 - 1)
    # A worker opens and closes what it sends, and what it reads itself, meanwhile.
    threads = [[threads for threads, _ in look] for look in seen]
    assert threads == [threads[0]] * len(threads)
    assert max(descriptors for look in seen[-20:] for _, descriptors in look) <= (
        max(descriptors for look in seen[:20] for _, descriptors in look) + 2
    )


def test_kept_workers_serve_the_second_epoch_and_the_third(paths: list[str]) -> None:
    loader = loader_of(Untold(paths, contents), num_workers=2, persistent_workers=True)
    expected = [contents(path) for path in paths]
    assert [epoch(loader) for _ in range(3)] == [expected] * 3
    found = statistics_when(lambda s: s.reads == 3 * len(paths))
    assert (found.reads, found.direct_reads, found.origin_requests) == (3 * len(paths), 0, len(paths))


def test_no_workers(paths: list[str]) -> None:
    loader = loader_of(Files(paths, contents), num_workers=0)
    assert epoch(loader) == [contents(path) for path in paths]
    assert prefeed.statistics().reads == len(paths)


@pytest.mark.parametrize(("given", "kept"), [({"prefetch_factor": 3}, 3), ({}, 2)], ids=["given", "torch's own"])
def test_one_worker_keeps_its_prefetch_factor(paths: list[str], given: dict[str, int], kept: int) -> None:
    for explicit in (True, False):
        with auto():
            made = (prefeed.DataLoader if explicit else DataLoader)(Files(paths, contents), num_workers=1, **given)
            assert made.prefetch_factor == kept
            iterator: Any = iter(made)
            assert iterator._prefetch_factor == kept
            assert iterator._tasks_outstanding == kept
            del iterator


# ---------------------------------------------------------------- datasets


class Listed(Untold):
    """Has the method of cube_torch."""

    def __init__(self, paths: list[str], form: Callable[[list[str]], Any]) -> None:
        super().__init__(paths, contents)
        self._form = form

    def train_data_list(self) -> Any:
        return self._form(self._inner.paths)


@pytest.mark.parametrize("form", [np.array, list, tuple, partial(np.array, dtype=object)])
def test_list_of_one_dimension_is_a_list_of_paths(paths: list[str], form: Callable[[list[str]], Any]) -> None:
    """And not one of their characters."""
    loader = loader_of(Listed(paths, form))
    assert epoch(loader) == [contents(path) for path in paths]
    found = prefeed.statistics()
    assert (found.reads, found.resident_objects, found.errors) == (len(paths), len(paths), {})


def test_path_outside_the_roots_is_left_alone(paths: list[str], tmp_path: Path) -> None:
    """A sibling whose name begins as the root's is outside as well."""
    outside = write_files(tmp_path / "data-of-others")

    def read(path: str) -> list[bytes]:
        return [contents(path), contents(outside[paths.index(path)])]

    loader = loader_of(Untold(paths, read))
    for _ in range(2):
        assert epoch(loader) == [read(path) for path in paths]
    found = prefeed.statistics()
    assert (found.reads, found.resident_objects) == (2 * len(paths), len(paths))


class Stream(IterableDataset[int]):
    """Has no length."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


@pytest.mark.parametrize("kind", [prefeed.DataLoader, DataLoader], ids=["prefeed's", "torch's"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterable_dataset_without_a_length(kind: Any, num_workers: int) -> None:
    with auto():
        loader = kind(Stream(), batch_size=4, num_workers=num_workers)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        with pytest.raises(TypeError, match="has no len"):
            len(loader)


# ---------------------------------------------------------------- ways to read a file


def pictures_of(tmp_path: Path) -> list[str]:
    return [str(path) for path in sorted(make_image_folder(tmp_path / "data").rglob("*.png"))]


def assert_served(dataset: Untold, expected: list[Any], *, reads_each: int = 1) -> None:
    """Both epochs give what is expected, all from the cache, with each file asked of the origin once."""
    loader = loader_of(dataset)
    for _ in range(2):
        assert all(map(is_equal, epoch(loader), expected))
    found = prefeed.statistics()
    assert found.reads == 2 * len(dataset) * reads_each
    assert found.origin_requests == len(dataset) * min(1, reads_each)
    assert found.direct_reads == 0


def is_equal(one: Any, other: Any) -> bool:
    same = one == other
    return type(one) is type(other) and bool(same.all() if isinstance(one, np.ndarray | torch.Tensor) else same)


IMREAD: dict[str, Callable[[str], Any]] = {
    "path": lambda path: cv2.imread(path),
    "flag": lambda path: cv2.imread(path, cv2.IMREAD_GRAYSCALE),
    "flags=": lambda path: cv2.imread(path, flags=cv2.IMREAD_UNCHANGED),
    "filename=": lambda path: cv2.imread(filename=path),
    "both": lambda path: cv2.imread(filename=path, flags=cv2.IMREAD_GRAYSCALE),
    "zero": lambda path: cv2.imread(path, 0),
}


@pytest.mark.parametrize("form", IMREAD)
def test_every_form_of_imread_on_a_hit(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    paths = pictures_of(tmp_path)
    assert_served(Untold(paths, IMREAD[form]), [IMREAD[form](path) for path in paths])


def first_bytes(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(7)


def first_line(path: str) -> str:
    with open(path, encoding="latin-1") as file:
        return file.readline()


def opened_by_pillow(path: str) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


READERS: dict[str, Callable[[str], Any]] = {
    "Image.open": opened_by_pillow,
    "Image.open of a Path": lambda path: opened_by_pillow(Path(path)),  # type: ignore[arg-type]
    "numpy.fromfile": lambda path: np.fromfile(path, dtype=np.uint8),
    "Path.read_bytes": lambda path: Path(path).read_bytes(),
    "Path.read_text": lambda path: Path(path).read_text(encoding="latin-1"),
    "Path.open": first_bytes,
    "open": contents,
    "open as text": first_line,
    "torchvision": read_image,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")  # torchvision 0.29 (2026)
def test_other_ways_to_read_are_reached(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    paths = pictures_of(tmp_path)
    assert_served(Untold(paths, READERS[name]), [READERS[name](path) for path in paths])


def read_hdf5(path: str) -> Any:
    with h5py.File(path) as file:
        return file["x"][:]


def read_mapped(path: str) -> Any:
    return np.array(np.load(path, mmap_mode="r"))


def test_hdf5_is_left_alone_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    paths = [str(tmp_path / f"{index}.h5") for index in range(12)]
    for index, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(index, index + 100)
    for kind in (Files, Untold):
        loader = loader_of(kind(paths, read_hdf5))
        for _ in range(2):
            assert all(map(is_equal, epoch(loader), [read_hdf5(path) for path in paths]))
    assert prefeed.statistics().reads == 0


def test_mapped_file_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``open`` is answered from the cache, and the descriptor that is mapped is the file's own."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    paths = [str(tmp_path / f"{index}.npy") for index in range(12)]
    for index, path in enumerate(paths):
        np.save(path, np.arange(index, index + 100))
    for kind in (Files, Untold):
        loader = loader_of(kind(paths, read_mapped))
        for _ in range(2):
            assert all(map(is_equal, epoch(loader), [read_mapped(path) for path in paths]))


# ---------------------------------------------------------------- what the program sees of it


def test_every_loader_is_an_instance_of_torchs_class(paths: list[str]) -> None:
    made_before = DataLoader(Files(paths, contents))
    with auto():
        made = DataLoader(Files(paths, contents))
        explicit = prefeed.DataLoader(Files(paths, contents))
        for loader in (made_before, made, explicit):
            assert isinstance(loader, torch.utils.data.DataLoader)
            assert isinstance(loader, prefeed.DataLoader)
        assert type(made) is type(made_before) is torch.utils.data.DataLoader
    assert not isinstance(made, prefeed.DataLoader)
    assert isinstance(explicit, torch.utils.data.DataLoader)


PROGRAM = """
{before}
import sys
import time
import urllib.error
import urllib.request
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor
used, unused = (DataLoader(ImageFolder(sys.argv[1], PILToTensor()), batch_size=4) for _ in range(2))
{between}
print([sum(len(labels) for _, labels in loader) for loader in (used, unused)])
"""
BEFORE = PROGRAM.format(before="import prefeed.auto", between="")
AFTER = warm.given_as_text(PROGRAM.format(before="", between="list(used)\nimport prefeed.auto"))


@pytest.mark.parametrize("program", [BEFORE, AFTER], ids=["before torch", "after one epoch of one of two loaders"])
def test_order_of_imports_does_not_matter(tmp_path: Path, program: str) -> None:
    root = make_image_folder(tmp_path / "data")
    result = subprocess.run(
        [sys.executable, "-c", program, str(root)],
        env={**os.environ, "PREFEED_ROOTS": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, f"{[NUM_IMAGES] * 2}\n"), result.stderr
    assert prefeed.statistics().reads == 2 * NUM_IMAGES


# ---------------------------------------------------------------- who else can read


def test_others_can_read_neither_what_is_cached_nor_whatever_the_user_could(paths: list[str], sandbox: Sandbox) -> None:
    """Directories that only the user may enter, and one port, of this machine alone, which shows numbers."""
    epoch(loader_of(Files(paths, contents)))
    store, runtime = Path(server().store), resolve().runtime_dir
    for directory in (store, runtime):
        assert directory.stat().st_mode & 0o077 == 0
    (pid,) = servers_of(sandbox)
    own = inodes_of(pid)
    assert own
    (address,) = [address for inode, address in internet_sockets().items() if inode in own]
    host, port = address.split(":")
    assert host == "0100007F"  # 127.0.0.1
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{int(port, 16)}/{paths[0]}")
    with socket.create_server(("127.0.0.1", 0)):
        assert inodes_of(os.getpid()) & internet_sockets().keys()  # one that is there is found


def test_without_metrics_there_is_no_port(paths: list[str], sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_METRICS", "0")
    epoch(loader_of(Files(paths, contents)))
    (pid,) = servers_of(sandbox)
    assert not inodes_of(pid) & internet_sockets().keys()


def inodes_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def internet_sockets() -> dict[str, str]:
    """Return the local addresses, in hex, of all sockets of TCP and UDP in this network namespace, by inode."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6", "udp", "udp6")
        if Path(f"/proc/self/net/{name}").exists()
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[9]: line[1] for line in lines}
