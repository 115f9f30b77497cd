"""A dataset whose samples are read in place, until the loader joins."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from torch.utils.data import DataLoader, StackDataset, Subset
from torch.utils.data._utils import worker as torch_worker

from prefeed.client import in_place as client_in_place
from prefeed.config import resolve
from prefeed.core.in_place import MOST_MEASURED, SHORT_SECONDS, Storage
from prefeed.loaders.access import Opening
from prefeed.tally import opens, program
from prefeed.tally.estimate import deaf, groups
from prefeed.torch import attachment as module
from prefeed.torch import place as module_place
from prefeed.torch.attachment import Attachment, _may_begin_in_place
from prefeed.torch.in_place import InPlace
from prefeed.torch.place import FEW_FILES, NO_FILES, NOT_READY, QUICK, SHORT, Place


class Files:
    """Reads a file per sample."""

    def __init__(self, root: Path, length: int) -> None:
        self.root = str(root)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < self.length:
            raise IndexError(index)
        with open(f"{self.root}/{index}", "rb") as file:
            return file.read()


class InBatches(Files):
    def __getitems__(self, indices: list[int]) -> list[bytes]:
        return [self[index] for index in indices]


class Joined:
    """Stands for what is served once the loader has joined."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.num_batches = 0

    def sample(self, index: int) -> Any:
        self.indices.append(index)
        return nullcontext()

    def batch_made(self) -> None:
        self.num_batches += 1

    def __getitems__(self, indices: list[int]) -> list[str]:
        return [f"served {index}" for index in indices]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for index in range(40):
        (tmp_path / f"{index}").write_bytes(b"%d" % index)
    return tmp_path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_in_place, "QUICK_NS", 1 << 62)  # whatever the machine does meanwhile


def opening(**known: Any) -> Opening:
    return Opening(open_on=lambda node: pytest.fail("nothing is opened"), **known)


def stand_in(inner: Any, **known: Any) -> InPlace:
    made = InPlace(inner, opening(**known), resolve({"roots": [inner_root(inner)]}), num_workers=2)
    made.state.epoch_begins(in_place=True)
    return made


def inner_root(inner: Any) -> str:
    while not isinstance(inner, Files):
        inner = inner.datasets[0] if isinstance(inner, StackDataset) else inner.dataset
    return inner.root


@pytest.mark.parametrize("cls", [Files, InBatches])
def test_samples_are_the_datasets_own(root: Path, cls: type[Files]) -> None:
    made = stand_in(cls(root, 40))
    assert made.__getitems__([3, 1, 39]) == [b"3", b"1", b"39"]
    assert made[7] == b"7"
    assert len(made) == 40
    with pytest.raises(IndexError):
        made.__getitems__([40])


def test_subsets_stacks_and_indices_that_are_read_once(root: Path) -> None:
    files = Files(root, 40)
    assert stand_in(Subset(files, [5, 6, 7])).__getitems__([2, 0]) == [b"7", b"5"]  # type: ignore[arg-type]
    assert stand_in(StackDataset(files, files)).__getitems__([1, 2]) == [(b"1", b"1"), (b"2", b"2")]
    assert stand_in(files).__getitems__(map(int, "123")) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("cls", [Files, InBatches])
def test_sixteen_reads_are_measured(root: Path, cls: type[Files]) -> None:
    made = stand_in(cls(root, 40))
    made.__getitems__(list(range(40)))
    assert made.state.num_measured() == MOST_MEASURED
    assert made.state.storage() is Storage.QUICK


def test_files_that_lie_elsewhere_are_measured_if_the_dataset_names_its_files(root: Path) -> None:
    for names_files, num_measured in ((False, 0), (True, MOST_MEASURED)):
        made = InPlace(
            Files(root, 40), opening(names_files=names_files), resolve({"roots": ["/nowhere"]}), num_workers=2
        )
        made.state.epoch_begins(in_place=True)
        made.__getitems__(list(range(40)))
        assert made.state.num_measured() == num_measured


