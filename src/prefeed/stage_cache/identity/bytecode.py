"""What a function's code says, without lines, paths and docstrings, and what it refers to outside itself."""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Generic, TypeVar

from prefeed.stage_cache.identity.installed import is_installed_module, is_installed_name

T = TypeVar("T")

MISSING: Final = object()
"""What a name refers to that nothing defines yet."""

_CHAIN: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBAL: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_LOCAL_STORE: Final = frozenset({"STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL"})
_LOCAL_LOAD: Final = frozenset(
    {"LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_NAME", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"}
)
_BETWEEN: Final = frozenset({"PUSH_NULL", "PRECALL", "CACHE", "SWAP", "POP_TOP", "EXTENDED_ARG"})
_SILENT: Final = frozenset({"PRECALL", "KW_NAMES", "CACHE", "EXTENDED_ARG", "NOP"})
_NOT_SAID: Final = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})
"""Names that a class body stores and that do not matter."""

_MAX_CODES: Final = 2048

_BY_VALUE: Final = frozenset(dis.hasname) | frozenset(dis.haslocal) | frozenset(dis.hasfree) | frozenset(dis.hascompare)


@dataclass(frozen=True, slots=True)
class External:
    """A name in an installed package, or a builtin."""

    dotted: str


@dataclass(frozen=True, slots=True)
class Reference:
    """Something outside that code uses.

    Attributes:
        name: As the code has it.
        value: What it is: an object of the user's own, or an ``External``.
        is_called_bare: The code calls it without an argument, or with None for each.
        is_passed_on: The code does something else with it than to import it and to call it.
    """

    name: str
    value: Any
    is_called_bare: bool = False
    is_passed_on: bool = False


class _OfCode(Generic[T]):
    """What follows from code alone, kept by which object it is: code never changes, and is looked at again and again."""

    def __init__(self, look: Callable[[CodeType], T]) -> None:
        self._look = look
        self._known: dict[int, tuple[CodeType, T]] = {}

    def __call__(self, code: CodeType) -> T:
        known = self._known.get(id(code))
        if known is not None:
            return known[1]
        if len(self._known) >= _MAX_CODES:
            self._known.clear()
        found = self._look(code)
        self._known[id(code)] = (code, found)
        return found


def code_text(code: CodeType) -> str:
    """Return what the code does, as text: the same wherever and however often it is compiled by one Python."""
    return _text(code)


def _text_of(code: CodeType) -> str:
    head = f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_varnames!r}"
    lines = [head, code.co_exceptiontable.hex() if hasattr(code, "co_exceptiontable") else ""]
    steps = _steps(code)
    for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
        # A docstring is loaded by no instruction, but for that of a class body.
        if not (_is_unsaid(step) or (_is_unsaid(following) and step.opcode in dis.hasconst)):
            lines.append(f"{step.opname} {_argument(step)}")
    return "\n".join(lines)


_text: Final = _OfCode(_text_of)
_steps: Final = _OfCode(lambda code: list(dis.get_instructions(code)))
_telling_steps: Final = _OfCode(lambda code: [step for step in _steps(code) if step.opname not in _BETWEEN])


def _names_anything(code: CodeType) -> bool:
    return bool(code.co_names) or any(_names_anything(inner) for inner in _inner(code))


def _is_unsaid(step: dis.Instruction) -> bool:
    return step.opname == "STORE_NAME" and step.argval in _NOT_SAID


def _argument(step: dis.Instruction) -> str:
    if step.opcode in dis.hasconst:
        return _constant(step.argval)
    if step.opcode in _BY_VALUE:
        return f"{step.argval} {(step.arg or 0) & 1 if step.opname in _GLOBAL | _CHAIN else ''}"
    return str(step.arg)


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return f"code({code_text(value)})"
    if isinstance(value, tuple):
        return f"tuple({','.join(map(_constant, value))})"
    if isinstance(value, frozenset):  # in another order in every process
        return f"frozenset({','.join(sorted(map(_constant, value)))})"
    return f"{type(value).__name__}:{value!r}"


