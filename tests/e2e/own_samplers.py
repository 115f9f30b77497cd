"""Samplers of a program's own classes, as they occur in training scripts: what they draw from, keep, show and depend on.

``KINDS`` holds each as a function that returns what a loader is given and how far its first epoch is foreseen.
"""

from __future__ import annotations

import enum
import functools
import itertools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler, Sampler

NUM_SAMPLES = 200
BATCH_SIZE = 4

ALL = "all"
SOME = "some"
NONE = "none"


@dataclass
class Own:
    """One sampler.

    Attributes:
        sampler: It draws indices, or batches.
        foreseen: ALL of its first epoch, SOME of it, or NONE.
        step: What the loop does to it after each batch, given its number.
        probe: What the loop can see of it.
        is_batched: It draws batches.
        endless: Batches after which the loop leaves an epoch.
        close: Called at the end.
    """

    sampler: Any
    foreseen: str
    step: Callable[[int], Any] = lambda _: None
    probe: Callable[[], Any] = lambda: None
    is_batched: bool = False
    endless: int | None = None
    close: Callable[[], Any] = lambda: None


class Data(Dataset[int]):
    """Has a length."""

    def __init__(self) -> None:
        self.ratios = [index % 3 for index in range(NUM_SAMPLES)]

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class OwnOrder(Sampler[int]):
    """Shuffles by a seed of its own, as most do."""

    def __init__(self) -> None:
        self.dataset = Data()
        self.epoch = 0
        self.drawn = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        self.epoch += 1
        for index in torch.randperm(len(self.dataset), generator=generator).tolist():
            self.drawn += 1
            yield index


def order_by_seed() -> Own:
    sampler = OwnOrder()
    return Own(sampler, ALL, probe=lambda: (sampler.epoch, sampler.drawn))


class Drawing(Sampler[int]):
    """Draws from the global generators for each ``every``-th index."""

    def __init__(self, every: int, first: int = 0) -> None:
        self.every, self.first = every, first

    def __iter__(self) -> Iterator[int]:
        for number in range(NUM_SAMPLES):
            extra = 0
            if number % self.every == self.first:
                extra = random.randrange(50) + int(np.random.randint(50)) + int(torch.randint(50, ()))
            yield (number * 7 + extra) % NUM_SAMPLES


def draws_at_once() -> Own:
    return Own(Drawing(1), NONE)


def draws_every_10th() -> Own:
    return Own(Drawing(10, 9), NONE)


def draws_every_80th() -> Own:
    return Own(Drawing(80, 79), SOME)


class ShuffledFirst(Sampler[int]):
    """Draws from a global generator when it is first drawn from."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(NUM_SAMPLES))
        random.shuffle(order)
        yield from (order[index] for index in torch.randperm(NUM_SAMPLES).tolist())


def draws_first() -> Own:
    return Own(ShuffledFirst(), ALL)


class ShuffledInIter(Sampler[int]):
    """Draws when ``__iter__`` is called, which is before torch draws the base seed."""

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(NUM_SAMPLES).tolist() if self else torch.randperm(3).tolist())

    def __len__(self) -> int:
        return torch.randperm(NUM_SAMPLES).numel()  # which no loader asks for in mid-epoch


class EagerBatches(Sampler[list[int]]):
    """Batches, drawn by torch when ``__iter__`` is called."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(NUM_SAMPLES).reshape(-1, BATCH_SIZE).tolist())


def draws_in_iter() -> Own:
    return Own(EagerBatches(), ALL, is_batched=True)


class ShufflesAtTheEnd(Sampler[int]):
    """Shuffles its indices for the next epoch once they are drawn."""

    def __init__(self) -> None:
        self.order = list(range(NUM_SAMPLES))

    def __iter__(self) -> Iterator[int]:
        yield from self.order
        random.shuffle(self.order)


