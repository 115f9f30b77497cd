"""Which stages draw random numbers: found by looking at them, and by watching them.

Looking finds torchvision's random transforms, dropout, generators among a stage's attributes, and code of the user's
own that names something that draws. It may take one for random that is not: that is what ``not_random`` is for.

Watching reads the global generators without changing anything. Their own ``getstate`` take 9 µs (random) and 33 µs (numpy),
on 2 cores in November 2026; their memory is read in 1 µs. Between samples it is in no cache of the processor: little of it is read.
"""

from __future__ import annotations

import _random
import ctypes
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

import numpy as np

from prefeed.stage_cache.identity.anatomy import anatomy_of
from prefeed.stage_cache.identity.bytecode import (
    External,
    Reference,
    attributes_named,
    function_references,
    references,
    source_code,
)
from prefeed.stage_cache.identity.installed import PatchedIn, is_installed, is_installed_module
from prefeed.stage_cache.identity.parts import MARK, Anatomy, UntoldError

_HEAD_BYTES: Final = object.__basicsize__
"""Of an object in memory: its reference count and type."""

_WORDS_BYTES: Final = 624 * 4
"""Of a Mersenne twister: its words. A draw moves the position; every 624th one changes all words instead, so a few stand for all."""

_FEW_BYTES: Final = 4 * 4

_TORCHS_BYTES: Final = 24 + 624 * 8 + 40
"""torch's state: seed and position, the words in 8 bytes each, what normal draws keep."""

_TORCHS_HEAD_BYTES: Final = 24 + 4 * 8
_TORCHS_TAIL_BYTES: Final = 40

State = tuple[Any, ...]


def python_state() -> State:
    """Return what changes when anything is drawn from ``random``."""
    generator: Any = vars(random)["_inst"]
    if sys.implementation.name != "cpython":
        return (random.getstate(),)
    # ``gauss`` draws two numbers at once and keeps the second.
    size = min(_random.Random.__basicsize__, _HEAD_BYTES + 4 + _FEW_BYTES)  # position, then words
    return (_python.of(generator, generator, lambda: (_body(generator, size),)), generator.gauss_next)


def numpy_state() -> State:
    """Return what changes when anything is drawn from ``numpy.random``; nothing until it is imported."""
    module: Any = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return ()
    generator = module._rand
    source = generator._bit_generator
    if sys.implementation.name != "cpython" or type(source).__name__ != "MT19937":
        return (repr(generator.get_state(legacy=False)),)
    return (_numpy.of(generator, source, lambda: _numpys_memory(generator, source)),)


def _numpys_memory(generator: Any, source: Any) -> tuple[memoryview, ...]:
    # The object itself holds the second number of a pair of normal ones.
    own = _body(generator, type(generator).__basicsize__)
    words = source.ctypes.state_address  # then the position
    return own, _view(words, _FEW_BYTES), _view(words + _WORDS_BYTES, 4)


def torch_state() -> State:
    """Return what changes when anything is drawn from torch's CPU generator; nothing until torch is imported."""
    torch: Any = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)  # absent while torch is being imported
    if generator is None:
        return ()
    state = generator.get_state()
    start, size = state.data_ptr(), state.nbytes
    if size != _TORCHS_BYTES:  # another layout
        return (ctypes.string_at(start, size),)
    return (
        ctypes.string_at(start, _TORCHS_HEAD_BYTES),
        ctypes.string_at(start + size - _TORCHS_TAIL_BYTES, _TORCHS_TAIL_BYTES),
    )


def _body(value: Any, size_bytes: int) -> memoryview:
    return _view(id(value) + _HEAD_BYTES, size_bytes - _HEAD_BYTES)


def _view(address: int, size_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * size_bytes).from_address(address))


class _Memory:
    """Where one generator keeps its state: found once, since each look at an address is an event to the hooks of ``sys.addaudithook``.

    **Threads.** Any: what is kept is replaced as a whole.
    """

    def __init__(self) -> None:
        self._kept: tuple[Any, Any, tuple[memoryview, ...]] = (None, None, ())

    def of(self, generator: Any, source: Any, find: Callable[[], tuple[memoryview, ...]]) -> bytes:
        """Return the bytes of a generator's state.

        Args:
            generator, source: Whose memory it is; both are kept, and with them their memory, until others are asked for.
            find: Returns where the bytes are.
        """
        known, known_source, views = self._kept
        if known is not generator or known_source is not source:
            views = find()
            self._kept = (generator, source, views)
        return b"".join(views)


_python: Final = _Memory()
_numpy: Final = _Memory()


GENERATORS: Final[tuple[tuple[str, Callable[[], State]], ...]] = (
    ("random", python_state),
    ("numpy.random", numpy_state),
    ("torch", torch_state),
)


