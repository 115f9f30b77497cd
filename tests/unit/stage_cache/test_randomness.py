"""What draws is found by looking, whatever draws while a sample is made is seen, and nothing is drawn by finding out."""

from __future__ import annotations

import functools
import os
import random
import secrets
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from random import Random, SystemRandom, choice, randint
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from numpy.random import rand
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from prefeed.stage_cache import randomness
from prefeed.stage_cache.randomness import Watch, find_random, look_for_chance, not_random

# ---------------------------------------------------------------- torchvision's transforms

NO_TRANSFORMS = {"InterpolationMode", "AutoAugmentPolicy", "Transform"}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "CenterCrop": (8,),
    "Compose": ([nn.Identity()],),
    "ConvertBoundingBoxFormat": ("XYWH",),
    "ConvertImageDtype": (torch.float32,),
    "FiveCrop": (4,),
    "GaussianBlur": (3,),
    "JPEG": ((10, 90),),
    "Lambda": (lambda image: image,),
    "LinearTransformation": (torch.eye(3 * 16 * 16), torch.zeros(3 * 16 * 16)),
    "Normalize": ([0.5] * 3, [0.5] * 3),
    "Pad": (2,),
    "RandomAdjustSharpness": (0.5,),
    "RandomAffine": (30,),
    "RandomApply": ([nn.Identity()],),
    "RandomChoice": ([nn.Identity(), nn.Identity()],),
    "RandomCrop": (8,),
    "RandomOrder": ([nn.Identity(), nn.Identity()],),
    "RandomPosterize": (4,),
    "RandomResize": (8, 20),
    "RandomResizedCrop": (8,),
    "RandomRotation": (30,),
    "RandomShortestSize": ([8, 10],),
    "RandomSolarize": (100,),
    "Resize": (8,),
    "ScaleJitter": ((8, 8),),
    "SetClampingMode": ("soft",),
    "TenCrop": (4,),
    "ToDtype": (torch.float32,),
    "UniformTemporalSubsample": (2,),
}
OPTIONS: dict[str, dict[str, Any]] = {"CutMix": {"num_classes": 3}, "MixUp": {"num_classes": 3}}


def transforms_of(module: Any) -> list[Any]:
    """Return one of each of a module's transforms: all that there are in the installed torchvision."""
    classes = [cls for name, cls in vars(module).items() if isinstance(cls, type) and not name.startswith("_")]
    names = sorted(cls.__name__ for cls in classes if cls.__name__ not in NO_TRANSFORMS)
    return [pytest.param(getattr(module, name), id=f"{module.__name__.rpartition('.')[2]}.{name}") for name in names]


def made(cls: Any) -> Any:
    arguments = ARGUMENTS.get(cls.__name__, ())
    if cls.__module__.startswith("torchvision.transforms.v2") and cls.__name__ == "ToDtype":
        return cls(*arguments, scale=True)
    return cls(*arguments, **OPTIONS.get(cls.__name__, {}))


def samples() -> list[Any]:
    pixels = torch.arange(3 * 16 * 16).remainder(256).to(torch.uint8).view(3, 16, 16)
    boxes = tv_tensors.BoundingBoxes([[2, 2, 9, 9]], format="XYXY", canvas_size=(16, 16))
    points = tv_tensors.KeyPoints([[2, 2], [9, 9]], canvas_size=(16, 16)) if hasattr(tv_tensors, "KeyPoints") else boxes
    return [
        Image.fromarray(pixels.permute(1, 2, 0).numpy()),
        pixels,
        pixels.float() / 255,
        pixels.numpy().transpose(1, 2, 0).copy(),
        (tv_tensors.Image(pixels), {"boxes": boxes, "labels": torch.tensor([1])}),
        (tv_tensors.Image(pixels), {"points": points, "labels": torch.tensor([1, 2])}),
        (pixels.float().repeat(4, 1, 1, 1) / 255, torch.tensor([0, 1, 2, 0])),
    ]


