"""Commands of kubectl, and namespaces, for tests against a cluster of the user's."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from prefeed.cli.kubernetes import yaml_of

ROOT = Path(__file__).parents[2]
Document = dict[str, Any]


def kubectl(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, check=False)


def succeed(*words: str, text: str | None = None) -> str:
    result = kubectl(*words, text=text)
    assert result.returncode == 0, f"kubectl {' '.join(words)}: {result.stdout[-2000:]}{result.stderr[-2000:]}"
    return result.stdout


@contextlib.contextmanager
def new_namespace(level: str = "") -> Iterator[str]:
    """Create a namespace with a pod security level; delete it at the end."""
    name = f"prefeed-test-{secrets.token_hex(4)}"
    succeed("create", "namespace", name)
    if level:
        succeed("label", "namespace", name, f"pod-security.kubernetes.io/enforce={level}")
    try:
        yield name
    finally:
        succeed("delete", "namespace", name, "--wait=false")


def moved(documents: list[Document], namespace: str) -> str:
    """Return documents as YAML, with another namespace."""
    for each in documents:
        each["metadata"]["namespace"] = namespace
    return yaml_of(documents)


def documents_of(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text()))
