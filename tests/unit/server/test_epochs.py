"""What is remembered of epochs."""

from __future__ import annotations

from prefeed.server.status import MOST_LOADERS, OTHERS, Epochs
from prefeed.types import EPOCHS_KEPT, EpochWait


def epoch(loader: str = "Files", number: int = 1, *, rank: int | None = None, waited: float = 1.0) -> EpochWait:
    return EpochWait(loader=loader, rank=rank, epoch=number, batches=3, seconds=10.0, waited_seconds=waited)


def test_the_last_epochs_are_kept_in_order() -> None:
    epochs = Epochs()
    for number in range(EPOCHS_KEPT + 5):
        epochs.add(epoch(number=number), [])
    assert [one.epoch for one in epochs.last] == list(range(5, EPOCHS_KEPT + 5))


def test_sums_grow_by_loader_and_rank() -> None:
    epochs = Epochs()
    epochs.add(epoch(rank=0), [])
    before = epochs.totals()
    epochs.add(epoch(rank=1, waited=2.0), [])
    epochs.add(epoch(number=2, rank=0, waited=4.0), [])

    first, second = epochs.totals()
    assert (first.rank, first.epochs, first.seconds, first.waited_seconds, first.last.epoch) == (0, 2, 20.0, 5.0, 2)
    assert (second.rank, second.epochs, second.waited_seconds) == (1, 1, 2.0)
    assert (len(before), before[0].epochs) == (1, 1)  # what was handed out stands still


def test_more_loaders_than_that_are_summed_together() -> None:
    epochs = Epochs()
    for number in range(MOST_LOADERS + 10):
        epochs.add(epoch(f"Files{number}"), [])

    totals = epochs.totals()
    assert len(totals) == MOST_LOADERS + 1
    assert ((totals[-1].loader, totals[-1].rank), totals[-1].epochs) == (OTHERS, 10)


def test_a_consumer_is_known_by_the_epoch_of_its_loader_until_it_is_gone() -> None:
    epochs = Epochs()
    epochs.add(epoch("A"), [1])
    epochs.add(epoch("B"), [2])
    epochs.keep({2, 3})

    assert (epochs.last_of(1), epochs.last_of(3)) == (None, None)
    assert epochs.last_of(2) == epoch("B")
