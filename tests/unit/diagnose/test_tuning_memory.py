from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prefeed.diagnose.tune.search import Settings
from prefeed.diagnose.tune.trials import (
    Free,
    Needs,
    batch_bytes,
    cpu_seconds,
    free_memory,
    parse_cpu_ticks,
    parse_private,
    parse_read,
    private_bytes,
    read_bytes,
    refusal,
)

pytestmark = pytest.mark.usefixtures("sandbox")

GIB = 1 << 30
EIGHT = Settings(num_workers=8, prefetch_factor=4)
NEEDS = Needs(worker_bytes=GIB, batch_bytes=100 << 20)
PLENTY = Free(memory_bytes=100 * GIB, shared_bytes=100 * GIB)


def test_what_fits_is_not_refused() -> None:
    assert refusal(EIGHT, NEEDS, PLENTY) is None
    assert refusal(Settings(num_workers=0), NEEDS, Free(memory_bytes=0, shared_bytes=0)) is None


def test_workers_and_batches_together_are_too_much() -> None:
    total, shared = NEEDS.of(EIGHT)
    assert total >= 8 * GIB + shared
    assert shared >= 32 * (100 << 20)
    reason = refusal(EIGHT, NEEDS, Free(memory_bytes=total - 1, shared_bytes=100 * GIB))
    assert reason is not None
    assert "13.35 GiB of memory" in reason
    assert refusal(EIGHT, NEEDS, Free(memory_bytes=total, shared_bytes=shared)) is None


def test_shared_memory_too_small() -> None:
    reason = refusal(EIGHT, NEEDS, Free(memory_bytes=100 * GIB, shared_bytes=64 << 20))
    assert reason is not None
    assert "--shm-size" in reason


def test_cache_of_a_trial_with_lookahead_counts() -> None:
    settings = Settings(num_workers=0, lookahead=4 * GIB)
    assert refusal(settings, NEEDS, Free(memory_bytes=7 * GIB, shared_bytes=100 * GIB)) is not None
    assert refusal(settings, NEEDS, PLENTY) is None


def test_kernel_texts() -> None:
    assert parse_private("Rss: 9 kB\nPrivate_Clean:  3 kB\nPrivate_Dirty: 4 kB\n") == 7 * 1024
    assert parse_private("") == 0
    assert parse_cpu_ticks("1 (a) b) S 1 1 1 0 -1 4 1 0 0 0 30 12 0 0 20") == 42
    assert parse_cpu_ticks("") == 0
    assert parse_read("rchar: 10\nwchar: 99\nread_bytes: 4096\n") == 4096
    assert parse_read("rchar: 10000\nread_bytes: 4096\n") == 10000


def test_memory_of_this_machine() -> None:
    free = free_memory()
    assert 0 < free.memory_bytes < 1 << 50
    assert free.shared_bytes > 0


def test_a_process_with_memory_of_its_own() -> None:
    program = "held = bytearray(64 << 20); print(len(held), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        (private,) = private_bytes([process.pid])
        process.communicate("\n")
    assert 64 << 20 <= private < 128 << 20
    assert private_bytes([process.pid]) == []


def test_processor_time_and_reads_of_this_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    before, cpus = read_bytes([os.getpid()]), cpu_seconds([os.getpid()])
    (tmp_path / "file").read_bytes()
    assert read_bytes([os.getpid()]) - before >= 1 << 20
    assert cpu_seconds([os.getpid()]) >= cpus > 0


def test_bytes_of_nested_batches() -> None:
    assert batch_bytes([torch.zeros(4, 4), {"a": torch.zeros(2, dtype=torch.uint8)}]) == 66
    assert batch_bytes(["text", 3]) == 0
