"""Run by a test in a control group: fills the tier, then grows until there is hardly room for the tier; prints what it saw."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import prefeed
from leaks import wait_until

MIB = 1024**2
STEP_BYTES = 24 * MIB


def main(root: str, usage: str, limit_bytes: int) -> None:
    """Hold more and more memory while all files are read, again and again."""

    def used() -> int:
        return int(Path(usage).read_text())

    paths = sorted(Path(root).iterdir())
    dataset = prefeed.datasets.Objects(root)
    wrong = sum(dataset[index] != path.read_bytes() for index, path in enumerate(paths))
    with prefeed.client.node.NodeClient.connect(prefeed.config.current()) as node:
        before, server = node.statistics(), node.status().pid
    held: list[bytearray] = []
    target = limit_bytes - 160 * MIB
    base = used() - before.resident_bytes
    while base + len(held) * STEP_BYTES < target:
        wait_until(lambda: used() <= limit_bytes - 2 * STEP_BYTES, timeout_seconds=60)
        held.append(bytearray(b"x") * STEP_BYTES)
        index = len(held) % len(paths)
        wrong += dataset[index] != paths[index].read_bytes()
    wrong += sum(dataset[index] != path.read_bytes() for index, path in enumerate(paths))
    with prefeed.client.node.NodeClient.connect(prefeed.config.current()) as node:
        pressed, status = node.statistics(), node.status()
    num_held = len(held)
    held.clear()
    deadline = time.monotonic() + 60

    def grown() -> bool:
        with prefeed.client.node.NodeClient.connect(prefeed.config.current()) as node:
            return node.statistics().budget_bytes > pressed.budget_bytes + 100 * MIB

    wait_until(grown, timeout_seconds=max(1.0, deadline - time.monotonic()))
    wrong += sum(dataset[index] != path.read_bytes() for index, path in enumerate(paths))
    print(
        json.dumps(
            {
                "wrong": wrong,
                "same_server": status.pid == server,
                "held": num_held * STEP_BYTES,
                "before": [before.resident_bytes, before.budget_bytes],
                "pressed": [pressed.resident_bytes, pressed.budget_bytes],
                "errors": pressed.errors,
                "notices": status.notices,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