def draws(transform: Any) -> bool:
    """Return whether the transform draws, on any of the samples that it takes."""
    taken = 0
    for sample in samples():
        for _ in range(3):
            with Watch() as watch:
                try:
                    transform(*sample) if isinstance(sample, tuple) else transform(sample)
                except Exception:  # noqa: BLE001 - whatever a transform makes of what is not for it
                    pass
                else:
                    taken += 1
            if watch.drew:
                return True
    assert taken, "no sample was for this transform"
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [*transforms_of(v1), *transforms_of(v2)])
def test_a_transform_of_torchvision_is_found_random_when_it_draws(cls: Any) -> None:
    transform = made(cls)

    assert (find_random(transform) is not None) == draws(transform)


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_the_place_of_a_random_transform_is_told(module: Any) -> None:
    steps = module.Compose([module.Resize(8), module.Compose([module.RandomCrop(4)]), module.CenterCrop(2)])

    assert find_random(steps) == "Compose.transforms[1].transforms[0] (RandomCrop)"
    assert find_random(module.Compose([module.Resize(8), module.CenterCrop(2)])) is None


class MyCrop(v1.RandomCrop):
    """A user's own."""


def test_a_class_derived_from_a_random_transform_draws() -> None:
    assert find_random(v1.Compose([MyCrop(3)])) == "Compose.transforms[0] (MyCrop)"


# ---------------------------------------------------------------- code of the user's own

THRESHOLD = 0.5


def helper(value: Any) -> Any:
    return value if random.random() < THRESHOLD else 0


def imports_inside() -> Any:
    import random as r

    return r.random()


def imports_from_inside() -> Any:
    from torch import randint as draw

    return draw(3, (1,))


class Augment:
    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, value: Any) -> Any:
        return self.jitter(value)

    def jitter(self, value: Any) -> Any:
        return value + np.random.normal(0, self.amount)


class Noisy:
    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.empty_like(tensor).normal_()


def in_a_closure() -> Callable[[Any], Any]:
    def inner(value: Any) -> Any:
        return helper(value)

    return lambda value: inner(value)


make_generator = np.random.default_rng


def renames() -> Any:
    make = np.random.default_rng
    return make()


def chooses(value: Any) -> Any:
    return (random.Random if value else list)()


def holds(make: Any) -> Any:
    return lambda value: make()


def imports_a_class() -> Any:
    from random import SystemRandom

    return SystemRandom().random()


DRAWING: dict[str, tuple[Any, str]] = {
    "system": (lambda value: random.SystemRandom().random(), "random.SystemRandom"),
    "system imported": (lambda value: SystemRandom().random(), "random.SystemRandom"),
    "system imported inside": (imports_a_class, "random.SystemRandom"),
    "none": (lambda value: np.random.default_rng(None).random(), "np.random.default_rng()"),
    "none by name": (lambda value: np.random.default_rng(seed=None).random(), "np.random.default_rng()"),
    "none for a class": (lambda value: Random(None).random(), "Random()"),
    "none for a legacy one": (lambda value: np.random.RandomState(None).rand(), "np.random.RandomState()"),
    "renamed": (renames, "np.random.default_rng"),
    "renamed outside": (lambda value: make_generator().random(), "make_generator()"),
    "given to another": (lambda value: helper(np.random.default_rng), "np.random.default_rng"),
    "chosen": (chooses, "random.Random()"),
    "held": (functools.partial(max, key=np.random.default_rng), "numpy.random.default_rng"),
    "held in a closure": (holds(np.random.default_rng), "numpy.random.default_rng"),
    "held by a class": (type("Holder", (), {"make": random.Random, "__module__": __name__}), "random.Random"),
    "module": (lambda value: random.random(), "random.random"),
    "imported": (lambda value: randint(0, 3), "randint"),
    "imported method": (lambda value: choice([1, 2]), "choice"),
    "numpy": (lambda value: np.random.rand(3), "numpy.random.rand"),
    "numpy imported": (lambda value: rand(3), "rand"),
    "torch": (lambda value: torch.randn(3), "torch.randn"),
    "torch module": (lambda value: torch.random.manual_seed(3), "torch.random.manual_seed"),
    "dropout": (lambda value: functional.dropout(value), "torch.nn.functional.dropout"),
    "tensor method": (lambda value: value.uniform_(0, 1), ".uniform_"),
    "bernoulli": (lambda value: value.bernoulli(), ".bernoulli"),
    "secrets": (lambda value: secrets.token_bytes(3), "secrets.token_bytes"),
    "uuid": (lambda value: uuid.uuid4(), "uuid.uuid4"),
    "urandom": (lambda value: os.urandom(3), "os.urandom"),
    "transform inside": (lambda value: v1.RandomCrop(3)(value), "torchvision.transforms.RandomCrop"),
    "unseeded": (lambda value: np.random.default_rng().random(), "np.random.default_rng()"),
    "unseeded python": (lambda value: random.Random().random(), "random.Random()"),
    "helper": (lambda value: helper(value), "random.random"),
    "closure": (in_a_closure(), "random.random"),
    "partial": (functools.partial(helper), "random.random"),
    "import inside": (imports_inside, "random.random"),
    "from-import inside": (imports_from_inside, "torch.randint"),
    "comprehension": (lambda value: [random.random() for _ in value], "random.random"),
    "instance": (Augment(0.1), "numpy.random.normal"),
    "bound method": (Augment(0.1).jitter, "numpy.random.normal"),
    "in place": (Noisy(), ".normal_"),
    "class": (Augment, "numpy.random.normal"),
    "function of torch": (torch.rand, "torch.rand"),
    "function of numpy": (np.random.rand, "rand"),
    "function of python": (random.random, "random"),
}


