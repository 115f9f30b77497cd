"""Whatever draws from a global generator while a sample is computed is seen, and nothing is drawn by watching. Marks."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from prefeed.stage_cache.randomness import Watch, left_alone, not_random
from prefeed.stage_cache.stage import Stage


class Data:
    def __init__(self, step: Any) -> None:
        self.step = step

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.step(index)


class Augment:
    def __call__(self, value: Any) -> Any:
        return self.jitter(value)

    def jitter(self, value: Any) -> Any:
        return value + np.random.normal(0, 1)


class Slotted:
    __slots__ = ()

    def __call__(self, value: Any) -> Any:
        return random.random()


class Unmarkable:
    __slots__ = ()


def helper(value: Any) -> Any:
    return value + random.random() * 0


MARKABLE: dict[str, Callable[[], Any]] = {
    "instance": Augment,
    "module": lambda: v2.RandomCrop(3),
    "partial": lambda: functools.partial(helper),
    "builtin": lambda: random.random,
    "bound method": lambda: Augment().jitter,
    "slots": Slotted,
    "torch": lambda: torch.rand,
    "lambda": lambda: lambda value: random.random(),
    "class": lambda: type("Mine", (Augment,), {"__module__": __name__}),
}


def is_marked(step: Any, version: str | None = None) -> bool:
    return Stage(Data([step]), version).is_marked


@pytest.mark.parametrize("version", [None, "1"])
@pytest.mark.parametrize("name", MARKABLE)
def test_anything_can_be_marked(name: str, version: str | None) -> None:
    value = MARKABLE[name]()
    assert not is_marked(value, version)
    assert is_marked(not_random(value), version)


def test_what_is_wrapped_is_called() -> None:
    assert not_random(max)(1, 2) == 2
    assert repr(not_random(max)) == "not_random(<built-in function max>)"


def test_marking_a_bound_method_leaves_its_class_alone() -> None:
    not_random(Augment().jitter)
    assert not is_marked(Augment())


def test_what_can_neither_be_marked_nor_called_says_so() -> None:
    with pytest.raises(TypeError, match="Unmarkable has no room for a mark"):
        not_random(Unmarkable())


def test_an_object_that_passes_on_what_it_is_asked_is_not_marked_by_what_it_holds() -> None:
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["inner"], name)

    assert not is_marked(Around(Augment()))


def test_what_is_drawn_alone_is_undone() -> None:
    before = states()
    with left_alone():
        random.gauss(0, 1), np.random.standard_normal(), torch.rand(1)
    assert states() == before


# ---------------------------------------------------------------- watching


def states() -> tuple[Any, ...]:
    legacy = np.random.get_state(legacy=True)
    return random.getstate(), legacy[1].tobytes(), legacy[2:], torch.get_rng_state().numpy().tobytes()


DRAWS: dict[str, tuple[Callable[[], Any], str]] = {
    "random": (random.random, "random"),
    "624 words": (lambda: [random.getrandbits(32) for _ in range(624)], "random"),
    "gauss": (lambda: random.gauss(0, 1), "random"),
    "shuffle": (lambda: random.shuffle([1, 2, 3]), "random"),
    "seed": (lambda: random.seed(12), "random"),
    "numpy": (lambda: np.random.rand(), "numpy.random"),
    "numpy 624 words": (lambda: np.random.bytes(4 * 624), "numpy.random"),
    "numpy normal": (lambda: np.random.standard_normal(), "numpy.random"),
    "numpy seed": (lambda: np.random.seed(12), "numpy.random"),
    "torch": (lambda: torch.rand(1), "torch"),
    "torch normal": (lambda: torch.randn(1), "torch"),
    "torch seed": (lambda: torch.manual_seed(12), "torch"),
    "torch many": (lambda: torch.empty(624).random_(), "torch"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_seen_each_time(name: str) -> None:
    draw, generator = DRAWS[name]
    for seed in (1, 2):
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        for _ in range(1 if "seed" in name else 3):
            with Watch() as watch:
                draw()
            assert watch.drew == generator


def test_the_second_number_of_a_pair_is_seen_though_it_was_drawn_with_the_first() -> None:
    for draw, generator in [(lambda: random.gauss(0, 1), "random"), (np.random.standard_normal, "numpy.random")]:
        random.seed(1), np.random.seed(1)
        draw()
        with Watch() as watch:
            draw()
        assert watch.drew == generator


def test_nothing_is_seen_and_nothing_moves_where_nothing_is_drawn() -> None:
    before = states()
    for _ in range(100):
        with Watch() as watch:
            random.Random(3).random()
            np.random.default_rng(3).random()
            torch.rand(3, generator=torch.Generator().manual_seed(1))
        assert watch.drew is None
    assert states() == before


def test_a_watch_can_be_used_again_and_inside_another() -> None:
    outer, inner = Watch(), Watch()
    with outer, inner:
        torch.rand(1)
    assert (outer.drew, inner.drew) == ("torch", "torch")
    with inner:
        pass
    assert inner.drew is None


def test_what_is_drawn_before_an_error_is_seen() -> None:
    watch = Watch()
    with pytest.raises(ZeroDivisionError), watch:
        1 / (0 * random.random())
    assert watch.drew == "random"


def test_another_generator_in_the_place_of_numpys_is_watched() -> None:
    ours = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        with Watch() as watch:
            pass
        assert watch.drew is None
        with Watch() as watch:
            np.random.rand()
        assert watch.drew == "numpy.random"
    finally:
        np.random.set_bit_generator(ours)
