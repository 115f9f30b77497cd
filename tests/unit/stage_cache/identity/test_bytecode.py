"""What code says, and what it refers to, by name and as far as the code follows it."""

from __future__ import annotations

import os.path
import random
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefeed.stage_cache.identity.bytecode import (
    MISSING,
    External,
    attributes_named,
    code_text,
    references,
    source_code,
)

MINE = types.ModuleType("mine")
MINE.SIZE = 3  # type: ignore[attr-defined]
MINE.inner = types.ModuleType("mine.inner")  # type: ignore[attr-defined]
MINE.inner.deep = 4  # type: ignore[attr-defined]


def compiled(text: str) -> types.CodeType:
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(text), namespace)
    code: types.CodeType = namespace["f"].__code__
    return code


def used(text: str, **namespace: Any) -> dict[str, Any]:
    return {reference.name: reference.value for reference in references(compiled(text), namespace)}


def stepping(value: int) -> int:
    return value


stepping.size = 3  # type: ignore[attr-defined]

USED: dict[str, tuple[str, dict[str, Any]]] = {
    "builtin": ("def f(x):\n    return len(x)", {"len": External("builtins.len")}),
    "global": ("def f(x):\n    return x + SIZE", {"SIZE": 8}),
    "undefined": ("def f(x):\n    return nowhere", {"nowhere": MISSING}),
    "installed module": ("def f(x):\n    return np.random.rand(x)", {"np.random.rand": External("numpy.random.rand")}),
    "submodule": ("def f(x):\n    return os.path.join(x)", {"os.path.join": External("os.path.join")}),
    "own module": ("def f(x):\n    return mine.SIZE", {"mine.SIZE": 3}),
    "own submodule": ("def f(x):\n    return mine.inner.deep.real", {"mine.inner.deep": 4}),
    "whole module": ("def f(x):\n    return getattr(mine, x)", {"mine": MINE, "getattr": External("builtins.getattr")}),
    "nothing there": ("def f(x):\n    return mine.lazy", {"mine.lazy": MISSING}),
    "nested": ("def f(x):\n    def g():\n        return [SIZE for _ in x]\n    return g", {"SIZE": 8}),
    "attribute of an instance": ("def f(x):\n    return x.path.join", {}),
    "attribute of a function": ("def f(x):\n    return stepping.size", {"stepping.size": 3}),
    "method of a function": ("def f(x):\n    return stepping.cache_clear()", {"stepping": stepping}),
    "import": ("def f(x):\n    import random\n    return random.random()", {
        "random": External("random"), "random.random": External("random.random")}),
    "import as": ("def f(x):\n    import numpy.random as r\n    return r.rand()", {
        "numpy.random": External("numpy.random"), "r.rand": External("numpy.random.rand")}),
    "import of a submodule": ("def f(x):\n    import numpy.random\n    return numpy.random.rand()", {
        "numpy.random": External("numpy.random"), "numpy.random.rand": External("numpy.random.rand")}),
    "from": ("def f(x):\n    from random import random as draw, choice\n    return draw() + choice(x)", {
        "random": External("random"), "random.random": External("random.random"),
        "random.choice": External("random.choice"), "draw": External("random.random"), "choice": External("random.choice")}),
    "import nowhere": ("def f(x):\n    import nowhere_at_all", {"nowhere_at_all": MISSING}),
    "import in a closure": ("def f(x):\n    import random\n    return lambda: random.random()", {
        "random": External("random"), "random.random": External("random.random")}),
}  # fmt: skip


@pytest.mark.parametrize("name", USED)
def test_what_code_uses_is_found(name: str) -> None:
    text, expected = USED[name]

    assert used(text, np=np, os=os, mine=MINE, SIZE=8, stepping=stepping) == expected


def test_calls_without_an_argument_are_told() -> None:
    code = compiled("def f(x):\n    return [Random(), Random(3), other(Random), last(Random()), x()]")
    namespace = {"Random": random.Random, "other": 1, "last": 2}

    assert {reference.name: reference.is_called_bare for reference in references(code, namespace)} == {
        "Random": True,
        "other": False,
        "last": False,
    }
    assert not references(compiled("def f():\n    return Random(3)"), namespace)[0].is_called_bare