def draws_at_the_end() -> Own:
    sampler = ShufflesAtTheEnd()
    return Own(sampler, ALL, probe=lambda: list(sampler.order))


class SeedsGlobally(Sampler[int]):
    """Seeds the global generators with its epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        np.random.seed(self.epoch)
        torch.manual_seed(self.epoch)
        yield from np.random.permutation(NUM_SAMPLES).tolist()


def seeds_globally() -> Own:
    return Own(SeedsGlobally(), ALL)


class OwnGenerators(Sampler[int]):
    """Draws each index from generators of its own, whose states the loop looks at and saves."""

    def __init__(self) -> None:
        self.torch = torch.Generator().manual_seed(3)
        self.numpy = np.random.default_rng(4)
        self.legacy = np.random.RandomState(5)
        self.python = random.Random(6)

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM_SAMPLES):
            drawn = int(torch.randint(90, (), generator=self.torch)) + int(self.numpy.integers(90))
            yield (drawn + int(self.legacy.randint(90)) + self.python.randrange(90)) % NUM_SAMPLES

    def states(self) -> Any:
        return (
            self.torch.get_state().numpy().tobytes(),
            self.numpy.bit_generator.state,
            self.legacy.get_state()[1].tobytes(),
            self.python.getstate(),
        )


def own_generators() -> Own:
    sampler = OwnGenerators()
    return Own(sampler, ALL, probe=sampler.states)


SHARED = np.random.default_rng(8)


class GeneratorOfModule(Sampler[int]):
    """Draws from a generator of its module, which others draw from too."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM_SAMPLES):
            yield int(SHARED.integers(NUM_SAMPLES))


def generator_of_module() -> Own:
    SHARED.bit_generator.state = np.random.default_rng(8).bit_generator.state
    return Own(GeneratorOfModule(), NONE, step=lambda _: SHARED.integers(3), probe=lambda: SHARED.bit_generator.state)


class Prints(Sampler[int]):
    """Prints what it draws."""

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            print("drawn", index)
            yield index


def prints() -> Own:
    return Own(Prints(), NONE)


class PrintsByItsBase(OwnOrder):
    """Reaches ``print`` by a function, which is an attribute, called by a name that is a text."""

    def __init__(self) -> None:
        super().__init__()
        self.show = functools.partial(print, "by partial")

    def _tell(self, index: int) -> None:
        print("told", index)

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            getattr(self, "_tell")(index)  # noqa: B009
            self.show()
            yield index


def prints_by_attributes() -> Own:
    return Own(PrintsByItsBase(), NONE)


COUNTS = {"drawn": 0}
drawn_in_all: list[int] = []


class Counts(Sampler[int]):
    """Counts in its module, its class, and a list that it shares."""

    num_drawn = 0

    def __init__(self, how: str) -> None:
        self.how = how

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            if self.how == "class":
                type(self).num_drawn += 1
            yield index