@pytest.mark.parametrize("name", DRAWING)
def test_code_that_draws_is_found(name: str) -> None:
    stage, what = DRAWING[name]

    found = find_random(stage)

    assert found is not None
    assert what in found


class Holds:
    def __init__(self, generator: Any) -> None:
        self.generator = generator


GENERATORS = {
    "random": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "numpy legacy": lambda: np.random.RandomState(3),
    "torch": lambda: torch.Generator().manual_seed(3),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_among_attributes_are_found(name: str) -> None:
    found = find_random([Holds({"a": GENERATORS[name]()})])

    assert found is not None
    assert found.startswith("list[0].generator['a'] (")


@dataclass
class Scale:
    by: float

    def __call__(self, value: Any) -> Any:
        return value * self.by


def seeded_by_its_argument(index: int) -> float:
    return random.Random(index).random() + float(np.random.default_rng(index).random())


def seeded_in_many_ways(index: int, *more: int) -> Any:
    from numpy.random import default_rng as make

    first = make(seed=index if index else [index, len(more)])
    second = np.random.Generator(np.random.PCG64(np.random.SeedSequence([index, 0 or max(index, 2)])))
    return first, second, Random(*more), make_generator(list(more)), np.random.RandomState(seed=index)


MODULE = types.ModuleType("seeded")
exec("from numpy.random import default_rng\ndef f(x):\n    return default_rng(x)", MODULE.__dict__)

STILL: dict[str, Any] = {
    "transform": v2.Compose([v2.Resize(8), v2.ToImage(), v2.Normalize([0.5], [0.5])]),
    "dataclass": Scale(2),
    "lambda": lambda value: value + 1,
    "partial": functools.partial(np.multiply, 2),
    "function": functional.relu,
    "numpy": lambda value: np.linalg.norm(value),
    "seeded": seeded_by_its_argument,
    "seeded in many ways": seeded_in_many_ways,
    "seeded in a module": MODULE.f,
    "dataset": Subset(TensorDataset(torch.zeros(4, 2)), [0, 2]),
    "model": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.5)).eval(),
    "attention": nn.MultiheadAttention(4, 2),
    "names": lambda value: value.random_split,
    "none": None,
}


@pytest.mark.parametrize("name", STILL)
def test_what_does_not_draw_is_not_found(name: str) -> None:
    assert find_random(STILL[name]) is None


