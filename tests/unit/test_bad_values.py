"""Values that cannot be used: refused at once, in words that say what was given and what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import prefeed
from prefeed.config import EVERYTHING, GIB, SETTINGS, DiskBudget, resolve, settings_of
from prefeed.datasets.origin import sample_index
from prefeed.errors import ConfigError
from prefeed.places import default_home, near, user_file

NO_TOML = Path("/nonexistent/prefeed.toml")
SIZES = ("memory", "disk")
TIMES = ("idle_timeout", "report_interval")

BAD = [
    *((name, 8, "8 means 8 bytes; write the unit, as in 8GiB") for name in SIZES),
    *((name, 8.5, "8.5 is not a whole number of bytes; write the unit, as in 8.5GiB") for name in SIZES),
    ("memory", "8", "'8' means 8 bytes; write the unit, as in 8GiB, or 8B"),
    ("memory", "8.5", "'8.5' is not a whole number of bytes"),
    ("memory", True, "True is not a number"),
    ("memory", np.True_, "is not a number"),
    ("memory", -1, "negative: -1"),
    ("memory", "-8GiB", "negative: '-8GiB'"),
    ("memory", math.nan, "nan is not a number that can be used"),
    ("memory", math.inf, "inf is not a number that can be used"),
    ("memory", 10**30, "more than any machine has"),
    ("memory", b"8GiB", "b'8GiB' is not a size; write it like 8GiB"),
    ("memory", Path("8GiB"), "is not a size"),
    ("memory", [8], "is not a size"),
    ("fetch_processes", 2.7, "2.7 is not a whole number"),
    ("fetch_processes", "many", "'many' is not a whole number"),
    ("fetch_processes", True, "True is not a number"),
    ("fetch_processes", 65, "must be 0 to 64"),
    ("fetch_processes", b"5", "b'5' is not a whole number"),
    ("fetch_processes", math.nan, "nan is not a number"),
    ("disk", "lots:/nvme", "'lots' is not a size"),
    ("disk", "8:/nvme", "'8' means 8 bytes; write the unit"),
    ("disk", "8GiB:", "the path is empty"),
    *((name, "soon", "'soon' is not a number of seconds") for name in (*TIMES, "listing_age")),
    *((name, math.nan, "nan") for name in (*TIMES, "listing_age")),
    *((name, "nan", "'nan' is not a number of seconds") for name in (*TIMES, "listing_age")),
    *((name, True, "True is not a number") for name in (*TIMES, "listing_age")),
    *((name, b"1", "b'1' is not a number of seconds") for name in (*TIMES, "listing_age")),
    *((name, -1, "negative: -1") for name in (*TIMES, "listing_age")),
    *((name, "inf", "at most 1,000,000,000 seconds") for name in TIMES),
    *((name, 10**30, "seconds") for name in TIMES),
    *((name, 5, "5 is not a path; write the name of a directory") for name in ("home", "memory_dir")),
    *((name, b"/x", "b'/x' is not a path") for name in ("home", "memory_dir")),
    *((name, Path, "is not a path") for name in ("home", "memory_dir")),
    *((name, "", "the path is empty") for name in ("home", "memory_dir")),
    ("roots", 5, "5 names no directories; write a list of paths"),
    ("roots", [5], "[5] names no directories"),
    ("pool", 5, "5 names no pool servers; write host:port"),
    ("pool", [5], "[5] names no pool servers"),
    ("pool", "host", "'host' is not a pool server"),
    ("metrics", 8.5, "8.5 is not an address"),
    ("metrics", True, "True is not an address"),
    ("enabled", 2, "2 is neither true nor false"),
    ("enabled", "maybe", "'maybe' is neither"),
    ("enabled", b"1", "b'1' is neither"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "text"), BAD, ids=[f"{name}={value!r}" for name, value, _ in BAD])
def test_a_setting_says_what_it_was_given_and_what_to_write(name: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve({name: value}, environ={}, toml_path=NO_TOML)
    assert str(raised.value).startswith(f"{name}: ")
    assert text in str(raised.value)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("memory", np.int64(8 * GIB), 8 * GIB),
        ("memory", 8e9, 8_000_000_000),
        ("memory", "8B", 8),
        ("memory", 4096, 4096),
        ("memory", " 8GiB ", 8 * GIB),
        ("memory", 2**53 + 1, 2**53 + 1),
        ("disk", 0, DiskBudget()),
        ("disk", "auto", DiskBudget(EVERYTHING)),
        ("disk", "500GB:/nvme", DiskBudget(500 * 10**9, Path("/nvme"))),
        ("disk", "auto:/a:b", DiskBudget(EVERYTHING, Path("/a:b"))),
        ("fetch_processes", np.int32(7), 7),
        ("fetch_processes", 7.0, 7),
        ("fetch_processes", " 7 ", 7),
        ("idle_timeout", np.float32(1.5), 1.5),
        ("listing_age", math.inf, math.inf),
        ("listing_age", "inf", math.inf),
        ("memory_dir", Path("/x"), Path("/x")),
        ("roots", Path("/x"), ("/x",)),
        ("roots", [Path("/x"), "/y"], ("/x", "/y")),
    ],
    ids=repr,
)
def test_a_setting_takes_what_means_the_same(name: str, value: Any, taken: Any) -> None:
    assert getattr(resolve({name: value}, environ={}, toml_path=NO_TOML), name) == taken


def test_blanks_around_a_variable_do_not_count() -> None:
    environ = {"PREFEED_MEMORY_DIR": " /dev/shm ", "PREFEED_FETCH_PROCESSES": "\t7\n", "PREFEED_ENABLED": " 0 "}
    config = resolve(environ=environ, toml_path=NO_TOML)
    assert (config.memory_dir, config.fetch_processes, config.enabled) == (Path("/dev/shm"), 7, False)


@pytest.mark.parametrize("name", ["memroy", "Memory", "listingage", "idle_time_out"])
def test_a_misspelt_setting_is_told_which_was_meant(name: str, tmp_path: Path) -> None:
    meant = near(name, SETTINGS)
    assert meant
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'; did you mean '{meant}'\\?"):
        prefeed.configure(**{name: "8GiB"})
    toml = tmp_path / "prefeed.toml"
    toml.write_text(f'{name} = "8GiB"\n')
    with pytest.raises(ConfigError, match=f"prefeed.toml: unknown setting '{name}'; did you mean '{meant}'\\?"):
        resolve(environ={}, toml_path=toml)


def test_a_setting_like_no_other_is_told_all_of_them() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'zzz'; the settings are enabled, home"):
        prefeed.configure(zzz=1)


def test_a_misspelt_variable_is_named_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.places._said", set())
    for _ in range(2):
        resolve(environ={"PREFEED_LISTINGAGE": "1GiB", "PREFEED_DOCTOR": "x", "PREFEED_AUTO": "1"}, toml_path=NO_TOML)
    assert [record.getMessage() for record in caplog.records] == [
        "prefeed: PREFEED_LISTINGAGE is not a setting and is ignored; did you mean PREFEED_LISTING_AGE?"
    ]


@pytest.mark.parametrize("value", ["8GiB", "500MB", "/data/train", "host:11211", "yes"])
def test_a_text_without_quotes_is_told_to_be_quoted(value: str, tmp_path: Path) -> None:
    toml = tmp_path / "prefeed.toml"
    toml.write_text(f"fetch_processes = 3  # fine\nmemory = {value} # mine\n")
    with pytest.raises(ConfigError, match=f'put the value into quotes: memory = "{value}"'):
        resolve(environ={}, toml_path=toml)


@pytest.mark.parametrize("config", [{"memory": "8GiB"}, "8GiB", 8, resolve], ids=["dict", "text", "number", "function"])
@pytest.mark.parametrize(
    "call",
    [
        lambda config: prefeed.DataLoader([1, 2, 3], config=config),
        lambda config: prefeed.datasets.Objects("/", config=config),
        lambda config: prefeed.datasets.ImageFolder("/", config=config),
        lambda config: prefeed.read("/x", config=config),
        lambda config: prefeed.statistics(config=config),
        lambda config: prefeed.DatasetCache(1, config=config),
        lambda config: prefeed.CachedDataset([1, 2], config=config),
    ],
    ids=["DataLoader", "Objects", "ImageFolder", "read", "statistics", "DatasetCache", "CachedDataset"],
)
def test_settings_of_another_type_are_refused_at_once(call: Callable[[Any], Any], config: Any) -> None:
    with pytest.raises(ConfigError, match=r"config must be a prefeed\.Config, not .*prefeed\.configure\("):
        call(config)


def test_settings_that_are_given_are_taken() -> None:
    config = resolve({"fetch_processes": 3}, environ={}, toml_path=NO_TOML)
    assert settings_of(config) is config


@pytest.mark.parametrize("loader", [[1, 2, 3], None, "loader", iter([1])], ids=["list", "None", "text", "iterator"])
def test_tune_and_doctor_take_loaders_only(loader: Any) -> None:
    with pytest.raises(TypeError, match=r"prefeed\.tune takes a torch\.utils\.data\.DataLoader, not "):
        prefeed.tune(loader, budget=1)
    with pytest.raises(TypeError, match=r"prefeed\.doctor takes a torch\.utils\.data\.DataLoader, not "):
        prefeed.doctor(loader, print)


def test_tune_and_doctor_take_steps_that_can_be_called_and_numbers() -> None:
    loader: Any = torch.utils.data.DataLoader([1, 2, 3])  # type: ignore[arg-type]
    for step in (None, 3):
        with pytest.raises(TypeError, match=r"doctor takes a step that is called with each batch, not"):
            prefeed.doctor(loader, step)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tune takes a step that is called with each batch, not 3"):
        prefeed.tune(loader, 3)  # type: ignore[arg-type]
    for budget in (math.nan, "1", True):
        with pytest.raises(ValueError, match="budget must be a number of seconds"):
            prefeed.tune(loader, budget=budget)  # type: ignore[arg-type]
    for steps in (1, 2.5, True):
        with pytest.raises(ValueError, match="at least 2 steps to be timed, a whole number, not"):
            prefeed.doctor(loader, print, steps=steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, True, b"1", math.nan])
def test_generators_take_numbers_of_bytes_and_of_items(value: Any) -> None:
    with pytest.raises(ValueError, match="max_bytes must be a number of bytes, or text such as"):
        prefeed.BackgroundGenerator([1], max_bytes=value)
    with pytest.raises(ValueError, match="max_prefetch must be a whole number"):
        prefeed.BackgroundGenerator([1], max_prefetch=value)
    with pytest.raises(ValueError, match="'much' is not a size; write it like 8GiB"):
        prefeed.BackgroundGenerator([1], max_bytes="much")
    with pytest.raises(ValueError, match="depth must be a whole number"):
        prefeed.DevicePrefetcher([1], depth=value)


@pytest.mark.parametrize("index", [slice(0, 2), 1.0, "1", None, [0, 1], np.array([0, 1])], ids=repr)
def test_a_sample_is_asked_for_by_its_number(index: Any) -> None:
    with pytest.raises(TypeError, match=r"the index of a sample must be an integer from 0 to 2, not .*Subset"):
        sample_index(index, 3)


def test_numbers_of_samples_are_of_any_type_of_whole_numbers() -> None:
    found = [sample_index(index, 3) for index in (1, -1, np.int64(2), np.uint8(0), torch.tensor(1))]  # type: ignore[list-item]
    assert found == [1, 2, 2, 0, 1]
    for index in (3, -4, np.int64(3)):
        with pytest.raises(IndexError, match="of 3"):
            sample_index(index, 3)


def test_home_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is no absolute path does not count; without any, there is nothing that anybody could write to."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_home() == tmp_path / ".cache/prefeed"
    assert resolve({"home": "~/x"}, environ={}, toml_path=NO_TOML).home == tmp_path / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_home() == tmp_path / ".cache/prefeed"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_home() == Path("/cache/prefeed")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("prefeed.places.pwd.getpwuid", lambda user: {}[user])
    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        assert default_home() == user_file().parents[1] / "prefeed" == Path("/dev/null/no-home-directory/prefeed")
        with pytest.raises(ConfigError, match=r"'~/x': the home directory of ~ is unknown"):
            resolve({"home": "~/x"}, environ={}, toml_path=NO_TOML)
