"""Measures how often docstrings and comments use constructions that make an engineer read twice.

The constructions are those of the tables in CONTRIBUTING.md. They are counted per 1,000 words of all docstrings and comments. The count is a
thermometer: a sentence that avoids a word and keeps the construction has not improved.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

CONSTRUCTIONS: Final = re.compile(
    r"\b[Ww]hat\b|\b([Ww]ho|[Ww]hoever|[Ww]hom|[Ss]omebody|[Nn]obody|[Aa]nybody)\b|(^|: )Of (?!course)"
    r"|\b(says?|said|tells?|told|asks?|asked|hears?|heard)\b"
    r"|\b(meanwhile|from now on|any more|no more|by now|is over|are over|is gone|are gone)\b"
    r"|\b([Ss]o (long|many|much)|that (many|long|much))\b|\b(lies|lie|lay)\b|\bbeside\b|\bbehind\b"
    r"|\b(can be had|to be had|is none|are none)\b|\b(True|False) (of|while)\b|\b[Ll]ets? go\b|\bin the place of\b"
)


def rate_of(paths: Iterable[Path]) -> float:
    """Return the constructions per 1,000 words of the docstrings and comments of Python files."""
    texts = [text for path in paths for text in texts_of(path.read_text())]
    num_words = sum(len(text.split()) for text in texts)
    return 1000 * sum(len(CONSTRUCTIONS.findall(text)) for text in texts) / max(1, num_words)


def texts_of(source: str) -> Iterator[str]:
    """Yield each docstring, docstring of an attribute, and comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield docstring
            for assigned, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(assigned, ast.Assign | ast.AnnAssign) and _is_text(text):
                    yield text.value.value  # type: ignore[attr-defined]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
