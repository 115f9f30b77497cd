"""An exception that a frame of its own traceback holds is a cycle: until the next collection, all frames keep what they have open."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from architecture.test_imports import PACKAGES

ADVICE = "raise it in a `try` whose `finally` deletes the name"


def kept_and_raised(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that raise an exception by a name, unless the name is deleted at once."""
    deleted: dict[ast.AST, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            names = {
                ast.unparse(target)
                for step in node.finalbody
                if isinstance(step, ast.Delete)
                for target in step.targets
            }
            deleted |= dict.fromkeys(node.body, names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            for held in names_of(node.exc):
                if held.partition(".")[0] not in deleted.get(node, ()):
                    yield node.lineno


def kept_where_caught(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that give a caught exception another name, unless the module deletes that name somewhere."""
    nodes = list(ast.walk(tree))
    gone = {ast.unparse(target) for node in nodes if isinstance(node, ast.Delete) for target in node.targets}
    for handler in nodes:
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            for node in ast.walk(handler):
                if isinstance(node, ast.Assign) and handler.name in names_of(node.value):
                    if isinstance(node.targets[0], ast.Name) and node.targets[0].id not in gone:
                        yield node.lineno


def names_of(expression: ast.expr | None) -> Iterator[str]:
    """Yield the variables and attributes that an expression may be; classes begin with a capital letter."""
    match expression:
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from names_of(part)
        case ast.IfExp(body=one, orelse=other):
            yield from names_of(one)
            yield from names_of(other)
        case ast.Name(id=name) if not name.lstrip("_")[:1].isupper():
            yield name
        case ast.Attribute(attr=name) if not name.lstrip("_")[:1].isupper():
            yield ast.unparse(expression)


def test_an_exception_is_not_kept_in_a_frame_of_its_traceback() -> None:
    found = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            tree = ast.parse(path.read_text())
            found += [f"{path.relative_to(package)}:{at}" for at in (*kept_and_raised(tree), *kept_where_caught(tree))]
    assert found == [], ADVICE


def test_the_search_finds_what_it_looks_for() -> None:
    raised = "def f(e):\n raise e\ndef g(self):\n raise self._e\ndef h(e):\n raise e or Error()\ndef ok(e):\n try:\n  raise e\n finally:\n  del e"
    caught = "try: f()\nexcept E as e: kept = e\ntry: f()\nexcept E as e: gone = e\ndel gone"
    assert list(kept_and_raised(ast.parse(raised))) == [2, 4, 6]
    assert list(kept_where_caught(ast.parse(caught))) == [2]
