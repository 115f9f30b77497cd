"""Names and paths of the volumes in the containers of a pod with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/run/prefeed")
STATE: Final = ROOT / "state"
"""Volume with the home and the runtime directory. In mode pod it is deleted with the pod."""

MEMORY: Final = ROOT / "memory"
DISK: Final = ROOT / "disk"
DOCUMENTS: Final = ROOT / "set"
SECRETS: Final = ROOT / "secrets"
"""One directory per secret, with a file per key."""

HOME: Final = STATE / "home"
RUNTIME: Final = STATE / "run"
MEMORY_TIER: Final = MEMORY / "tier"
DISK_TIER: Final = DISK / "tier"
OWN: Final = (HOME, RUNTIME, MEMORY_TIER, DISK_TIER)
"""Directories that the sidecar creates for its user only, because the volumes are writable for all users."""

DOCUMENT: Final = "sampleset.yaml"
"""Key of the ConfigMap under which the set is stored."""

JOBS: Final = "samplejobs.yaml"
"""Key of the ConfigMap under which the jobs of the sidecars are stored."""

SIDECAR: Final = "prefeed-node"
PREFIX: Final = "prefeed-"
"""Prefix of the names of volumes and ConfigMaps."""

ENVIRONMENT: Final = {"PREFEED_HOME": str(HOME), "XDG_RUNTIME_DIR": str(RUNTIME)}
"""Variables that locate the set and its server."""

READERS: Final = {**ENVIRONMENT, "PREFEED_AUTOSTART": "0"}
"""``ENVIRONMENT`` for training containers. Only the sidecar starts a server, because it has the memory for one."""
