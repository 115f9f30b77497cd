"""Frameworks that make loaders of their own, or make ours anew: same batches, and files opened once.

A program that imports a framework takes seconds, so each trains several times; without prefeed there is one for all tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.frameworks import EPOCHS
from e2e.jobs import run_job, write_data
from slow_files import slow_files

pytestmark = pytest.mark.xdist_group(
    "frameworks"
)  # one warm process, and one training without prefeed, for all of them

LENGTH = 120

Case = tuple[str, str, int]
"""A framework, the kind of its data, and the number of its workers."""

CASES: list[tuple[str, int]] = [("declared", 0), ("declared", 2), ("learned", 2)]
ACCELERATE: list[Case] = [*(("accelerate", *case) for case in CASES), ("accelerate_seedable", "declared", 2)]
LIGHTNING: list[Case] = [("lightning", *case) for case in CASES]
TORCHDATA: list[Case] = [("torchdata", *case) for case in CASES]

ALONE = [*ACCELERATE, *LIGHTNING, *TORCHDATA]
TOGETHER: list[list[Case]] = [
    [case for case in ACCELERATE if case[1:] == ("declared", 2)],
    [("lightning", "declared", 2)],
]
"""What is trained in two processes; a process has one framework's groups."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what each rank sees of cases without prefeed; each file is opened once an epoch."""

    @cache
    def run(processes: int, cases: tuple[Case, ...]) -> dict[Case, list[Any]]:
        with ExitStack() as stack:
            given = [(case, stack.enter_context(slow_data(tmp_path_factory.mktemp("data"), case[1]))) for case in cases]
            out = tmp_path_factory.mktemp("plain") / "out"
            seen = train(out, [("torch", *training) for training in given], processes)
            assert [slow.opens() for case, slow in given if case[0] != "torchdata"] == [
                EPOCHS * LENGTH for case in cases if case[0] != "torchdata"
            ]
        return {case: [rank[number] for rank in seen] for number, case in enumerate(cases)}

    def plain(cases: Sequence[Case], processes: int = 1) -> list[list[Any]]:
        known = [ALONE] if processes == 1 else TOGETHER
        (these,) = [these for these in known if set(cases) <= set(these)]
        seen = run(processes, tuple(these))
        return [[seen[case][rank] for case in cases] for rank in range(processes)]

    return plain


def slow_data(root: Path, kind: str) -> Any:
    """Return files of a slow directory, whose opens are counted."""
    return slow_files(write_data(root / "data", kind, LENGTH))


def train(out: Path, trainings: Sequence[tuple[str, Case, Any]], processes: int = 1) -> list[Any]:
    """Return what each rank of a program saw with each loader of each case, over files of its own."""
    lines = [
        (loader, framework, str(slow.path), kind, num_workers)
        for loader, (framework, kind, num_workers), slow in trainings
    ]
    return run_job("frameworks", out, json.dumps(lines), str(LENGTH), processes=processes)


def check_served(
    tmp_path: Path, plain: Any, trainings: Sequence[tuple[str, Case]], *, processes: int = 1, alone: Sequence[Case] = ()
) -> None:
    """Train in one program, and compare with training without; epochs but the first must not come to the origin.

    Args:
        tmp_path: Of the test.
        plain: The fixture.
        trainings: Loaders and cases.
        processes: Ranks.
        alone: What is trained before, with loaders of ours that are not served.
    """
    cases = [*alone, *(case for _, case in trainings)]
    loaders = ["ours" for _ in alone] + [loader for loader, _ in trainings]
    with ExitStack() as stack:
        slow = [stack.enter_context(slow_data(tmp_path / str(at), kind)) for at, (_, kind, _) in enumerate(cases)]
        seen = train(tmp_path / "served", list(zip(loaders, cases, slow, strict=True)), processes)
        opens = [one.opens() for one in slow]
        assert opens == [EPOCHS * LENGTH for _ in alone] + [LENGTH for _ in trainings]
    assert seen == plain(cases, processes)
    assert all(epochs[0] != epochs[1] for epochs in seen[0])  # the order is another each epoch
    statistics = prefeed.statistics()
    num_samples = LENGTH * len(trainings)
    assert statistics.reads == EPOCHS * num_samples
    assert statistics.hits + statistics.late >= 0.97 * (EPOCHS - 1) * num_samples
    assert statistics.direct_reads == 0
    num_declared = LENGTH * [kind for _, (_, kind, _) in trainings].count("declared")
    assert statistics.misses <= num_samples - num_declared + 0.05 * num_declared  # read ahead, in the right order


