"""What is done once a module is there, and what is left of us after that."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prefeed.after_import import _finder, after_import, forget

NAME = "prefeed_test_late"


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that is not imported yet."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders, waiting = list(sys.meta_path), dict(_finder.waiting)  # prefeed's own modules may wait for others
    yield NAME
    sys.modules.pop(NAME, None)
    assert sys.meta_path == finders
    assert _finder.waiting == waiting


def test_done_when_the_module_is_whole(late: str) -> None:
    seen: list[Any] = []
    after_import(late, lambda: seen.append(sys.modules[late].value))  # type: ignore[attr-defined]
    assert seen == []
    module = importlib.import_module(late)

    assert seen == [1]
    assert module.__spec__ is not None
    assert "exec_module" not in vars(module.__spec__.loader)


def test_done_at_once_when_it_is_there(late: str) -> None:
    importlib.import_module(late)
    seen: list[int] = []
    after_import(late, lambda: seen.append(1))
    assert seen == [1]


def test_looking_for_a_module_is_not_importing_it(late: str) -> None:
    seen: list[int] = []
    after_import(late, lambda: seen.append(1))
    for _ in range(2):
        assert importlib.util.find_spec(late) is not None
    assert seen == []
    importlib.import_module(late)
    assert seen == [1]


def test_asked_for_twice_is_done_once(late: str) -> None:
    seen: list[int] = []

    def act() -> None:
        seen.append(1)

    after_import(late, act)
    after_import(late, act)
    importlib.import_module(late)
    assert seen == [1]


def test_forgotten(late: str) -> None:
    seen: list[int] = []

    def act() -> None:
        seen.append(1)

    after_import(late, act)
    forget(late, act)
    forget(late, act)
    importlib.import_module(late)
    assert seen == []


def test_import_that_fails_is_waited_for_again(late: str, tmp_path: Path) -> None:
    path = tmp_path / f"{late}.py"
    path.write_text("raise RuntimeError('broken')\n")
    seen: list[int] = []
    after_import(late, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module(late)
    assert seen == []
    path.write_text("value = 12345\n")
    importlib.invalidate_caches()
    importlib.import_module(late)
    assert seen == [1]


def test_module_that_does_not_exist() -> None:
    name = "prefeed_test_nowhere"
    finders = list(sys.meta_path)

    def act() -> None:
        raise AssertionError

    after_import(name, act)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    forget(name, act)
    assert sys.meta_path == finders


def test_another_finder_that_asks_all_the_others(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the kind do not ask each other forever."""

    class Asking:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != late:
                return None
            found = (other.find_spec(name, path, target) for other in sys.meta_path if other is not self)
            return next((spec for spec in found if spec is not None), None)

    asking: Any = Asking()
    sys.meta_path.insert(0, asking)
    try:
        seen: list[int] = []
        after_import(late, lambda: seen.append(1))
        importlib.import_module(late)
        assert seen == [1]
    finally:
        sys.meta_path.remove(asking)
