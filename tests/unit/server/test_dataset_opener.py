"""Catalogues are opened once, for whoever asks, and again on the next server."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from desk import Client, Desk, desk
from nodes import content
from prefeed.core.actions import Outcome
from prefeed.sources.catalogue import Catalogue, name_of_learned, name_of_list
from prefeed.sources.catalogue_writer import CatalogueWriter, directory_of
from prefeed.sources.learned import LearnedMap
from prefeed.sources.manifest import Manifest
from prefeed.wire import messages as m
from prefeed.wire.frames import encode
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

CONSUMER = 77
LEARNED = name_of_learned("0123456789abcdef")

_numbers = itertools.count()


@pytest.fixture
def files(sandbox: Sandbox) -> list[str]:
    directory = sandbox.root / "origin"
    directory.mkdir()
    paths = [directory / f"{index}.bin" for index in (7, 3, 5)]
    for index, path in enumerate(paths):
        path.write_bytes(content(index))
    return [str(path) for path in paths]


def paths_file(server: Desk, paths: Sequence[str], name: str = "paths-test") -> Path:
    file = server.config.runtime_dir / name
    file.write_bytes(b"\0".join(os.fsencode(path) for path in paths))
    return file


def question(
    file: Path, paths: Sequence[str] = (), *, name: str = "", num_samples: int = 0, token: int = 5
) -> m.OpenDataset:
    return m.OpenDataset(
        token, "", catalogue=name or name_of_list(paths), paths_file=str(file), num_samples=num_samples
    )


def open_files(client: Client, paths: Sequence[str], *, name: str = "", num_samples: int = 0) -> m.DatasetOpened:
    file = paths_file(client.desk, paths)
    opened = client.ask(question(file, paths, name=name, num_samples=num_samples), m.DatasetOpened)
    assert not file.exists()
    return opened


# ------------------------------------------------------------ opened


def test_a_catalogue_that_another_process_writes_to(server: Desk, files: list[str]) -> None:
    """The server adds nothing to it, lets nobody find a file without asking, and goes on."""
    client = server.connect()
    opened = open_files(client, files[:2])
    with closing(CatalogueWriter.open(opened.manifest_dir)) as other:
        other.append(["/of/another"])
        refused = client.ask(m.DemandFile(9, 0, opened.dataset, os.fsencode(files[2])), m.Refused)
        assert "was changed by another process than its server" in refused.text
        answer = client.ask(m.Demand(11, 0, opened.dataset, 1), m.Answered)
        assert (answer.outcome, answer.key) == (Outcome.STORED, b"")  # its reader finds no key, and opens the file
        assert not other.is_published(1)
        assert [other.path(index) for index in range(3)] == [*files[:2], "/of/another"]
        again = open_files(client, files)
        assert client.ask(m.Demand(12, 0, again.dataset, 2), m.Answered).outcome == Outcome.STORED


def test_a_list_of_files_is_a_dataset_in_its_order(server: Desk, files: list[str]) -> None:
    client = server.connect()
    opened = open_files(client, files)
    assert opened.token == 5
    catalogue = Catalogue.open(opened.manifest_dir)
    assert [catalogue.path(index) for index in range(3)] == files
    answer = client.ask(m.Demand(11, 0, opened.dataset, 1), m.Answered)
    assert (answer.outcome, answer.key) == (Outcome.STORED, catalogue.key(1))
    assert server.tier.get(answer.key) == content(1)


def test_names_travel_as_the_system_has_them(server: Desk, sandbox: Sandbox) -> None:
    odd = os.fsdecode(os.fsencode(sandbox.root) + b"/caf\xe9\n.bin")
    Path(odd).write_bytes(b"odd")
    client = server.connect()
    opened = open_files(client, [odd])
    assert Catalogue.open(opened.manifest_dir).path(0) == odd
    answer = client.ask(m.DemandFile(12, 0, opened.dataset, os.fsencode(odd)), m.Answered)
    assert (answer.outcome, answer.object_id) == (Outcome.STORED, 0)


def test_a_learned_catalogue_takes_in_files_and_what_samples_open(server: Desk, files: list[str]) -> None:
    client = server.connect()
    opened = open_files(client, (), name=LEARNED, num_samples=4)
    answers = [client.ask(m.DemandFile(9, 0, opened.dataset, os.fsencode(path)), m.Answered) for path in files[:2]]
    assert [(answer.object_id, answer.outcome) for answer in answers] == [(0, Outcome.STORED), (1, Outcome.STORED)]
    client.say(m.SamplesOpened(opened.dataset, np.array([2, 2, 1, 0], dtype=np.int64).tobytes()))
    client.ask(m.GetStatus(), m.StatusReport)
    learned = LearnedMap.open(opened.manifest_dir, 4)
    assert learned.objects_of(2) == (1, 0)


def supposed(
    server: Desk, client: Client, dataset: int, samples: list[list[int]], paths: list[str], *, place: Path | None = None
) -> Path:
    """Say what samples probably open; return the file that it is said in."""
    file = (place or server.config.runtime_dir) / f"samples-{next(_numbers)}"
    counts = np.array(samples, dtype=np.int64).reshape(-1, 2)
    names = b"\0".join(map(os.fsencode, paths))
    file.write_bytes(np.array([len(counts)], dtype=np.int64).tobytes() + counts.tobytes() + names)
    client.say(m.Suppose(dataset, str(file)))
    return file


def test_what_samples_probably_open_is_known_until_they_are_made(server: Desk, files: list[str]) -> None:
    client = server.connect()
    opened = open_files(client, (), name=LEARNED, num_samples=4)
    client.say(m.SamplesOpened(opened.dataset, np.array([3, 0], dtype=np.int64).tobytes()))
    file = supposed(server, client, opened.dataset, [[0, 1], [2, 2], [3, 1]], [files[1], files[0], files[1], files[2]])
    client.ask(m.GetStatus(), m.StatusReport)
    catalogue, learned = Catalogue.open(opened.manifest_dir), LearnedMap.open(opened.manifest_dir, 4)
    assert [catalogue.path(i) for i in range(len(catalogue))] == [files[1], files[0], files[2]]
    assert [learned.objects_of(sample) for sample in range(4)] == [(0,), (), (1, 0), ()]
    assert [learned.is_known(sample) for sample in range(4)] == [False, False, False, True]
    assert not file.exists()


def test_guesses_that_are_damaged_are_counted_and_not_answered(server: Desk, files: list[str], tmp_path: Path) -> None:
    client = server.connect()
    opened = open_files(client, (), name=LEARNED, num_samples=4)
    supposed(server, client, opened.dataset, [[0, 2]], files[:1])
    supposed(server, client, opened.dataset, [[0, -1], [1, 2]], files[:1])
    supposed(server, client, opened.dataset, [[4, 1]], files[:1])
    supposed(server, client, opened.dataset, [[0, 1]], ["relative"])
    supposed(server, client, 99, [[0, 1]], files[:1])
    kept = supposed(server, client, opened.dataset, [[0, 1]], files[:1], place=tmp_path)
    assert client.ask(m.GetStatistics(), m.StatisticsReport).statistics.errors == {"prefeed-error": 6}
    assert kept.exists()


def test_reports_that_are_damaged_are_counted_and_not_answered(server: Desk) -> None:
    client = server.connect()
    opened = open_files(client, (), name=LEARNED, num_samples=4)
    for records in (b"seven b", np.array([2, -2], dtype=np.int64).tobytes()):
        client.say(m.SamplesOpened(opened.dataset, records))
    client.say(m.SamplesOpened(99, b""))
    assert client.ask(m.GetStatistics(), m.StatisticsReport).statistics.errors == {"prefeed-error": 3}


@pytest.mark.parametrize("path", [b"relative", b"", b"/nul\0byte"])
def test_a_question_about_what_is_no_file_name_is_refused(server: Desk, path: bytes) -> None:
    client = server.connect()
    opened = open_files(client, (), name=LEARNED, num_samples=4)
    assert client.ask(m.DemandFile(8, 0, opened.dataset, path), m.Refused).token == 8
    assert client.ask(m.DemandFile(8, 0, 99, b"/a"), m.Refused).token == 8


# ------------------------------------------------------------ once


def test_clients_that_ask_at_once_share_one_catalogue(
    server: Desk, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    original = server.handlers._openings._open_catalogue

    def count(directory: Path, *more: Any) -> object:
        opened.append(directory)
        return original(directory, *more)

    monkeypatch.setattr(server.handlers._openings, "_open_catalogue", count)
    clients = [server.connect() for _ in range(4)]
    left = [paths_file(server, files, f"paths-{index}") for index in range(4)]
    for client, file in zip(clients, left, strict=True):
        client.say(question(file, files))
    answers = [client.hear(m.DatasetOpened) for client in clients]
    assert {answer.dataset for answer in answers} == {1}
    assert len(opened) == 1
    assert [file.exists() for file in left] == [False] * 4


def test_a_catalogue_in_use_is_not_opened_again(server: Desk, files: list[str]) -> None:
    clients = [server.connect(), server.connect()]
    first = open_files(clients[0], files)
    clients[0].ask(m.Demand(11, 0, first.dataset, 1), m.Answered)
    assert Catalogue.open(first.manifest_dir).key(1) != bytes(16)
    assert open_files(clients[1], files).dataset == first.dataset
    reopen = m.OpenDataset(6, "/", manifest_dir=first.manifest_dir)
    assert clients[1].ask(reopen, m.DatasetOpened).dataset == first.dataset
    assert Catalogue.open(first.manifest_dir).key(1) != bytes(16)  # opened for writing again, it would be withdrawn


# ------------------------------------------------------------ refused


@pytest.mark.parametrize(
    "name", ["other-0123456789", "files-../../../../etc", "files-xyz", "files-", "learned-0123456"]
)
def test_what_is_no_name_is_refused_and_its_file_removed(server: Desk, files: list[str], name: str) -> None:
    file = paths_file(server, files)
    refused = server.connect().ask(question(file, name=name, token=4), m.Refused)
    assert (refused.token, "is not the name of a catalogue" in refused.text) == (4, True)
    assert not file.exists()


def test_paths_that_are_not_absolute_are_refused_and_their_file_removed(server: Desk) -> None:
    file = paths_file(server, ["relative/a.bin"])
    refused = server.connect().ask(question(file, ["relative/a.bin"], token=4), m.Refused)
    assert (refused.token, "not an absolute path" in refused.text) == (4, True)
    assert not file.exists()


def test_a_list_is_taken_from_the_private_directory_only(server: Desk, sandbox: Sandbox) -> None:
    precious = sandbox.root / "precious"
    precious.write_bytes(b"/a")
    for path in (precious, server.config.runtime_dir / ".." / precious.name, server.config.runtime_dir / "server.lock"):
        refused = server.connect().ask(question(path, ["/a"], token=4), m.Refused)
        assert "must lie in" in refused.text
    assert precious.exists()


def test_a_list_that_is_not_there_is_refused(server: Desk) -> None:
    missing = server.config.runtime_dir / "paths-missing"
    assert server.connect().ask(question(missing, ["/a"], token=4), m.Refused).token == 4


# ------------------------------------------------------------ on the next server


def test_the_next_server_opens_catalogue_and_manifest_where_they_lie(sandbox: Sandbox, files: list[str]) -> None:
    with desk() as server:
        client = server.connect()
        catalogue = open_files(client, files)
        learned = open_files(client, (), name=LEARNED, num_samples=4)
        client.ask(m.DemandFile(9, 0, learned.dataset, os.fsencode(files[2])), m.Answered)
        client.say(m.SamplesOpened(learned.dataset, np.array([2, 1, 0], dtype=np.int64).tobytes()))
        client.say(m.OpenDataset(7, str(Path(files[0]).parent)))
        while isinstance(manifest := client.hear(m.Message), m.Listing):
            pass
        assert isinstance(manifest, m.DatasetOpened)
    with desk() as server:
        client = server.connect()
        for number, (known, samples) in enumerate(((learned, 4), (manifest, 0), (catalogue, 0)), 1):
            reopen = m.OpenDataset(8, "", manifest_dir=known.manifest_dir, num_samples=samples)
            opened = client.ask(reopen, m.DatasetOpened)
            assert (opened.dataset, opened.manifest_dir) == (number, known.manifest_dir)
        assert server.node.datasets[1].learned is not None
        assert server.node.datasets[1].learned.objects_of(2) == (0,)
        assert server.node.datasets[1].manifest.path(0) == files[2]
        assert client.ask(m.Demand(11, 0, 3, 1), m.Answered).outcome == Outcome.STORED


def test_a_catalogue_that_is_gone_is_not_made_from_nothing(server: Desk) -> None:
    directory = directory_of(server.config.home, LEARNED)
    refused = server.connect().ask(m.OpenDataset(8, "", manifest_dir=str(directory)), m.Refused)
    assert (refused.code, refused.token) == ("store-format", 8)
    assert not directory.exists()


def test_what_lies_outside_the_home_is_refused(server: Desk, sandbox: Sandbox) -> None:
    refused = server.connect().ask(m.OpenDataset(8, "", manifest_dir=str(sandbox.root)), m.Refused)
    assert "must lie below" in refused.text


def test_a_damaged_catalogue_is_made_again(sandbox: Sandbox, files: list[str]) -> None:
    with desk() as server:
        opened = open_files(server.connect(), files)
    directory = Path(opened.manifest_dir)
    uid = Catalogue.open(directory).uid
    (directory / "offsets").write_bytes(b"\xff" * 64)
    with desk() as server:
        client = server.connect()
        again = open_files(client, files)
        assert again.manifest_dir == opened.manifest_dir
        assert Catalogue.open(directory).uid != uid
        assert [Catalogue.open(directory).path(index) for index in range(3)] == files
        assert client.ask(m.Demand(11, 0, again.dataset, 2), m.Answered).outcome == Outcome.STORED


# ------------------------------------------------------------ clients with another root directory


@pytest.fixture
def jail(sandbox: Sandbox, files: list[str]) -> Path:
    """A root directory with files at the same paths: as many bytes, of one time, and others."""
    for path in files:
        there = Path(f"{sandbox.root}/jail{path}")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(bytes(byte ^ 1 for byte in Path(path).read_bytes()))
        for file in (there, Path(path)):
            os.utime(file, ns=(10**18, 10**18))
    return sandbox.root / "jail"


def test_a_list_of_files_is_another_dataset_in_another_view(server: Desk, files: list[str], jail: Path) -> None:
    ours, theirs = server.connect(), server.connect(root=jail)
    for _ in range(2):
        opened = [open_files(client, files) for client in (ours, theirs)]
        answers = [
            client.ask(m.Demand(11, 0, catalogue.dataset, 1), m.Answered)
            for client, catalogue in zip((ours, theirs), opened, strict=True)
        ]
        read = [server.tier.get(answer.key) for answer in answers]
        assert read == [Path(files[1]).read_bytes(), Path(f"{jail}{files[1]}").read_bytes()]
        assert read[0] != read[1]
    assert opened[0].manifest_dir != opened[1].manifest_dir


def test_a_directory_is_another_dataset_in_another_view(server: Desk, files: list[str], jail: Path) -> None:
    root = str(Path(files[0]).parent)
    read = []
    for client in (server.connect(), server.connect(root=jail), server.connect()):
        client.say(m.OpenDataset(3, root))
        while isinstance(opened := client.hear(m.Message), m.Listing):
            pass
        assert isinstance(opened, m.DatasetOpened)
        answer = client.ask(m.Demand(11, 0, opened.dataset, 0), m.Answered)
        read.append(server.tier.get(answer.key or Manifest.open(opened.manifest_dir).key(0)))
    name = Manifest.open(opened.manifest_dir).path(0)
    assert read[0] == read[2] == Path(root, name).read_bytes()
    assert read[1] == Path(f"{jail}{root}", name).read_bytes() != read[0]


def test_the_same_files_in_two_views_are_one_dataset_until_one_has_others(
    server: Desk, files: list[str], jail: Path
) -> None:
    for path in files:
        Path(f"{jail}{path}").unlink()
        os.link(path, f"{jail}{path}")
    root = str(Path(files[0]).parent)
    theirs, ours = server.connect(root=jail), server.connect()
    numbers = []
    for client in (theirs, ours):
        client.say(m.OpenDataset(3, root))
        while isinstance(opened := client.hear(m.Message), m.Listing):
            pass
        assert isinstance(opened, m.DatasetOpened)
        numbers.append(opened.dataset)
    assert numbers[0] == numbers[1]
    manifest = Manifest.open(opened.manifest_dir)
    shared, changed, last = (Path(root, manifest.path(index)) for index in range(3))
    for client in (theirs, ours):
        assert client.ask(m.Demand(11, 0, numbers[0], 0), m.Answered).outcome == Outcome.STORED
    assert server.tier.get(manifest.key(0)) == shared.read_bytes()
    assert server.node.statistics().origin_requests == 1
    Path(f"{jail}{changed}").unlink()
    Path(f"{jail}{changed}").write_bytes(b"of one view")
    answer = ours.ask(m.Demand(12, 0, numbers[0], 1), m.Answered)
    assert (answer.outcome, answer.code) == (Outcome.FAILED, "passed-through")
    theirs.sock.close()
    server.turn_until(lambda: server.node.datasets[numbers[0]].view is None)
    Path(f"{jail}{last}").unlink()
    assert ours.ask(m.Demand(13, 0, numbers[0], 2), m.Answered).outcome == Outcome.STORED
    assert server.tier.get(manifest.key(2)) == last.read_bytes()


def test_ids_of_one_view_mean_nothing_in_another(server: Desk, files: list[str], jail: Path) -> None:
    """A loader finds another server than it had, one that was started in another container."""
    opened = open_files(server.connect(), files)
    refused = server.connect(root=jail).ask(m.OpenDataset(8, "", manifest_dir=opened.manifest_dir), m.Refused)
    assert "another root directory" in refused.text


def test_who_shows_no_root_directory_is_refused(server: Desk) -> None:
    client = server.connect(greet=False)
    client.sock.sendall(encode(m.Hello(m.PROTOCOL, "0", 0)))
    assert "no root directory" in client.hear(m.Refused).text


def test_a_kernel_that_cannot_read_below_another_root_says_so(
    server: Desk, jail: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.sources.views.can_be_shown", lambda: False)
    client = server.connect(greet=False)
    client.root = jail
    assert "set another PREFEED_HOME" in client.ask(m.Hello(m.PROTOCOL, "0", 0), m.Refused).text
    server.connect()


def test_descriptors_that_were_not_asked_for_are_closed(server: Desk, jail: Path) -> None:
    """The leak check of the sandbox looks at it: a client that is cut off, and one that shows two."""
    cut = server.connect(greet=False)
    root = os.open(jail, os.O_PATH)
    socket.send_fds(cut.sock, [encode(m.Hello(m.PROTOCOL, "0", 0))[:5]], [root])
    server.turn()
    cut.sock.close()
    server.clients.remove(cut)
    more = server.connect(greet=False)
    socket.send_fds(more.sock, [encode(m.Hello(m.PROTOCOL, "0", 0))], [root, root, root])
    more.hear(m.Welcome)
    socket.send_fds(more.sock, [encode(m.GetStatus())], [root])
    more.hear(m.StatusReport)
    os.close(root)