@pytest.mark.parametrize(("roots_are", "first_served"), [("data", 32), ("elsewhere", 21)])
def test_joining_in_the_middle_of_a_batch(root: Path, roots_are: str, first_served: int) -> None:
    """Each sample looks whether the loader has joined; once 16 reads were quick, each 16th."""
    files, joined = Files(root, 40), Joined()

    class Joins(Files):
        def __getitem__(self, index: int) -> bytes:
            if index == 20:
                made._served, made._note_number = joined, made.state.put_note(b"note")  # type: ignore[assignment]
                made.state.join(made._note_number)
            return super().__getitem__(index)

    roots = [str(root) if roots_are == "data" else "/nowhere"]
    made = InPlace(Joins(root, 40), opening(), resolve({"roots": roots}), num_workers=2)
    made.state.epoch_begins(in_place=True)
    assert made.__getitems__(list(range(40))) == [files[index] for index in range(40)]
    assert joined.indices == list(range(first_served, 40))
    assert joined.num_batches == 1
    assert made.__getitems__([1, 2]) == ["served 1", "served 2"]


def test_a_note_that_cannot_be_opened_is_no_error(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A catalogue that a worker cannot open: it goes on in place."""
    made = stand_in(Files(root, 40))
    made.state.join(made.state.put_note(b"no pickle"))
    for _ in range(2):
        assert made.__getitems__([3, 4]) == [b"3", b"4"]
    assert len([one for one in caplog.records if "cannot open what the loader has opened" in one.getMessage()]) == 1
    made.state.join(made.state.put_note(pickle.dumps(("neither", "nor"))))
    assert made[5] == b"5"


def test_what_a_worker_opened_before_is_closed(root: Path) -> None:
    """The loader has joined another server: the worker tells of its writes once."""
    made, before = stand_in(Files(root, 40)), Mock()
    made._served = before
    made.state.join(made.state.put_note(b"no pickle"))
    assert made[3] == b"3"
    before.reader.close.assert_called_once()
    before.writes.end.assert_called_once()


def test_a_copy_has_the_same_memory_and_readers_of_its_own(root: Path) -> None:
    made = stand_in(Files(root, 40))
    made._note_number = 5
    copy = pickle.loads(pickle.dumps(made))
    assert copy._served is None
    assert copy._note_number == 0
    assert copy.state.epoch == made.state.epoch
    assert copy.__getitems__([1]) == [b"1"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_is_shared_if_there_are_workers(root: Path, num_workers: int) -> None:
    loader: Any = type("Loader", (), {"dataset": Files(root, 40), "num_workers": num_workers})
    one = Place(loader, opening(), resolve({"roots": [str(root)]}))
    assert one.state._memory.is_shared() is bool(num_workers)  # type: ignore[attr-defined]
    one.epoch_begins(in_place=True)
    assert one.dataset.__getitems__([3]) == [b"3"]
    assert one.state.num_measured() == 1


class Heard(Files):
    """Says what it opens, as Python does, whether it is measured or not."""

    def __getitem__(self, index: int) -> bytes:
        opens._heard("open", (f"{self.root}/{index}", "r", os.O_RDONLY))
        return super().__getitem__(index)


@pytest.fixture
def counted(root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the directory of a program whose opens below the root are counted."""
    watch = opens._Watch()
    watch.places = (f"{root}/",)
    monkeypatch.setattr(opens, "_watch", watch)
    monkeypatch.setattr(opens, "_near", watch.near.get)
    directory = str(tmp_path_factory.mktemp("program"))
    program.begin(directory)
    yield directory
    program.end()


@pytest.fixture
def _all_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opens, "measured", lambda _: None)


def test_what_is_read_to_measure_it_is_an_open_of_the_samples(root: Path, counted: str) -> None:
    """Of these reads Python tells that prefeed opens a file; the user's code has asked for it."""
    made = stand_in(Files(root, 40))
    made.__getitems__(list(range(40)))
    assert program.sums(counted)[program.key_of(program.PAST, "open", "s")][0] == MOST_MEASURED
    elsewhere = InPlace(Files(root, 40), opening(names_files=True), resolve({"roots": ["/nowhere"]}), num_workers=0)
    elsewhere.state.epoch_begins(in_place=True)
    opens._watch.places, opens._watch.near = ("/nowhere/",), {}
    elsewhere.__getitems__(list(range(40)))
    assert program.sums(counted)[program.key_of(program.PAST, "open", "s")][0] == MOST_MEASURED


