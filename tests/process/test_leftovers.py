"""What a killed server was about to read is removed by the next one."""

from __future__ import annotations

from prefeed.client.launch import start_server
from prefeed.config import resolve
from prefeed.wire.endpoint import ensure_private_dir


def test_files_in_transit_are_removed_at_start() -> None:
    config = resolve()
    ensure_private_dir(config.runtime_dir)
    left = [config.runtime_dir / name for name in ("transit-abc.u32", "transit-abc")]
    for path in left:
        path.write_bytes(b"\0" * 8)
    start_server(config)
    assert not any(path.exists() for path in left)
