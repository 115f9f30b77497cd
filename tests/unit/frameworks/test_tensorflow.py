"""tf.data is served where it is as this stand-in is; ``tests/frameworks`` has the real one."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import prefeed
from e2e.automatic import auto
from leaks import wait_until
from prefeed.config import configure
from unit.frameworks.files import NUM, content, make_files

pytestmark = [pytest.mark.usefixtures("sandbox"), pytest.mark.timeout(300)]


def stand_in() -> dict[str, Any]:
    """Return the modules of TensorFlow on which the integration relies, with the names and calls that it needs."""

    class FuncRegistry:
        def __call__(self, token: Callable[..., Any], device: Any, args: tuple[Any, ...]) -> Any:
            return token(*args)

    def module(name: str, **values: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(values)
        return made

    root = "tensorflow.python"
    modules = [
        module(f"{root}.data.ops.dataset_ops"),
        module(f"{root}.ops.script_ops", FuncRegistry=FuncRegistry),
    ]
    return {made.__name__: made for made in modules}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    made = make_files(tmp_path / "data")
    monkeypatch.setenv("PREFEED_ROOTS", str(made))
    configure()
    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    gc.collect()
    configure()


def module_of(name: str) -> Any:
    return sys.modules[f"tensorflow.python.{name}"]


def paths_below(root: Path) -> list[str]:
    return [str(root / f"{index:02}.bin") for index in range(NUM)]


def test_files_that_python_functions_open_come_from_the_cache(root: Path) -> None:
    paths = paths_below(root)
    with auto():
        registry = module_of("ops.script_ops").FuncRegistry()
        found = [registry(lambda path: Path(path).read_bytes(), None, (path,)) for path in (*paths, *paths)]
        with open(paths[0], "rb") as file:
            assert os.path.samestat(
                os.fstat(file.fileno()), os.stat(paths[0])
            )  # outside of a function: the file itself
    assert wait_until(lambda: prefeed.statistics().reads >= 2 * NUM, timeout_seconds=60)
    counts = prefeed.statistics()
    assert found == [content(index) for index in range(NUM)] * 2
    assert counts.origin_requests == NUM
    assert counts.hits >= NUM