@pytest.fixture
def _is_quick_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once 16 reads were quick, no read is measured any more in an epoch."""
    monkeypatch.setattr(client_in_place, "_PAUSE_NS", 1 << 62)


KINDS: dict[str, Callable[[Files], Any]] = {
    "samples": lambda files: files,
    "batches": lambda files: type("Made", (InBatches, type(files)), {})(Path(files.root), 40),
    "subset": lambda files: Subset(files, range(40)),  # type: ignore[arg-type]
    "stack": lambda files: StackDataset(files),
}


@pytest.mark.usefixtures("_is_quick_for_long")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_while_storage_is_quick(root: Path, kind: str) -> None:
    """Batches of any type and size, single samples, and indices that fail are made and counted as before."""
    inner = KINDS[kind](Files(root, 40))
    made, torchs = stand_in(inner), [inner[index] for index in range(40)]
    for _ in range(3):
        assert made.__getitems__(list(range(40))) == torchs
    num_before = made.state.in_place()[0]
    assert made.__getitems__([3, 1]) == [torchs[3], torchs[1]]
    assert made.__getitems__((3, 1)) == [torchs[3], torchs[1]]
    assert made.__getitems__([3, 1] * 200) == [torchs[3], torchs[1]] * 200
    assert made[7] == torchs[7]
    assert made.state.in_place()[0] == num_before + 405
    with pytest.raises(IndexError):
        made.__getitems__([40])
    made.state.epoch_begins(in_place=True)
    made.__getitems__([0] * 40)
    assert made.state.num_measured() == MOST_MEASURED  # of the next epoch


@pytest.mark.usefixtures("_is_quick_for_long")
def test_the_loader_joins_between_batches_of_quick_storage(root: Path) -> None:
    made = stand_in(Files(root, 40))
    for _ in range(3):
        made.__getitems__(list(range(40)))
    made._served, made._note_number = Joined(), made.state.put_note(b"note")  # type: ignore[assignment]
    made.state.join(made._note_number)
    assert made.__getitems__([1, 2]) == ["served 1", "served 2"]


@pytest.mark.usefixtures("_is_quick_for_long")
@pytest.mark.parametrize("kind", ["samples", "batches", "subset"])
def test_a_batch_of_quick_storage_takes_few_calls(root: Path, counted: str, kind: str) -> None:
    """Each is some microseconds, where the samples leave nothing of it in the processor's caches."""
    made = stand_in(KINDS[kind](Files(root, 40)))
    for _ in range(3):
        made.__getitems__(list(range(40)))
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        made.__getitems__(list(range(40)))
    finally:
        sys.setprofile(None)
    assert sum(name not in ("__getitem__", "<listcomp>", "<lambda>") for name in calls) <= MOST_CALLS, calls


MOST_CALLS = 14
"""Python functions of ours, per batch; before quick storage had a way of its own, 35 to 44."""


@pytest.mark.usefixtures("_all_are_heard", "_is_quick_for_long")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_alone", [False, True])
def test_opens_are_counted_while_storage_is_quick(root: Path, counted: str, kind: str, is_alone: bool) -> None:
    """In batches, and of samples that torch asks for one by one."""
    made = stand_in(KINDS[kind](Heard(root, 40)))
    for _ in range(10):
        if is_alone:
            for index in range(40):
                made[index]
        else:
            made.__getitems__(list(range(40)))
    made.count_rest()
    told = program.sums(counted)
    assert told[program.key_of(program.PAST, "open", "s")][0] == 400
    assert program.key_of(program.PAST, "open", "") not in told
    assert 0 < told[program.ESTIMATED][0] <= 383