class CountsInModule(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            COUNTS["drawn"] += 1
            yield index


class CountsInList(Sampler[int]):
    seen: list[int] = drawn_in_all

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            self.seen.append(index)
            yield index


def counts_in_class() -> Own:
    Counts.num_drawn = 0
    return Own(Counts("class"), NONE, probe=lambda: Counts.num_drawn)


def counts_in_module() -> Own:
    COUNTS["drawn"] = 0
    return Own(CountsInModule(), NONE, probe=lambda: COUNTS["drawn"])


def counts_in_list() -> Own:
    drawn_in_all.clear()
    return Own(CountsInList(), NONE, probe=lambda: list(drawn_in_all))


class CountsInClosure(Sampler[int]):
    """Calls a function that it was given."""

    def __init__(self, on_draw: Callable[[int], None]) -> None:
        self.on_draw = on_draw

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            self.on_draw(index)
            yield index


def counts_in_closure() -> Own:
    seen: list[int] = []
    return Own(CountsInClosure(seen.append), NONE, probe=lambda: list(seen))


def counts_in_function() -> Own:
    seen: list[int] = []
    return Own(CountsInClosure(lambda index: seen.append(index)), NONE, probe=lambda: list(seen))


class ReadsFiles(Sampler[int]):
    """Reads its order from a file that it keeps open."""

    def __init__(self, path: Path) -> None:
        self.file = path.open()

    def __iter__(self) -> Iterator[int]:
        self.file.seek(0)
        for line in self.file:
            yield int(line)
        self.file.close()
        self.file = open(self.file.name)  # noqa: SIM115 - for the next epoch


def reads_an_open_file(path: Path) -> Own:
    path.write_text("\n".join(map(str, range(NUM_SAMPLES))))
    sampler = ReadsFiles(path)
    return Own(sampler, NONE, probe=lambda: sampler.file.closed, close=lambda: sampler.file.close())


class Locked(Sampler[int]):
    """Draws under a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            with self.lock:
                yield index


def locked() -> Own:
    sampler = Locked()
    return Own(sampler, NONE, probe=sampler.lock.locked)


class Warns(Sampler[int]):
    """Warns for each index."""

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            warnings.warn(f"drawn {index}", stacklevel=1)
            yield index


def warns() -> Own:
    return Own(Warns(), NONE)


class ReadsDataset(Sampler[int]):
    """Groups samples by what the dataset says of them."""

    def __init__(self) -> None:
        self.dataset = Data()

    def __iter__(self) -> Iterator[int]:
        yield from sorted(range(len(self.dataset)), key=lambda index: self.dataset.ratios[index])


def reads_the_dataset() -> Own:
    return Own(ReadsDataset(), NONE)


class ChangesLength(Sampler[int]):
    """Has another length in each epoch."""

    def __init__(self) -> None:
        self.length = NUM_SAMPLES

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)
        self.length -= 30


def changes_its_length() -> Own:
    sampler = ChangesLength()
    return Own(sampler, ALL, probe=lambda: len(sampler))


class Raises(Sampler[int]):
    """Raises in the middle."""

    def __iter__(self) -> Iterator[int]:
        yield from range(150)
        raise ValueError("the sampler's own")


def raises() -> Own:
    return Own(Raises(), SOME)


class Position(Sampler[int]):
    """Has a position that the loop saves, and resumes from."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < NUM_SAMPLES:
            self.position += 1
            yield (self.position * 37) % NUM_SAMPLES
        self.position = 0


def has_a_position() -> Own:
    sampler = Position()
    return Own(sampler, ALL, probe=lambda: sampler.position)


class LossDriven(Sampler[int]):
    """Draws what the losses of the loop make more probable, from a generator of its own."""

    def __init__(self) -> None:
        self.weights = np.ones(NUM_SAMPLES)
        self.rng = np.random.default_rng(1)

    def update(self, step: int) -> None:
        self.weights[step::17] += 3.0

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM_SAMPLES):
            yield int(self.rng.choice(NUM_SAMPLES, p=self.weights / self.weights.sum()))


def driven_by_losses() -> Own:
    sampler = LossDriven()
    return Own(sampler, ALL, step=sampler.update, probe=lambda: sampler.rng.bit_generator.state)


class Curriculum(Sampler[int]):
    """Reads an attribute that the loop sets."""

    def __init__(self) -> None:
        self.level = 1

    def raise_level(self, step: int) -> None:
        self.level = 1 + step // 20

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            yield (index * self.level) % NUM_SAMPLES


def set_by_the_loop() -> Own:
    sampler = Curriculum()
    return Own(sampler, ALL, step=sampler.raise_level)


