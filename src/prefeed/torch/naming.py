"""The name of a loader: the variable or attribute that it was put into, else the line where it was made.

Names are told from frames. No source is read, so notebooks, ``python -c`` and zipped programs are as any other. No frame is
kept. The variables of a function that runs are not looked at, for a look keeps alive what they refer to; those of modules
and comprehensions are.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple
from weakref import ref

import torch
from torch.utils.data import DataLoader, Subset

from prefeed.stage_cache.identity.installed import is_installed
from prefeed.torch.items import behind

_SILENT: Final = frozenset(
    {"CACHE", "COPY", "EXTENDED_ARG", "KW_NAMES", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME"}
)
_CALLS: Final = frozenset({"CALL", "CALL_KW"})
_COLLECTS: Final = frozenset({"LIST_APPEND", "MAP_ADD", "SET_ADD"})
_COMPREHENSIONS: Final = frozenset({"<dictcomp>", "<listcomp>", "<setcomp>"})
_CONSTANTS: Final = ("LOAD_CONST", "LOAD_SMALL_INT")
_MOST_LOADS: Final = 8
"""At most this number of instructions say where a value is put."""


class _Use(NamedTuple):
    """What becomes of the value of a call.

    Attributes:
        kind: ``put``, ``returned``, ``dropped``, ``collected`` or ``other``.
        name: What it is put into: a variable, or the last name of an attribute.
        key: The key that it is put under: one constant, or none.
        key_variable: The variable that holds the key; empty for none.
    """

    kind: str
    name: str = ""
    key: tuple[Any, ...] = ()
    key_variable: str = ""


def given_name(frame: FrameType | None) -> str:
    """Return what the user's code calls the value that it makes; empty: nothing.

    The variable, attribute or entry that it is put into, also when a library makes it for the user; or the function that returns it to
    a library, or where it has no name.
    """
    function = key = ""
    for caller in frames_of(frame):
        if _is_library(caller):
            if function:
                break  # the user's method, which a framework has called
            continue
        use, inside = _use_of(caller.f_code, caller.f_lasti), caller.f_code.co_name
        if use.kind == "put":
            return use.name + _key_text(use, caller) + key
        if use.kind == "returned":
            function = function if inside.startswith("<") else inside
        elif use.kind == "collected" and inside in _COMPREHENSIONS:
            key = _key_in(caller)
        elif not (use.kind == "dropped" and inside == "__init__"):  # of the class that is made, on to the next one's
            break
    return function and function + key


def line_of(frame: FrameType | None) -> str:
    """Return the line of the user's code, as ``train.py:12``, and what a library calls the loader that it makes there."""
    hint = ""
    last = None
    for last in frames_of(frame):
        if not _is_library(last):  # the user's, else the outermost is left
            break
        use = _use_of(last.f_code, last.f_lasti)
        hint = next((name for name in (use.name, last.f_code.co_name) if "loader" in name.lower()), hint)
    if last is None:
        return ""
    place = f"{os.path.basename(last.f_code.co_filename)}:{last.f_lineno}"
    return f"{hint} at {place}" if hint else place


def is_made_by_library(frame: FrameType | None) -> bool:
    """Return True when the frame is not the user's; prefeed's own do not count."""
    others = (one for one in frames_of(frame) if not _module_of(one).startswith("prefeed."))
    first = next(others, None)
    return first is not None and _is_library(first)


def iterated_name(frame: FrameType | None, value: Any) -> str:
    """Return what the user's code calls a value that it goes over now; else the line."""
    user = next((one for one in frames_of(frame) if not _is_library(one)), None)
    if user is None:
        return line_of(frame)
    for name, known in list(user.f_globals.items()):
        if known is value and not name.startswith("_"):
            return str(name)
    return _loop_of(user.f_code, user.f_lasti) or line_of(user)


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_library(frame: FrameType) -> bool:
    return is_installed(_module_of(frame), frame.f_code.co_filename)


def _key_text(use: _Use, frame: FrameType) -> str:
    if use.key:
        return f"[{use.key[0]!r}]"
    if not use.key_variable:
        return ""
    value = None if frame.f_code.co_flags & inspect.CO_OPTIMIZED else frame.f_locals.get(use.key_variable)
    return f"[{value!r}]" if isinstance(value, str | int) else f"[{use.key_variable}]"


def _key_in(comprehension: FrameType) -> str:
    """Return the key of an entry that a dict comprehension makes, if it is plain which one that is; its frame ends soon."""
    if comprehension.f_code.co_name != "<dictcomp>":
        return ""
    own = comprehension.f_code.co_varnames  # and not those of the function around it
    words = [value for name, value in comprehension.f_locals.items() if name in own and isinstance(value, str)]
    return f"[{words[0]!r}]" if len(words) == 1 else ""


def _telling(code: CodeType) -> Iterator[dis.Instruction]:
    return (step for step in dis.get_instructions(code) if step.opname not in _SILENT)