def test_accelerate(tmp_path: Path, plain: Any) -> None:
    check_served(tmp_path, plain, [("auto", case) for case in ACCELERATE])


def test_accelerate_makes_torchs_loader_of_ours(tmp_path: Path, plain: Any) -> None:
    """So ours alone is not served there, and right all the same; with ``prefeed.auto`` it is."""
    case: Case = ("accelerate", "declared", 2)
    check_served(tmp_path, plain, [("both", case)], alone=[case])


def test_accelerate_in_two_processes(tmp_path: Path, plain: Any) -> None:
    check_served(tmp_path, plain, [("auto", case) for case in TOGETHER[0]], processes=2)


def test_lightning(tmp_path: Path, plain: Any) -> None:
    check_served(tmp_path, plain, [("auto", case) for case in LIGHTNING])


def test_lightnings_sanity_check_is_no_epoch_and_its_loaders_have_names(tmp_path: Path) -> None:
    """Nor is an epoch of ``limit_train_batches``; what is evaluated whole is numbered from 1."""
    with slow_data(tmp_path / "data", "declared") as slow:
        train(tmp_path / "out", [("auto", ("lightning_checked", "declared", 0), slow)])
        assert slow.opens() == LENGTH
    found: dict[str, list[tuple[int, int]]] = {}
    for one in prefeed.statistics().epochs:
        found.setdefault(one.loader, []).append((one.epoch, one.batches))
    whole = [(number, LENGTH // 4) for number in (1, 2)]
    assert sorted(found.values()) == [[(1, 2), (2, 2)], whole, whole]  # evaluated in part; trained; evaluated whole
    assert all(name.startswith("ImageFolder-") for name in found)


def test_lightning_with_a_loader_of_ours(tmp_path: Path, plain: Any) -> None:
    check_served(tmp_path, plain, [("ours", ("lightning", "declared", 2))])


def test_lightning_in_two_processes(tmp_path: Path, plain: Any) -> None:
    """With a loader of ours first, for what serves torch's stays."""
    check_served(tmp_path, plain, [(loader, TOGETHER[1][0]) for loader in ("ours", "auto")], processes=2)


def test_torchdata_is_left_alone(tmp_path: Path, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader keeps state that ours does not; batches and states are as without."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    with ExitStack() as stack:
        slow = {kind: stack.enter_context(slow_data(tmp_path / kind, kind)) for kind in ("declared", "learned")}
        seen = train(tmp_path / "served", [("auto", case, slow[case[1]]) for case in TORCHDATA])
    assert seen == plain(TORCHDATA)
    assert prefeed.statistics().reads == 0


@pytest.mark.whole
@pytest.mark.parametrize(
    "options",
    [
        {"overfit_batches": 2},
        {"devices": 2, "strategy": "ddp"},
        {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False},
    ],
    ids=["overfit_batches", "devices", "own sampler"],
)
def test_lightning_makes_a_subclass_with_another_argument_again(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    for index in range(12):
        (root / f"{index:02}").write_text(str(index))
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    program = Path(__file__).parent / "lightning_subclass.py"
    seen = []
    for name, command in (("plain", []), ("served", ["-m", "prefeed", "run"])):
        arguments = [str(program), str(root), str(tmp_path / name), json.dumps(options)]
        subprocess.run(
            [sys.executable, *command, *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=600,
        )
        seen.append([json.loads(path.read_text()) for path in sorted(tmp_path.glob(f"{name}.*"))])
    assert seen[0] == seen[1]
    assert len(seen[0]) == options.get("devices", 1)
    assert all(rank[:2] == ["Loader", "mine"] for rank in seen[1])
    assert prefeed.statistics().reads > 0