class Infinite(Sampler[int]):
    """As detectron2's: a stream of shuffles."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        yield from itertools.islice(self._all(), 0, None, 1)

    def _all(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(5)
        while True:
            for index in torch.randperm(NUM_SAMPLES, generator=generator).tolist():
                self.drawn += 1
                yield index


def infinite() -> Own:
    sampler = Infinite()
    return Own(sampler, ALL, probe=lambda: sampler.drawn, endless=130)


class InfiniteOfGenerator(Sampler[int]):
    """As mmengine's: a generator that was made with it."""

    def __init__(self) -> None:
        self.size = NUM_SAMPLES
        self.indices = self._indices()

    def _indices(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(5)
        while True:
            yield from torch.randperm(self.size, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        yield from self.indices


def infinite_of_a_generator() -> Own:
    return Own(InfiniteOfGenerator(), ALL, endless=60)


class RepeatAugmented(Sampler[int]):
    """As timm's: each sample several times, a part of them for each rank."""

    def __init__(self) -> None:
        self.dataset, self.num_replicas, self.rank, self.epoch, self.num_repeats = Data(), 2, 1, 0, 3

    def __iter__(self) -> Iterator[int]:
        g = torch.Generator()
        g.manual_seed(self.epoch)
        indices: Any = torch.randperm(len(self.dataset), generator=g)
        if isinstance(self.num_repeats, float) and not self.num_repeats.is_integer():
            raise NotImplementedError
        indices = torch.repeat_interleave(indices, repeats=int(self.num_repeats), dim=0).tolist()
        return iter(indices[self.rank : len(indices) : self.num_replicas][:NUM_SAMPLES])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def repeats_samples() -> Own:
    return Own(RepeatAugmented(), ALL)


def length_grouped_indices(lengths: list[int], batch_size: int, generator: Any = None) -> list[int]:
    """As transformers' function does it."""
    indices = torch.randperm(len(lengths), generator=generator)
    size = batch_size * 5
    megabatches = [indices[at : at + size].tolist() for at in range(0, len(lengths), size)]
    megabatches = [sorted(megabatch, key=lambda index: lengths[index], reverse=True) for megabatch in megabatches]
    return [index for megabatch in megabatches for index in megabatch]


class LengthGrouped(Sampler[int]):
    """As transformers': longest first in each mega-batch, shuffled by the global generator."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.lengths = [(index * 31) % 17 for index in range(NUM_SAMPLES)]
        self.batch_size, self.generator = BATCH_SIZE, generator

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(length_grouped_indices(self.lengths, self.batch_size, generator=self.generator))


def grouped_by_length() -> Own:
    return Own(LengthGrouped(), ALL)


class Nested(BatchSampler):
    """A batch sampler around a sampler of its own, which is a subclass of torch's."""


class Subclass(RandomSampler):
    """Every second first."""

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        yield from order[::2]
        yield from order[1::2]


def nested() -> Own:
    return Own(Nested(Subclass(range(NUM_SAMPLES)), BATCH_SIZE, drop_last=True), ALL, is_batched=True)


class OwnDistributed(DistributedSampler[int]):
    """Only its constructor is its own."""


def distributed() -> Own:
    sampler = OwnDistributed(Data(), num_replicas=2, rank=1)
    return Own(sampler, ALL)


class WithSlots:
    """No sampler of torch's, and without a dictionary."""

    __slots__ = ("order", "seen")

    def __init__(self) -> None:
        self.order = np.arange(NUM_SAMPLES)
        self.seen = 0

    def __iter__(self) -> Iterator[int]:
        for index in self.order:
            self.seen += 1
            yield int(index)


def with_slots() -> Own:
    sampler = WithSlots()
    return Own(sampler, ALL, probe=lambda: sampler.seen)


@dataclass
class Finalized(Sampler[int]):
    """Draws at random when an iteration is given up."""

    order: list[int] = field(default_factory=lambda: list(range(NUM_SAMPLES)))

    def __iter__(self) -> Iterator[int]:
        try:
            yield from self.order
        finally:
            random.shuffle(self.order)


def draws_when_it_is_left() -> Own:
    sampler = Finalized()
    return Own(sampler, ALL, probe=lambda: list(sampler.order))


class OwnClosing(OwnOrder):
    """Says so when it is collected."""

    collected: list[str] = drawn_in_all  # type: ignore[assignment]

    def __del__(self) -> None:
        self.collected.append("collected")


def with_a_finalizer() -> Own:
    return Own(OwnClosing(), NONE)


OF_MODULE = random.Random(5)
shuffle = OF_MODULE.shuffle


class ShufflesByMethod(Sampler[int]):
    """Shuffles by a method of a generator of its module."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(NUM_SAMPLES))
        shuffle(order)
        yield from order


def shuffles_by_a_method() -> Own:
    OF_MODULE.seed(5)
    return Own(ShufflesByMethod(), NONE, probe=OF_MODULE.getstate)


def helper(index: int) -> int:
    return index


def listing(index: int) -> int:
    return index


listing.seen = []  # type: ignore[attr-defined]


class CountsInFunctions(Sampler[int]):
    """Keeps what it draws as attributes of functions."""

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            helper.calls = getattr(helper, "calls", 0) + 1  # type: ignore[attr-defined]
            yield index


class ListsInFunctions(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            listing.seen.append(index)  # type: ignore[attr-defined]
            yield listing(index)


class CountsAnew(Sampler[int]):
    """Counts in an attribute that its class does not have before."""

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            CountsAnew.drawn = getattr(CountsAnew, "drawn", 0) + 1  # type: ignore[attr-defined]
            yield index


def counts_at_a_function() -> Own:
    vars(helper).pop("calls", None)
    return Own(CountsInFunctions(), NONE, probe=lambda: vars(helper).get("calls"))


def lists_at_a_function() -> Own:
    vars(listing)["seen"] = []
    return Own(ListsInFunctions(), NONE, probe=lambda: list(vars(listing)["seen"]))


def counts_anew_in_class() -> Own:
    if "drawn" in vars(CountsAnew):
        del CountsAnew.drawn  # type: ignore[attr-defined]
    return Own(CountsAnew(), NONE, probe=lambda: vars(CountsAnew).get("drawn"))


class Mode(enum.Enum):
    """A value with a method that prints."""

    TRAIN = 1

    def tell(self) -> int:
        print("mode", self.name)
        return 0


class HasMode(Sampler[int]):
    def __init__(self) -> None:
        self.mode = Mode.TRAIN

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            yield index + self.mode.tell()


def prints_by_a_value() -> Own:
    return Own(HasMode(), NONE)


class MakesAnother(Sampler[int]):
    """Draws from another of its class, whose constructor prints."""

    def __init__(self) -> None:
        print("made")

    def __iter__(self) -> Iterator[int]:
        yield from type(self)().drawn()

    def drawn(self) -> Iterator[int]:
        yield from range(NUM_SAMPLES)


def makes_another() -> Own:
    return Own(MakesAnother(), NONE)


def _shown(index: Any) -> Any:
    print("shown")
    return index


shown = np.vectorize(_shown, otypes=[np.int64])


class Vectorized(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from shown(np.arange(NUM_SAMPLES)).tolist()


def prints_by_vectorize() -> Own:
    return Own(Vectorized(), NONE)


class Lazy:
    """A dataset that is opened when it is first used, whatever is asked of it."""

    def __init__(self, touched: list[str]) -> None:
        self.touched = touched

    def __getattr__(self, name: str) -> Any:
        self.touched.append(name)
        raise AttributeError(name)


class Proxy:
    """Stands for an object that is made when its class is asked for."""

    made: list[str] = drawn_in_all  # type: ignore[assignment]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        self.made.append("made")
        return Data


class HoldsLazy(Sampler[int]):
    def __init__(self, *held: Any) -> None:
        self.held = held

    def __iter__(self) -> Iterator[int]:
        yield from range(NUM_SAMPLES)


def holds_what_is_lazy() -> Own:
    touched: list[str] = []
    return Own(HoldsLazy(Lazy(touched)), ALL, probe=lambda: list(touched))


def holds_a_proxy() -> Own:
    drawn_in_all.clear()
    return Own(HoldsLazy(Proxy()), ALL, probe=lambda: list(drawn_in_all))


class Divides(Sampler[int]):
    """Numpy warns for each index."""

    def __init__(self) -> None:
        self.counts = np.zeros(NUM_SAMPLES)

    def __iter__(self) -> Iterator[int]:
        for index in range(NUM_SAMPLES):
            yield index if 1 / self.counts[index] > 0 else 0


def divides_by_zero() -> Own:
    return Own(Divides(), ALL)


class Key:
    """Counts how often its hash is computed."""

    def __init__(self, hashed: list[int], number: int) -> None:
        self.hashed, self.number = hashed, number

    def __hash__(self) -> int:
        self.hashed.append(self.number)
        return self.number


class Keyed(Sampler[int]):
    def __init__(self) -> None:
        self.hashed: list[int] = []
        self.order = {Key(self.hashed, number): number for number in range(NUM_SAMPLES)}

    def __iter__(self) -> Iterator[int]:
        yield from self.order.values()


def counts_hashes() -> Own:
    sampler = Keyed()
    return Own(sampler, NONE, probe=lambda: len(sampler.hashed))


class OwnIterator(Sampler[list[int]]):
    """Its own iterator, which shuffles anew in each epoch, and starts again after the end."""

    def __init__(self) -> None:
        self.epoch = self.position = 0
        self.order: list[int] = []

    def __iter__(self) -> Iterator[list[int]]:
        self.epoch += 1
        self.order = list(range(NUM_SAMPLES - 40))
        random.Random(self.epoch).shuffle(self.order)
        return self

    def __next__(self) -> list[int]:
        self.position += BATCH_SIZE
        if self.position > len(self.order):
            self.position = 0
            raise StopIteration
        return self.order[self.position - BATCH_SIZE : self.position]


def is_its_own_iterator() -> Own:
    sampler = OwnIterator()
    return Own(sampler, ALL, probe=lambda: (sampler.epoch, sampler.position), is_batched=True)


KINDS: list[Callable[..., Own]] = [
    order_by_seed, draws_at_once, draws_every_10th, draws_every_80th, draws_first, draws_in_iter, draws_at_the_end,
    seeds_globally, own_generators, generator_of_module, prints, prints_by_attributes, counts_in_class, counts_in_module,
    counts_in_list, counts_in_closure, counts_in_function, reads_an_open_file, locked, warns, reads_the_dataset,
    changes_its_length, raises, has_a_position, driven_by_losses, set_by_the_loop, infinite, infinite_of_a_generator,
    repeats_samples, grouped_by_length, nested, distributed, with_slots, draws_when_it_is_left, with_a_finalizer,
    shuffles_by_a_method, counts_at_a_function, lists_at_a_function, counts_anew_in_class, prints_by_a_value, makes_another,
    prints_by_vectorize, holds_what_is_lazy, holds_a_proxy, divides_by_zero, is_its_own_iterator, counts_hashes,
]  # fmt: skip


class Waiting(Sampler[int]):
    """Draws each of ten samples again once the loop has released it, and waits for that."""

    def __init__(self) -> None:
        self.free = list(range(10))

    def release(self, index: int) -> None:
        self.free.append(index)

    def __iter__(self) -> Iterator[int]:
        while True:
            if self.free:
                yield self.free.pop(0)


trace: list[int] | None = None


class Traced(Sampler[int]):
    """Notes what it draws once it is told where."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            if trace is not None:
                trace.append(index)
            yield index


class OwnOf(Sampler[int]):
    """Draws from a generator that it was given."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(NUM_SAMPLES, generator=self.generator).tolist()