@functools.lru_cache(256)
def _use_of(code: CodeType, lasti: int) -> _Use:
    """Return what follows the call at an offset."""
    names: list[Any] = []
    is_constant = False
    for step in _telling(code):
        if step.offset <= lasti or (
            step.opname in _CALLS and not names
        ):  # a call right after takes it, and is looked through
            continue
        name = step.argval[0] if isinstance(step.argval, tuple) and step.argval else step.argval
        if step.opname.startswith("LOAD_") and len(names) < _MOST_LOADS:
            names += step.argval if isinstance(step.argval, tuple) and step.opname not in _CONSTANTS else [step.argval]
            is_constant = step.opname in _CONSTANTS
        elif step.opname == "BINARY_SUBSCR" and len(names) > 1:
            names.pop()
        elif step.opname == "STORE_ATTR" and names:
            return _Use("put", str(step.argval))
        elif step.opname == "STORE_SUBSCR" and len(names) > 1:
            key = names[-1]
            return _Use("put", str(names[-2]), (key,) if is_constant else (), "" if is_constant else str(key))
        elif names:
            break
        elif step.opname.startswith("STORE_") and isinstance(name, str):
            return _Use("put", name)
        elif step.opname in _COLLECTS:
            return _Use("collected")
        else:
            return _Use({"RETURN_VALUE": "returned", "POP_TOP": "dropped"}.get(step.opname, "other"))
    return _Use("other")


@functools.lru_cache(256)
def _loop_of(code: CodeType, lasti: int) -> str:
    """Return the variable or attribute that the loop at an offset goes over, by itself or by ``enumerate`` and its like."""
    steps = [step for step in _telling(code) if step.offset <= lasti]
    while steps and steps[-1].opname in ("FOR_ITER", "GET_ITER"):
        steps.pop()
    num_arguments = 1
    if steps and steps[-1].opname in _CALLS:
        num_arguments = steps.pop().arg or 0
    arguments = steps[len(steps) - num_arguments :] if num_arguments <= len(steps) else []
    if not arguments or not all(step.opname.startswith("LOAD_") for step in arguments):
        return ""
    variables = [step.argval for step in arguments if step.opname not in _CONSTANTS]
    return variables[0] if len(variables) == 1 and isinstance(variables[0], str) else ""


__all__ = ["is_trial", "name_of", "note_made", "rank_of_process"]

_TRIALS: Final = {"_run_sanity_check": ("lightning.", "pytorch_lightning.")}
"""Functions that try a few batches before training begins, and the packages that they are of."""

_Names = dict[int, tuple["ref[DataLoader[Any]]", str]]
"""Of each loader, by identity and beside it as ``Attachments``, as long as there is the loader."""

_made: _Names = {}
_named: _Names = {}


def note_made(loader: DataLoader[Any], frame: FrameType | None) -> None:
    """A loader was made: what it is called is found out once, in less than a millisecond as a rule, and never fails.

    Args:
        loader: The loader, whole.
        frame: Who called its class.
    """
    try:
        if _known(_made, loader) is None:
            twin = "" if (name := given_name(frame)) or not is_made_by_library(frame) else _twin_of(loader)
            _keep(_made, loader, name or twin or line_of(frame))
    except Exception:  # noqa: BLE001 - a name is worth no error
        return


def name_of(loader: DataLoader[Any]) -> str:
    """Return what messages call a loader, as ``train_loader (ImageFolder)``; it stays the same, and is no other's.

    One that was made before anybody looked is called after what the program goes over now.
    """
    itself = behind(loader)
    known = _known(_named, itself)
    if known is not None:
        return known
    try:
        name = _known(_made, loader) or iterated_name(sys._getframe(1), loader)
    except Exception:  # noqa: BLE001 - as above
        name = ""
    whose, rank = _described(getattr(loader, "dataset", loader)), rank_of_process()
    if rank is not None:
        whose += f", rank {rank}"
    text = f"{name} ({whose})" if name else whose
    taken = {one for made, one in list(_named.values()) if made() is not None}
    if text in taken:
        others = (f"{name} #{number} ({whose})".lstrip() for number in range(2, len(taken) + 3))
        text = next(other for other in others if other not in taken)
    _keep(_named, itself, text)
    return text


def rank_of_process() -> int | None:
    """Return this process's rank; None when it trains alone."""
    is_one_of_many = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_one_of_many else None


def is_trial() -> bool:
    """Return True while a framework only tries whether the program runs: Lightning's sanity check."""
    for frame in frames_of(sys._getframe(1)):
        packages = _TRIALS.get(frame.f_code.co_name)
        if packages and str(frame.f_globals.get("__name__")).startswith(packages):
            return True
    return False


def _known(names: Mapping[int, tuple[ref[DataLoader[Any]], str]], loader: DataLoader[Any]) -> str | None:
    entry = names.get(id(loader))
    return entry[1] if entry is not None and entry[0]() is loader else None


def _keep(names: _Names, loader: DataLoader[Any], name: str) -> None:
    key = id(loader)
    with contextlib.suppress(TypeError):  # what stands for a loader may be of a class that takes no weak references
        names[key] = ref(loader, lambda _: names.pop(key, None)), name


def _twin_of(loader: DataLoader[Any]) -> str:
    """Return the name of a loader over the same dataset: a library has made this one in its place."""
    for made, name in reversed(list(_made.values())):
        other = made()
        if other is not None and other.dataset is loader.dataset:
            return name
    return ""


def _described(dataset: Any) -> str:
    """Return a dataset's class, and what it is a part of."""
    name = type(dataset).__name__
    return f"{name} of {_described(dataset.dataset)}" if isinstance(dataset, Subset) else name