@pytest.mark.usefixtures("_all_are_heard", "_is_quick_for_long")
def test_a_worker_counts_each_batch(root: Path, counted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks it for the rest, and the loader may end it at any time."""
    monkeypatch.setattr(torch_worker, "_worker_info", Mock(id=1))
    made = stand_in(Heard(root, 40))
    for number in range(1, 5):
        made.__getitems__(list(range(40)))
        assert program.sums(counted)[program.key_of(program.PAST, "open", "s")][0] == 40 * number


@pytest.mark.usefixtures("_all_are_heard", "_is_quick_for_long")
def test_the_rest_of_an_epoch_is_counted_with_the_epoch(root: Path, counted: str) -> None:
    one = Place(
        type("Loader", (), {"dataset": Heard(root, 40), "num_workers": 0}), opening(), resolve({"roots": [str(root)]})
    )
    for number in range(1, 4):
        one.epoch_begins(in_place=True)
        for _ in range(4):
            one.dataset.__getitems__(list(range(40)))
        one.epoch_ended()
        assert program.sums(counted)[program.key_of(program.PAST, "open", "s")][0] == 160 * number


@pytest.mark.usefixtures("_all_are_heard", "_is_quick_for_long")
def test_opens_of_samples_within_samples_are_counted(root: Path, counted: str) -> None:
    """A dataset over another loader: both count what is their own."""
    inner = stand_in(Heard(root, 40))

    class Over(Heard):
        def __getitem__(self, index: int) -> bytes:
            (data,) = inner.__getitems__([index])
            assert data == super().__getitem__(index)
            return data

    made = stand_in(Over(root, 40))
    for _ in range(10):
        made.__getitems__(list(range(40)))
    made.count_rest()
    inner.count_rest()
    assert not groups
    assert not deaf
    assert program.sums(counted)[program.key_of(program.PAST, "open", "s")][0] == 800


@pytest.mark.usefixtures("_all_are_heard")
def test_opens_are_counted_of_some_batches_and_reckoned_for_the_others(root: Path, counted: str) -> None:
    """What the program's last line says is what was opened."""
    made = stand_in(Heard(root, 40))
    for _ in range(10):
        made.__getitems__(list(range(40)))
    made.count_rest()
    told = program.sums(counted)
    assert told[program.key_of(program.PAST, "open", "s")][0] == 400
    assert 0 < told[program.ESTIMATED][0] <= 360
    made.inner[3]  # outside of samples each one counts
    after = program.sums(counted)
    assert after[program.key_of(program.PAST, "open", "")][0] == 1
    assert after[program.ESTIMATED] == told[program.ESTIMATED]


@pytest.mark.usefixtures("_all_are_heard")
def test_opens_of_batches_that_fail_are_reckoned_as_well(root: Path, counted: str) -> None:
    made = stand_in(Heard(root, 40))
    made.__getitems__(list(range(40)))
    for _ in range(10):
        with pytest.raises(IndexError):
            made.__getitems__([*range(19), 40])
    made.count_rest()
    assert program.sums(counted)[program.key_of(program.PAST, "open", "s")][0] == 240


def test_what_samples_open_is_noted_by_their_number_below_all_subsets(root: Path) -> None:
    files = Files(root, 40)
    made = stand_in(Subset(files, [5, 6, 7]), indices=np.array([5, 6, 7]))  # type: ignore[arg-type]
    made.__getitems__([2, -3])
    assert made.seen is not None
    assert made.seen.files() == {7: (f"{root}/7",), 5: (f"{root}/5",)}
    whole = stand_in(files)
    whole.state.stay()
    whole.__getitems__([np.int64(3), 39])
    assert whole.seen is not None
    assert whole.seen.files() == {3: (f"{root}/3",), 39: (f"{root}/39",)}
    assert whole.state.num_measured() == 0
    assert stand_in(files, names_files=True).seen is None


def test_what_samples_opened_is_a_guess_of_what_they_open(root: Path) -> None:
    one, access = place(root), Mock()
    access.learned.num_known, access.learned.num_samples = 0, 40
    assert one.guess(access) is None
    one.dataset.__getitems__([3, 1])
    guess = one.guess(access)
    assert guess is not None
    assert guess.take(range(5)) == ([(1, 1), (3, 1)], [f"{root}/1", f"{root}/3"])
    access.learned.num_known = 40
    assert one.guess(access) is None
    assert one.guess(Mock(learned=None)) is None


def slow(one: Place, *, waited_ns: int = 5_000_000) -> None:
    for _ in range(4):
        one.state.measured(0, is_slow=True, waited_ns=waited_ns)


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens, and nothing was read before."""
    monkeypatch.setattr(module_place, "is_listening", lambda _: False)
    monkeypatch.setattr(module_place, "_stayed", set())


@pytest.mark.usefixtures("_alone")
def test_a_short_epoch_of_unknown_files_stays_in_place_once(root: Path) -> None:
    one = place(root)
    one.epoch_begins(in_place=True)
    slow(one)
    assert one.should_join()
    assert one.stays()
    assert not one.should_join()
    assert one.why_in_place() == SHORT
    one.epoch_begins(in_place=True)
    slow(one)
    assert one.should_join()
    assert not one.stays()


@pytest.mark.usefixtures("_alone")
def test_another_loader_for_each_epoch_stays_in_place_once(root: Path) -> None:
    """Unless its epoch is over before a server has started, as one that is made in each sample may be."""
    for waited_ns, stays in ((50_000_000, True), (50_000_000, False), (5_000_000, True)):
        one = place(root)
        one.epoch_begins(in_place=True)
        slow(one, waited_ns=waited_ns)
        assert one.stays() is stays


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("shown", [{"is_next_pass": True}, {"waited_seconds": 2 * SHORT_SECONDS + 1}], ids=str)
def test_an_epoch_that_turns_out_to_be_long_joins(root: Path, shown: dict[str, Any]) -> None:
    """Its sampler has no end, or what was read first says little: files are large, or many per sample."""
    one = place(root)
    one.epoch_begins(in_place=True)
    slow(one)
    assert one.stays()
    assert not one.should_join(waited_seconds=SHORT_SECONDS)
    assert one.should_join(**shown)
    assert not one.stays()
    assert one.should_join()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("settings", [{}, {"autostart": False}, {"read_in_place": False}])
def test_what_does_not_stay_in_place(root: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """A long epoch, files that are known or can be guessed; no server may be started, storage is not measured, or a server listens."""
    one = place(root, **settings)
    one.epoch_begins(in_place=True)
    slow(one, waited_ns=5_000_000 if settings else 10_000_000_000)
    assert not one.stays()
    if settings:
        return
    known = Place(one_loader(root), opening(names_files=True), one.config)
    listed = place(root)
    listed.dataset.inner.paths = [f"{root}/{index}" for index in range(40)]
    for other in (known, listed):
        other.epoch_begins(in_place=True)
        slow(other)
        assert not other.stays()
    short = place(root)
    short.epoch_begins(in_place=True)
    slow(short)
    with monkeypatch.context() as patch:
        patch.setattr(module_place, "is_listening", lambda _: True)
        assert not short.stays()
    assert short.stays()


def one_loader(root: Path) -> Any:
    return type("Loader", (), {"dataset": Files(root, 40), "num_workers": 0})


def place(root: Path, *, read_in_place: bool = True, **settings: Any) -> Place:
    config = resolve({"roots": [str(root)], **settings}, limits={"read_in_place": read_in_place})
    return Place(one_loader(root), opening(), config)


def test_why_an_epoch_was_read_in_place(root: Path) -> None:
    one = place(root)
    one.epoch_begins(in_place=True)
    assert one.why_in_place() == NO_FILES.format(roots=root)
    one.state.measured(0, is_slow=True)
    assert one.why_in_place() == FEW_FILES
    one.dataset.__getitems__(list(range(40)))
    assert one.why_in_place() == QUICK
    for _ in range(MOST_MEASURED):
        one.state.measured(0, is_slow=True)
    assert one.why_in_place() == NOT_READY
    starting = place(root, read_in_place=False)
    starting.epoch_begins(in_place=True)
    assert starting.why_in_place() == NOT_READY


def test_a_loader_joins_when_storage_has_slowed_down(root: Path) -> None:
    one = place(root)
    one.epoch_begins(in_place=True)
    one.dataset.__getitems__(list(range(40)))
    assert not one.should_join()
    for _ in range(MOST_MEASURED):
        one.state.measured(0, is_slow=True)
    assert one.should_join()
    one.state.join(one.state.put_note(b"note"))
    assert not one.should_join()
    one.epoch_ended()
    assert one.begins_in_place(is_connected=True)  # it was quick at first: measured again in the next epoch


def test_a_loader_whose_storage_was_slow_from_the_first_read_stays_for_an_epoch(root: Path) -> None:
    one = place(root)
    one.epoch_begins(in_place=True)
    for _ in range(MOST_MEASURED):
        one.state.measured(0, is_slow=True)
    assert one.should_join()
    one.state.join(one.state.put_note(b"note"))
    one.epoch_ended()
    assert not one.begins_in_place(is_connected=True)
    assert one.begins_in_place(is_connected=False)  # the server is gone
    one.epoch_begins(in_place=False)
    one.epoch_ended()
    assert one.begins_in_place(is_connected=True)


def test_a_dataset_without_a_length_is_served_from_the_beginning(root: Path) -> None:
    """It may declare its files all the same, and a sampler of the user's knows how many there are."""

    class Unsized:
        def __getitem__(self, index: int) -> bytes:
            return (root / f"{index}").read_bytes()

    config = resolve({"roots": [str(root)]}, limits={"read_in_place": True})
    for dataset, begins_in_place in ((Files(root, 40), True), (Unsized(), False)):
        loader: Any = DataLoader(dataset, sampler=[3, 1])  # type: ignore[arg-type]
        assert _may_begin_in_place(loader, opening(names_files=True), config) is begins_in_place


def attachment_of(root: Path) -> tuple[Attachment, Any]:
    config = resolve({"roots": [str(root)], "autostart": False}, limits={"read_in_place": True})
    return Attachment(config, explicit=False), DataLoader(Files(root, 40))  # type: ignore[arg-type]


def test_a_loader_without_a_possible_plan_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "PlannedSampler", refuse)
    attachment, loader = attachment_of(root)
    for _ in range(2):
        assert attachment.attach(loader) is None
        assert attachment.stand_in is None
        attachment.epoch_begins(loader)