class Watch:
    """Tells which global generator moved inside its ``with`` block.

    The generators are left as they are. Ten microseconds in all, once everything is imported. A package that is imported
    inside is not watched: its generator is new. Draws of other threads count as well; those from generators that belong
    to somebody (``random.Random``, ``numpy.random.default_rng``) and from the operating system do not.

    Attributes:
        drew: "random", "numpy.random" or "torch"; None when none of them moved.
    """

    __slots__ = ("_before", "drew")

    def __init__(self) -> None:
        self.drew: str | None = None
        self._before: tuple[State, ...] = ()

    def __enter__(self) -> Watch:
        self.drew = None
        self._before = (python_state(), numpy_state(), torch_state())
        return self

    def __exit__(self, *exc: object) -> None:
        for (name, read), before in zip(GENERATORS, self._before, strict=True):
            if before and read() != before:
                self.drew = name
                break
        self._before = ()


def states() -> tuple[State, ...]:
    """Return what changes when anything is drawn from a global generator, those of devices in use included."""
    return tuple(read() for read, _ in _RESTORED)


def saved() -> Callable[[], None]:
    """Save the global generators; return what puts them back."""
    kept = [save() for _, save in _RESTORED]

    def put_back() -> None:
        for put in kept:
            put()

    return put_back


@contextmanager
def left_alone() -> Iterator[None]:
    """What is drawn inside from a global generator is undone at the end: outside of it no difference can be seen.

    A hundred microseconds. Draws of other threads are undone as well.
    """
    before = [(read(), restore()) for read, restore in _RESTORED]
    try:
        yield
    finally:
        for (read, _), (state, put_back) in zip(_RESTORED, before, strict=True):
            if state and read() != state:
                put_back()


def _python_again() -> Callable[[], None]:
    state = random.getstate()
    return lambda: random.setstate(state)


def _numpy_again() -> Callable[[], None]:
    module: Any = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return _nothing
    generator = module._rand
    state = generator.get_state(legacy=False)
    return lambda: generator.set_state(state)


def _torch_again() -> Callable[[], None]:
    torch: Any = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is None:
        return _nothing
    state = generator.get_state()
    return lambda: generator.set_state(state)


def _cuda_state() -> State:
    """Return the states of the devices' generators; nothing while no device is in use."""
    return tuple(bytes(generator.get_state().numpy()) for generator in _cuda_generators())


def _cuda_again() -> Callable[[], None]:
    states = [(generator, generator.get_state()) for generator in _cuda_generators()]

    def put_back() -> None:
        for generator, state in states:
            generator.set_state(state)

    return put_back


def _cuda_generators() -> tuple[Any, ...]:
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    is_in_use = cuda is not None and cuda.is_initialized() and not cuda._is_in_bad_fork()
    return tuple(cuda.default_generators) if is_in_use else ()


def _nothing() -> None:
    return None


_RESTORED: Final[tuple[tuple[Callable[[], State], Callable[[], Callable[[], None]]], ...]] = (
    (python_state, _python_again),
    (numpy_state, _numpy_again),
    (torch_state, _torch_again),
    (_cuda_state, _cuda_again),
)


T = TypeVar("T")

# ---------------------------------------------------------------- what draws

_MODULES: Final = ("random", "secrets", "numpy.random", "numpy.random.mtrand", "torch.random", "torch.distributions")
"""Whatever they define draws, unless it is named below."""


class Verdict(Enum):
    """What is known of a name.

    Attributes:
        DRAWS: A call draws, or changes what others draw.
        SEEDED: It makes a generator, which draws its seed from the system when none is given.
        STILL: It draws nothing.
    """

    DRAWS = 1
    SEEDED = 2
    STILL = 3


def _below(module: str, names: str) -> list[str]:
    return [f"{module}.{name}" for name in names.split()]


_NAMED: Final[dict[Verdict, tuple[str, ...]]] = {
    Verdict.DRAWS: (
        *("uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom", "random.SystemRandom", "torch.Generator.seed"),
        *_below(
            "torch",
            "manual_seed seed set_rng_state rand rand_like randint randint_like randn randn_like randperm normal poisson "
            "bernoulli multinomial binomial dropout dropout_ alpha_dropout feature_dropout rrelu feature_alpha_dropout "
            "native_dropout pca_lowrank svd_lowrank",
        ),
        *_below(
            "torch.nn.functional",
            "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu gumbel_softmax "
            "fractional_max_pool2d fractional_max_pool3d",
        ),
    ),
    Verdict.SEEDED: (
        "random.Random",
        *_below("numpy.random", "default_rng RandomState SeedSequence PCG64 PCG64DXSM MT19937 Philox SFC64"),
    ),
    Verdict.STILL: (
        *("random", "random.getstate", "secrets.compare_digest", "numpy.random"),
        *_below("numpy.random", "Generator BitGenerator bit_generator get_state"),
        *_below("torch.random", "get_rng_state fork_rng initial_seed"),
    ),
}
_VERDICTS: Final = {name: verdict for verdict, names in _NAMED.items() for name in names}

