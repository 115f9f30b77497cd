"""A file that never answers: torch's time-out ends the wait, and names the file; all other samples are served meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.hashed import Hashed, kept, name_of, write_hashed
from leaks import wait_until
from limits import set_limits
from slow_files import slow_files

NUM_SAMPLES = 24
HUNG = 9


@pytest.mark.parametrize("in_place", [False, True])
def test_time_out_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    if in_place:
        set_limits(monkeypatch, read_in_place=True, start_ahead=True)
    source = write_hashed(tmp_path / "data", Hashed(tmp_path / "data", NUM_SAMPLES))
    with slow_files(source, silent=name_of(HUNG)) as slow:
        dataset = Hashed(slow.path, NUM_SAMPLES)
        loader: Any = prefeed.DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=kept, timeout=60)
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(HUNG // 4)]
        assert wait_until(lambda: name_of(HUNG) in slow.reads_by_file(), timeout_seconds=60)
        iterator._timeout = 1  # as if it had been that long from the start, on a machine of any speed
        assert str(slow.path / name_of(HUNG)) in timed_out(iterator)
        if not in_place:
            assert wait_until(lambda: prefeed.statistics().reads >= NUM_SAMPLES - 8, timeout_seconds=60)
    truth = Hashed(source, NUM_SAMPLES)
    assert [sample for batch in seen for sample in batch] == [truth[index] for index in range(HUNG // 4 * 4)]
    iterator._shutdown_workers()


def timed_out(iterator: Any) -> str:
    """Return what torch's error says; nothing refers to the loader's workers any more."""
    with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 1 seconds") as caught:
        next(iterator)
    return str(caught.value.with_traceback(None))
