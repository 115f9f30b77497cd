"""What ``prefeed.auto`` says, to whom, and what is left of it."""

from __future__ import annotations

import builtins
import importlib
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as TorchIter

from limits import set_limits

pytestmark = pytest.mark.usefixtures("sandbox")

TORCHS = vars(TorchIter)["__init__"]
OPEN = builtins.open


@pytest.fixture(autouse=True)
def _auto() -> Iterator[None]:
    import prefeed.auto

    prefeed.auto.enable()
    yield
    prefeed.auto.disable()


@contextmanager
def nothing_configured() -> Iterator[logging.Logger]:
    """Inside it, the logger is as in a program that configured no logging."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        yield logging.getLogger("prefeed")


def test_enabled_and_disabled_any_number_of_times() -> None:
    import prefeed.auto

    prefeed.auto.enable()
    assert vars(TorchIter)["__init__"] is not TORCHS
    for _ in range(2):
        prefeed.auto.disable()
        assert vars(TorchIter)["__init__"] is TORCHS
        assert (builtins.open, io.open) == (OPEN, OPEN)
        log = logging.getLogger("prefeed")
        assert (log.handlers, log.filters, log.level) == ([], [], logging.NOTSET)


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import prefeed.auto

    prefeed.auto.disable()
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    prefeed.auto.enable()
    assert vars(TorchIter)["__init__"] is TORCHS
    assert logging.getLogger("prefeed").handlers == []


def test_bad_setting_is_said_and_no_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import prefeed.auto

    prefeed.auto.disable()
    monkeypatch.setenv("PREFEED_MEMORY", "much")
    prefeed.auto.enable()
    assert vars(TorchIter)["__init__"] is TORCHS
    assert "off in this process: PREFEED_MEMORY: 'much' is not a size" in caplog.text


def test_seen_by_who_configured_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with nothing_configured() as log:
        log.info("prefeed: one")
        log.warning("two %d", 2)
        log.debug("three")

    assert capsys.readouterr().err == "prefeed: one\nprefeed: two 2\n"


def test_users_handler_and_level_hold(capsys: pytest.CaptureFixture[str]) -> None:
    seen = io.StringIO()
    with nothing_configured() as log:
        logging.getLogger().addHandler(logging.StreamHandler(seen))
        log.info("not at the root's level")
        log.warning("told")
        assert (seen.getvalue(), capsys.readouterr().err) == ("told\n", "")

        log.setLevel(logging.ERROR)
        log.warning("not at the logger's own level")
        assert (seen.getvalue(), capsys.readouterr().err) == ("told\n", "")
        log.setLevel(logging.NOTSET)


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "import sys, prefeed.auto\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "finders = list(sys.meta_path)\n"
        "from torch.utils.data import DataLoader\n"
        "import prefeed\n"
        "assert isinstance(DataLoader([1]), prefeed.DataLoader)\n"
        "prefeed.auto.disable()\n"
        "assert len(sys.meta_path) == len(finders) - 1\n"
        "assert not isinstance(DataLoader([1]), prefeed.DataLoader)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_bound_before_torch_came() -> None:
    code = (
        "import prefeed.auto\n"
        "from cv2 import imread\n"
        "from prefeed.interception.asking import original_of\n"
        "assert original_of(imread) is not imread\n"
        "prefeed.auto.disable()\n"
        "import cv2\n"
        "assert original_of(imread) is cv2.imread is original_of(cv2.imread)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_disabled_before_torch_came() -> None:
    code = (
        "import prefeed.auto\n"
        "prefeed.auto.disable()\n"
        "from torch.utils.data import DataLoader\n"
        "import prefeed\n"
        "assert not isinstance(DataLoader([1]), prefeed.DataLoader)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("counting", "ahead"), [(True, True), (True, False), (False, True)])
def test_the_server_starts_while_a_framework_is_imported_under_prefeed_run(
    counting: bool, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prefeed.auto
    from prefeed.client import launch
    from prefeed.config import configure
    from prefeed.run_summary import counters

    started: list[str] = []
    monkeypatch.setattr(launch, "start_ahead", lambda config: started.append(config.home_id))
    monkeypatch.setattr(counters, "is_counting", lambda: counting)
    set_limits(monkeypatch, start_ahead=ahead)
    monkeypatch.setenv("PREFEED_ROOTS", "/data")
    configure()
    prefeed.auto._start_server()
    assert len(started) == (counting and ahead)
    set_limits(monkeypatch, start_ahead=True)
    monkeypatch.delenv("PREFEED_ROOTS")
    configure()


def test_webdatasets_shards_are_read_ahead_when_it_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules import each other: one of them is there before its class that is replaced."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "webdataset"]:
        monkeypatch.delitem(sys.modules, name)
    import prefeed.auto

    prefeed.auto.enable()
    webdataset = importlib.import_module("webdataset")
    assert hasattr(webdataset.cache.StreamingOpen.__call__, "of_webdataset")
    assert "prefeed" in sys.modules["webdataset.gopen"].gopen_schemes
    for name in [name for name in sys.modules if name.partition(".")[0] == "webdataset"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_worker_that_is_spawned_follows_the_first_file_of_hugging_faces_stream(tmp_path: Path) -> None:
    """Its files are split before one of them is opened: nothing of prefeed's but this hook is imported by then."""
    code = (
        "import sys, types\n"
        "sys.modules['datasets'] = types.ModuleType('datasets')\n"
        "sys.modules['datasets'].__path__ = [sys.argv[1]]\n"
        "import prefeed.auto\n"
        "import datasets.iterable_dataset\n"
        "assert 'prefeed.files' not in sys.modules\n"
        "urls = [f'prefeed://s3://b/{number}' for number in range(2)]\n"
        "next(iter(datasets.iterable_dataset._split_gen_kwargs(urls)))\n"
        "from prefeed.loaders import hugging_face\n"
        "assert hugging_face.following('s3://b/0') == 's3://b/1'\n"
    )
    (tmp_path / "iterable_dataset.py").write_text(
        "def _split_gen_kwargs(urls):\n    return [{'files': [url]} for url in urls]\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