CALLS: dict[str, tuple[str, bool, bool]] = {
    # An expression, whether it calls F without an argument, and whether it does something else with F.
    "bare": ("F()", True, False),
    "none": ("F(None)", True, False),
    "nones": ("F(None, a=None)", True, False),
    "argument": ("F(1)", False, False),
    "one of two": ("F(None, x)", False, False),
    "name": ("F(a=x)", False, False),
    "many": ("F(*x)", False, False),
    "many names": ("F(*x, **x)", False, False),
    "call inside": ("F(g(1, k=2), x.m(3), [y for y in x])", False, False),
    "bare inside": ("g(F(), 1)", True, False),
    "condition inside": ("F(1 if x else g(2))", False, False),
    "or inside": ("F(x or g(2), not x)", False, False),
    "call of the result": ("F(1)(2)()", False, False),
    "argument of another": ("g(F)", False, True),
    "last argument of another": ("g(x, k=F)", False, True),
    "result": ("F", False, True),
    "in a list": ("[F, 1]", False, True),
    "attribute": ("F.a(3)", False, True),
    "chosen": ("(F if x else g)(3)", False, False),
    "compared": ("F is x", False, True),
    "in a function inside": ("(lambda: F())", True, False),
    "both": ("(F(), F)", True, True),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_code_does_with_a_name_is_told(name: str) -> None:
    expression, is_called_bare, is_passed_on = CALLS[name]
    code = compiled(f"def f(x):\n    return {expression}")

    (found,) = [one for one in references(code, {"F": random.Random, "g": max}) if one.name == "F"]

    assert (found.is_called_bare, found.is_passed_on) == (is_called_bare, is_passed_on)


def test_what_is_named_only_is_passed_on() -> None:
    code = compiled("def f(x):\n    import random\n    make = random.Random\n    return make(3)")

    assert [(one.name, one.is_passed_on) for one in references(code, {})] == [
        ("random", False),
        ("random.Random", True),
    ]


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "{}['a']", "1 / 0", "def f(:", "from . import nowhere"])
def test_a_module_that_cannot_be_imported_is_missing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    assert used("def f(x):\n    import broken_module") == {"broken_module": MISSING}
    assert used("def f(x):\n    from ....far import y", __package__="a") == {"....far": MISSING, "....far.y": MISSING}


SAME_CODE = [
    ("def f(x):\n    return x + 1", "def f(x):\n    # A comment.\n\n    return (x +\n        1)"),
    ("def f(x):\n    return x", "def f(x):\n    '''Text.'''\n    return x"),
    ("def f(x):\n    return None, x", "def f(x):\n    '''Text.'''\n    return None, x"),
    ("def f(x):\n    return x in {'a', 'b'}", "def f(x):\n    return x in {'b', 'a'}"),
    (
        "def f():\n    class C:\n        x = 1\n    return C",
        "def f():\n    class C:\n        '''Text.'''\n        x = 1\n    return C",
    ),
]


@pytest.mark.parametrize("number", range(len(SAME_CODE)))
def test_texts_that_mean_the_same_are_the_same(number: int) -> None:
    one, other = SAME_CODE[number]

    assert code_text(compiled(one)) == code_text(compiled(other))


OTHER_CODE = [
    "def f(x, y):\n    return x",
    "def f(x, *, y):\n    return x",
    "def f(x, y, /):\n    return x",
    "def f(x, *y):\n    return x",
    "def f(x, y):\n    return y",
    "def f(x, y):\n    return x.a",
    "def f(x, y):\n    return x.b",
    "def f(x, y):\n    return a",
    "def f(x, y):\n    return 1",
    "def f(x, y):\n    return 1.0",
    "def f(x, y):\n    return True",
    "def f(x, y):\n    return '1'",
    "def f(x, y):\n    return (1,)",
    "def f(x, y):\n    return -0.0",
    "def f(x, y):\n    return 0.0",
    "def f(x, y):\n    return x < y",
    "def f(x, y):\n    return x > y",
    "def f(x, y):\n    return x + y",
    "def f(x, y):\n    return x - y",
    "def f(x, y):\n    yield x",
    "async def f(x, y):\n    return x",
    "def f(x, y):\n    try:\n        return x\n    except ValueError:\n        return y",
    "def f(x, y):\n    try:\n        return x\n    except TypeError:\n        return y",
    "def f(x, y):\n    return lambda: x",
    "def f(x, y):\n    return lambda: y",
    "def f(x, y):\n    return x in {1, 2}",
    "def f(x, y):\n    return x in {1, 3}",
]


def test_other_code_is_another_text() -> None:
    assert len({code_text(compiled(text)) for text in OTHER_CODE}) == len(OTHER_CODE)


def test_attributes_are_named_in_functions_inside_too() -> None:
    assert {"normal_", "size"} <= set(
        attributes_named(compiled("def f(x):\n    return lambda y: x.size + y.normal_()"))
    )


def test_a_modules_code_is_that_of_its_source() -> None:
    code = source_code(textwrap)

    assert code is not None
    assert "dedent" in code.co_names
    assert source_code(types.ModuleType("made_here")) is None