def test_a_forked_child_has_memory_of_its_own(root: Path) -> None:
    attachment, loader = attachment_of(root)
    first = attachment.attach(loader)
    assert isinstance(first, InPlace)
    assert attachment.attach(loader) is first
    place = attachment._place
    assert place is not None
    place.pid -= 1
    second = attachment.attach(loader)
    assert isinstance(second, InPlace)
    assert second is not first


def test_a_child_that_was_forked_after_joining_leaves_the_parents_memory_alone(root: Path) -> None:
    attachment, loader = attachment_of(root)
    attachment.attach(loader)
    place = attachment._place
    assert place is not None
    attachment.served, attachment._consumer = Mock(), Mock(is_connected=True)  # as they are when it has joined
    place.state.join(place.state.put_note(b"note"))
    place.pid -= 1
    assert attachment.attach(loader) is attachment.served is attachment.stand_in
    attachment.epoch_begins(loader)
    assert place.is_joined
    assert place.state.epoch == 0


def test_how_an_epoch_was_read(root: Path) -> None:
    one = place(root)
    one.epoch_begins(in_place=True)
    assert one.reads(question_seconds=None).origin == str(root)  # no file is known: the roots
    one.dataset.__getitems__(list(range(40)))
    one.dataset[3]
    quick = one.reads(question_seconds=0.5)
    assert (quick.origin, quick.in_place, quick.question_seconds) == (str(root), True, 0.5)
    assert quick.why == "storage answers faster than the cache"
    assert quick.open_seconds is not None
    assert (quick.samples, quick.files) == (41, 41)
    assert 41 <= quick.bytes <= 2 * 41
    for _ in range(MOST_MEASURED):
        one.state.measured(0, is_slow=True)
    one.state.join(one.state.put_note(b"note"))
    slow = one.reads(question_seconds=None)
    assert (slow.in_place, slow.why, slow.samples) == (False, "storage is slow", 41)