def test_dropout_draws_while_training() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))

    assert find_random(model) == "Sequential._modules['1'] (Dropout)"
    assert find_random(model.eval()) is None
    assert find_random(nn.LSTM(2, 2, 2, dropout=0.5)) == "LSTM (LSTM with dropout)"
    assert find_random(nn.Dropout(0.0)) is None


def test_what_holds_itself_is_looked_at_once() -> None:
    loop: list[Any] = [1, v1.Resize(3)]
    loop.append(loop)

    assert find_random(loop) is None
    loop.append(v1.RandomCrop(3))
    assert find_random(loop) == "list[3] (RandomCrop)"


def test_what_cannot_be_taken_apart_is_passed_over() -> None:
    with open(os.devnull) as opened:
        assert find_random(Holds([opened, v1.RandomCrop(3)])) == "Holds.generator[1] (RandomCrop)"


# ---------------------------------------------------------------- marks


@not_random
def marked(value: Any) -> Any:
    return value + random.random() * 0


class Slotted:
    __slots__ = ()

    def __call__(self, value: Any) -> Any:
        return random.random()


class Unmarkable:
    __slots__ = ()


def test_marked_functions_are_trusted() -> None:
    assert find_random(marked) is None
    assert find_random(v1.Lambda(marked)) is None
    assert find_random(v1.Compose([v1.Lambda(marked), v1.RandomCrop(3)])) == "Compose.transforms[1] (RandomCrop)"


def vouched(value: Any) -> bool:
    return look_for_chance(value).is_vouched


def test_marks_are_found_wherever_they_are() -> None:
    assert vouched(v1.Compose([v1.Lambda(marked)]))
    assert not vouched(v1.Compose([v1.RandomCrop(3)]))


MARKABLE: dict[str, Callable[[], Any]] = {
    "instance": lambda: Augment(0.1),
    "module": lambda: v2.RandomCrop(3),
    "partial": lambda: functools.partial(helper),
    "builtin": lambda: random.random,
    "bound method": lambda: Augment(0.1).jitter,
    "slots": Slotted,
    "torch": lambda: torch.rand,
    "lambda": lambda: lambda value: random.random(),
}


@pytest.mark.parametrize("name", MARKABLE)
def test_anything_can_be_marked(name: str) -> None:
    value = MARKABLE[name]()
    assert find_random(value) is not None

    trusted = not_random(value)

    assert find_random(trusted) is None
    assert find_random([trusted]) is None
    assert vouched([trusted])
    assert not hasattr(random.random, "__dict__")


def test_what_is_wrapped_is_called() -> None:
    assert not_random(max)(1, 2) == 2
    assert repr(not_random(max)) == "not_random(<built-in function max>)"


def test_marking_a_bound_method_leaves_its_class_alone() -> None:
    not_random(Augment(0.1).jitter)

    assert find_random(Augment(0.1)) is not None


def test_a_class_can_be_marked() -> None:
    @not_random
    class Mine(Augment):
        pass

    assert find_random(Mine(0.1)) is None
    assert find_random(Augment(0.1)) is not None


def test_what_can_neither_be_marked_nor_called_says_so() -> None:
    with pytest.raises(TypeError, match="Unmarkable has no room for a mark"):
        not_random(Unmarkable())


def test_an_object_that_passes_on_what_it_is_asked_is_not_marked_by_what_it_holds() -> None:
    class Around:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["inner"], name)

    around = Around(not_random(Holds(1)))
    around.other = v1.RandomCrop(3)

    assert str(find_random(around)).endswith("Around.other (RandomCrop)")


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


def test_the_memory_of_a_generator_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = randomness.python_state(), randomness.numpy_state()
    monkeypatch.delattr(randomness, "_view")
    assert (randomness.python_state(), randomness.numpy_state()) == before
    random.random()
    np.random.rand()
    assert randomness.python_state() != before[0]
    assert randomness.numpy_state() != before[1]


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


def test_a_module_of_the_users_own_is_looked_at_as_a_whole() -> None:
    module = types.ModuleType("made_here")
    exec("import random\ndef f():\n    return random.random()", module.__dict__)

    assert find_random(module.f) == "f -> random.random (random.random)"
