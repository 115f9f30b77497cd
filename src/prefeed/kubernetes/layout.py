"""Where the volumes of a pod with a cache lie in its containers, and what they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/run/prefeed")
STATE: Final = ROOT / "state"
"""Of the pod; lost with it. Below are the home and the runtime directory."""

MEMORY: Final = ROOT / "memory"
DISK: Final = ROOT / "disk"
DOCUMENTS: Final = ROOT / "set"
SECRETS: Final = ROOT / "secrets"
"""One directory for each secret, with a file for each key."""

HOME: Final = STATE / "home"
RUNTIME: Final = STATE / "run"
MEMORY_TIER: Final = MEMORY / "tier"
DISK_TIER: Final = DISK / "tier"
OWN: Final = (HOME, RUNTIME, MEMORY_TIER, DISK_TIER)
"""Directories that the sidecar makes, for its user alone: anybody may write to the volumes themselves."""

DOCUMENT: Final = "sampleset.yaml"
"""Key of a ConfigMap: the set, and ..."""

JOBS: Final = "samplejobs.yaml"
"""... the jobs that its sidecars run."""

SIDECAR: Final = "prefeed-node"
PREFIX: Final = "prefeed-"
"""Of the names of volumes and ConfigMaps."""

ENVIRONMENT: Final = {"PREFEED_HOME": str(HOME), "XDG_RUNTIME_DIR": str(RUNTIME)}
"""By which a program finds the set and its server."""

READERS: Final = {**ENVIRONMENT, "PREFEED_AUTOSTART": "0"}
"""The same for containers that train: only the sidecar starts a server, with the memory that it was given."""