def test_the_origin_of_files_that_are_named(root: Path) -> None:
    (root / "a").mkdir()
    named = Place(
        one_loader(root), opening(names_files=True, some_paths=(f"{root}/a/1", f"{root}/b/2")), place(root).config
    )
    named.epoch_begins(in_place=True)
    assert named.reads(question_seconds=None).origin == str(root)


@pytest.mark.parametrize("cls", [Files, InBatches])
def test_samples_of_batches_are_counted(root: Path, cls: type[Files]) -> None:
    made = stand_in(cls(root, 40))
    for _ in range(3):
        made.__getitems__(list(range(40)))
    assert made.state.in_place()[:2] == (120, 120)


def test_an_origin_that_is_read_in_place_is_said_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="prefeed"):
        for name in ("train", "val"):
            one = place(root)
            one.dataset.__getitems__([1, 2])
            one.say(name, QUICK)
            one.say(name, NOT_READY)
    assert [record.getMessage() for record in caplog.records] == [
        f"prefeed: train: {QUICK}",
        f"prefeed: train: {NOT_READY}",
    ]


def test_a_loader_that_leaves_its_last_epoch_says_how_that_was_read(
    root: Path, counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``break``, or an error: the epoch does not end, and no other one begins."""
    attachment, loader = attachment_of(root)
    monkeypatch.setattr(Place, "begin_joining", Mock())  # starts a thread
    made = attachment.attach(loader)
    assert isinstance(made, InPlace)
    attachment.epoch_begins(loader)
    made.__getitems__(list(range(40)))
    for _ in range(2):
        attachment.count_left()
    why = program.key_of(program.WHY, attachment._name, QUICK)
    assert program.sums(counted)[why][0] == 1