_METHODS: Final = frozenset(
    {
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_"),
        *("bernoulli", "multinomial", "new_rand", "rand_like", "randn_like", "randint_like"),
    }
)
"""Of tensors; these names mean little else."""

_TRANSFORMS: Final = frozenset(
    {
        *(
            "ColorJitter",
            "AutoAugment",
            "RandAugment",
            "TrivialAugmentWide",
            "AugMix",
            "ElasticTransform",
            "ScaleJitter",
        ),
        *("GaussianNoise", "GaussianBlur", "JPEG", "MixUp", "CutMix"),
    }
)
"""torchvision's transforms that draw and are not called ``Random...``.

``GaussianBlur`` and ``JPEG`` draw also from a range of one value: the result is the same, the generator's next is not.
"""

_TRAINING: Final = ("torch.nn.modules.dropout", "torchvision.ops.stochastic_depth", "torchvision.ops.drop_block")
_TRAINING_CLASSES: Final = frozenset({"RReLU", "FractionalMaxPool2d", "FractionalMaxPool3d"})


def not_random(fn: T) -> T:
    """Mark a function, class or instance: its result does not depend on chance, whatever its code looks like.

    To be used as a decorator or a call. An object without room for a mark (a builtin function, a bound method, an instance
    with ``__slots__``) is returned wrapped in something that is called in its stead.

    One mark vouches for the whole of each stage that it is a part of: the generators are then not watched while samples
    of that stage are made, so that a draw which looking does not find goes unnoticed in its other steps, too.

    Raises:
        TypeError: It has no room for a mark and cannot be called.
    """
    if not isinstance(fn, types.MethodType):
        try:
            (setattr if isinstance(fn, type) else object.__setattr__)(fn, MARK, True)
        except (AttributeError, TypeError):
            pass
        else:
            return fn
    if not callable(fn):
        raise TypeError(f"{type(fn).__qualname__} has no room for a mark and cannot be called: mark its class")
    return NotRandom(fn)  # type: ignore[return-value]


class NotRandom:
    """Calls a function that is marked and has no room for the mark."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        setattr(self, MARK, True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"not_random({self.fn!r})"


@dataclass(frozen=True, slots=True)
class Chance:
    """What looking at a stage shows.

    Attributes:
        drawing: Where it holds something that draws, and what, as ``Compose.transforms[1] (RandomCrop)``; None when
            nothing is found. What is marked with ``not_random`` is not looked into.
        is_vouched: Something in it is marked: then what ``Watch`` sees is the user's own will.
    """

    drawing: str | None
    is_vouched: bool


def look_for_chance(value: Any) -> Chance:
    """Look at a stage, up to the first thing that draws."""
    is_vouched = False
    for path, part in _parts(value):
        is_vouched = is_vouched or _is_marked(part)
        found = _draws(part)
        if found is not None:
            return Chance(f"{path} ({found})", is_vouched)
    return Chance(None, is_vouched)


def find_random(value: Any) -> str | None:
    """Return where a stage holds something that draws, and what; None when nothing is found."""
    return look_for_chance(value).drawing


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value and all that it consists of, with their paths, each once; marked values are not looked into."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    waiting: list[tuple[str, Any]] = [(str(name), value)]
    seen: dict[int, Any] = {}
    while waiting:
        path, part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part  # held, so that no other gets its id
        yield path, part
        if not _is_marked(part) and not isinstance(part, _ATOMS):
            waiting += [(path + label, child) for label, child in reversed(_children(part))]


def _children(part: Any) -> list[tuple[str, Any]]:
    """Return what a value consists of; what makes generators in a function's code is judged by how it is called there."""
    parts = _anatomy(part).parts
    if not isinstance(part, types.FunctionType | types.ModuleType):
        return list(parts)
    held = {f" -> {name}" for name in part.__code__.co_freevars} if isinstance(part, types.FunctionType) else set()
    return [(label, child) for label, child in parts if label in held or not _is_seeded(child)]


def _is_seeded(value: Any) -> bool:
    is_code = isinstance(value, External | type | types.BuiltinFunctionType) or _is_of_cython(value)
    return is_code and _VERDICTS.get(_canonical(value)) is Verdict.SEEDED


def _is_of_cython(value: Any) -> bool:
    return type(value).__name__ == "cython_function_or_method"


_ATOMS: Final = (str, bytes, bytearray, int, float, complex, External, types.NoneType, np.ndarray, PatchedIn)
_NOTHING: Final = Anatomy(kind="untold")


def _anatomy(part: Any) -> Anatomy:
    try:
        return anatomy_of(part)
    except UntoldError:
        return _NOTHING  # the fingerprint says so


