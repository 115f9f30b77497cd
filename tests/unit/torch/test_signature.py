"""The signature that editors see is torch's, with one more argument."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from torch.utils.data import DataLoader

import prefeed
from prefeed.torch import loader


def seen_by_editors() -> ast.arguments:
    """Return the arguments of the ``__init__`` that stands in ``if TYPE_CHECKING``."""
    tree = ast.parse(Path(loader.__file__).read_text())
    [cls] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DataLoader"]
    [choice] = [node for node in cls.body if isinstance(node, ast.If)]
    [init] = choice.body
    assert isinstance(init, ast.FunctionDef)
    return init.args


def test_it_has_torchs_arguments_in_torchs_order_with_torchs_defaults() -> None:
    seen = seen_by_editors()
    defaults = [inspect.Parameter.empty, *(ast.literal_eval(value) for value in seen.defaults)]
    ours = dict(zip([arg.arg for arg in seen.args[1:]], defaults, strict=True))
    ours |= {
        arg.arg: ast.literal_eval(value) for arg, value in zip(seen.kwonlyargs, seen.kw_defaults, strict=True) if value
    }
    torchs = {name: each.default for name, each in list(inspect.signature(DataLoader.__init__).parameters.items())[1:]}

    assert ours.pop("config", ...) is None
    assert {name: default for name, default in ours.items() if name in torchs} == torchs
    assert set(ours) - set(torchs) <= {"in_order"}, "an argument that this torch does not have"
    assert [name for name in ours if name in torchs] == list(torchs)


def test_tools_see_it_too() -> None:
    names = list(inspect.signature(prefeed.DataLoader).parameters)

    assert names == [*inspect.signature(DataLoader).parameters, "config"]