def attributes_named(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes and globals that code uses, functions inside included."""
    yield from code.co_names
    for inner in _inner(code):
        yield from attributes_named(inner)


def references(code: CodeType, namespace: dict[str, Any]) -> list[Reference]:
    """Return what code of a namespace uses of it and of modules it imports itself, each name once, sorted by name."""
    found: dict[str, Reference] = {}
    for reference in _references(code, namespace, {}):
        other = found.get(reference.name, reference)
        found[reference.name] = Reference(
            reference.name,
            reference.value,
            is_called_bare=reference.is_called_bare or other.is_called_bare,
            is_passed_on=reference.is_passed_on or other.is_passed_on,
        )
    return [found[name] for name in sorted(found)]


def function_references(function: FunctionType) -> list[Reference]:
    """Return what a function uses of its module and of others."""
    return references(function.__code__, function.__globals__)


def _references(code: CodeType, namespace: dict[str, Any], imported: dict[str, Any]) -> Iterator[Reference]:
    if not imported and not _names_anything(code):
        return
    all_steps = _steps(code)
    steps = _telling_steps(code)
    imported = dict(imported)
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            yield from _import(steps, at, namespace, imported)
        elif step.opname in _LOCAL_LOAD and step.argval in imported:
            yield _followed(step.argval, imported[step.argval], steps, at + 1, all_steps)
        elif step.opname in _GLOBAL:
            yield _followed(step.argval, _global(step.argval, namespace), steps, at + 1, all_steps)
    for inner in _inner(code):
        yield from _references(inner, namespace, imported)


def _global(name: str, namespace: dict[str, Any]) -> Any:
    if name in namespace:
        value = namespace[name]
        return _named(value) if isinstance(value, ModuleType) else value
    return External(f"builtins.{name}") if hasattr(builtins, name) else MISSING


def _named(module: ModuleType) -> Any:
    """Return an installed module's name, another module itself."""
    return External(module.__name__) if is_installed_module(module) else module


def _followed(
    name: str, value: Any, steps: list[dis.Instruction], at: int, all_steps: list[dis.Instruction]
) -> Reference:
    """Follow attributes from a module on, as far as the code names them."""
    while at < len(steps) and steps[at].opname in _CHAIN and _is_followed(value, steps[at].argval):
        value = _attribute(value, steps[at].argval)
        name = f"{name}.{steps[at].argval}"
        at += 1
    call = _call_of(all_steps, steps[at - 1].offset)
    return Reference(name, value, is_called_bare=call == "bare", is_passed_on=call == "none")


def _call_of(steps: list[dis.Instruction], offset: int) -> str:
    """Return how a value that this step has put on the stack is called: "bare", "with arguments", or "none".

    Follows the stack until something takes the value from it.
    """
    index = {step.offset: at for at, step in enumerate(steps)}
    at = index[offset] + 1
    above, others = 0, 0  # what lies on top of the value, and steps that put there anything but None
    while at < len(steps):
        step = steps[at]
        name, arg = step.opname, step.arg or 0
        num_taken = _num_taken(name, arg)
        if num_taken >= 0 and above <= num_taken:
            return "none" if above < num_taken else ("with arguments" if others else "bare")
        if name == "JUMP_FORWARD":  # past the other branch of a condition
            at = index[step.argval]
            continue
        if name in _CHAIN and above == 0:
            return "none"
        is_null = name == "PUSH_NULL" and above == 0  # some Pythons put it on top
        if name not in _SILENT and not is_null:
            above += -num_taken - 1 if num_taken >= 0 else dis.stack_effect(step.opcode, step.arg, jump=False)
            others += not (name == "LOAD_CONST" and step.argval is None)
        if above < 0:
            return "none"
        at += 1
    return "none"


def _num_taken(name: str, arg: int) -> int:
    """Return how many values a call takes besides what is called; -1 for what is no call."""
    if name == "CALL":
        return arg
    if name == "CALL_KW":
        return arg + 1
    return 1 + (arg & 1) if name == "CALL_FUNCTION_EX" else -1


def _is_followed(value: Any, name: str) -> bool:
    if isinstance(value, External):
        return not value.dotted.startswith("builtins.")
    return isinstance(value, ModuleType) or (isinstance(value, FunctionType) and name in vars(value))


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, External):
        return External(f"{value.dotted}.{name}")
    found = MISSING if value is MISSING else vars(value).get(name, MISSING)
    return _named(found) if isinstance(found, ModuleType) else found


def _import(
    steps: list[dis.Instruction], at: int, namespace: dict[str, Any], imported: dict[str, Any]
) -> Iterator[Reference]:
    """Note under which local names an import statement leaves what; yield what it imports."""
    level, names = steps[at - 2].argval, steps[at - 1].argval  # of "from ..module import names"
    dotted = steps[at].argval
    if level:
        dotted = _resolved("." * level + dotted, namespace)
    module = _imported(dotted)
    pending: Any = module if names else _imported(dotted.partition(".")[0])
    if not isinstance(module, ModuleType):  # of a module of the user's own only what is used of it counts
        yield Reference(dotted, module)
    for step in steps[at + 1 :]:
        if step.opname == "IMPORT_FROM":
            pending = _attribute(module if names else pending, step.argval)
            if names:
                yield Reference(f"{dotted}.{step.argval}", pending)
        elif step.opname in _LOCAL_STORE:
            imported[step.argval] = pending
            if not names:
                return
        else:
            return


def _imported(dotted: str) -> Any:
    """Return an installed module's name; a module of the user's own, which is imported as the code would."""
    if is_installed_name(dotted):
        return External(dotted)
    try:
        return importlib.import_module(dotted)
    except (Exception, SystemExit):  # noqa: BLE001 - of a module that the stage may never come to import
        return MISSING


def _resolved(dotted: str, namespace: dict[str, Any]) -> str:
    try:
        return importlib.util.resolve_name(dotted, namespace.get("__package__") or "")
    except ImportError:  # too many dots: the import will fail, should it ever come to it
        return dotted


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def source_code(module: ModuleType) -> CodeType | None:
    """Return the code of a module's source, compiled again; None when there is no source."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    get_code = getattr(loader, "get_code", None)
    try:
        return get_code(module.__name__) if get_code is not None and module.__name__ in sys.modules else None
    except Exception:  # noqa: BLE001 - whatever a loader makes of a source that was changed meanwhile
        return None