def _is_marked(part: Any) -> bool:
    # Not getattr: a dataset around another often passes on whatever it is asked for.
    own = getattr(part, "__func__", part) if isinstance(part, types.MethodType) else part
    return (
        MARK in getattr(own, "__dict__", ())
        or getattr(own if isinstance(own, type) else type(own), MARK, False) is True
    )


def _draws(part: Any) -> str | None:
    """Return the name of what draws in a value itself, its parts left out."""
    if isinstance(part, External) or _is_of_cython(part):
        return _dotted_draws(_canonical(part))
    if isinstance(part, _ATOMS) or _is_marked(part):
        return None
    if isinstance(part, types.FunctionType):
        return _function_draws(part)
    if isinstance(part, types.ModuleType):
        return _module_draws(part)
    if isinstance(part, types.BuiltinFunctionType | types.MethodType):
        return _builtin_draws(part)
    if isinstance(part, type):
        return _class_draws(part)
    return _generator(part) or _transform_draws(part) or _training_draws(part)


def _generator(part: Any) -> str | None:
    torch: Any = sys.modules.get("torch")
    kinds = (random.Random, *_numpy_generators(), *((torch.Generator,) if torch else ()))
    return f"{type(part).__module__}.{type(part).__qualname__}" if isinstance(part, kinds) else None


def _numpy_generators() -> tuple[type, ...]:
    module = sys.modules.get("numpy.random")
    return (module.Generator, module.RandomState, module.BitGenerator) if module else ()


def _dotted_draws(dotted: str) -> str | None:
    verdict = _VERDICTS.get(dotted)
    if verdict is not None:
        return None if verdict is Verdict.STILL else dotted
    in_modules = any(dotted.startswith(f"{module}.") for module in _MODULES)
    is_transform = dotted.startswith("torchvision.transforms.") and _is_random_name(dotted.rpartition(".")[2])
    return dotted if in_modules or is_transform else None


def _class_draws(cls: type) -> str | None:
    verdict = _VERDICTS.get(_canonical(cls))
    return _canonical(cls) if verdict in (Verdict.DRAWS, Verdict.SEEDED) else _transform_draws(cls)


def _is_random_name(name: str) -> bool:
    return name.startswith("Random") or name in _TRANSFORMS


def _builtin_draws(part: Any) -> str | None:
    owner = part.__self__
    if _generator(owner) is not None:
        return f"{type(owner).__module__}.{part.__name__}"
    name = str(part.__name__)
    if getattr(sys.modules.get("torch"), name, None) is part:
        return _dotted_draws(f"torch.{name}")
    return _dotted_draws(_canonical(part))


def _function_draws(function: types.FunctionType) -> str | None:
    code, module = function.__code__, str(function.__globals__.get("__name__", ""))
    if is_installed(module, code.co_filename):
        return _dotted_draws(f"{module}.{code.co_qualname}")
    return _code_draws(code, function_references(function))


def _module_draws(module: types.ModuleType) -> str | None:
    code = None if is_installed_module(module) else source_code(module)
    return None if code is None else _code_draws(code, references(code, vars(module)))


def _code_draws(code: types.CodeType, used: list[Reference]) -> str | None:
    for reference in used:
        if (reference.is_called_bare or reference.is_passed_on) and _is_seeded(reference.value):
            return f"{reference.name}()" if reference.is_called_bare else reference.name
    named = _METHODS & set(attributes_named(code))
    return f".{min(named)}" if named else None


def _canonical(value: Any) -> str:
    """Return the public name of something imported, by which the tables know it."""
    if isinstance(value, External):
        return value.dotted.rpartition(":")[2]  # what comes before is the class of a value known by name
    module = str(getattr(value, "__module__", ""))
    package = "numpy.random" if module.startswith("numpy.random.") else module.replace("posix", "os")
    return f"{package}.{getattr(value, '__name__', '')}"


def _transform_draws(part: Any) -> str | None:
    cls = part if isinstance(part, type) else type(part)
    for base in cls.__mro__:
        if base.__module__.startswith("torchvision.transforms"):
            if _is_random_name(base.__name__):
                return cls.__qualname__
    return None


def _training_draws(part: Any) -> str | None:
    if isinstance(part, type) or getattr(part, "training", False) is not True:
        return None
    for base in type(part).__mro__:
        if base.__module__ in _TRAINING or (
            base.__module__.startswith("torch.nn") and base.__name__ in _TRAINING_CLASSES
        ):
            return type(part).__qualname__ if getattr(part, "p", 1) else None
    dropout = getattr(part, "dropout", 0)
    is_layer = type(part).__module__.startswith("torch.nn")
    return f"{type(part).__qualname__} with dropout" if is_layer and isinstance(dropout, float) and dropout else None
