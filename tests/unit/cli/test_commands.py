"""Every command's output, exit code and JSON, with a fake node server."""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fake_backend import STATISTICS, STATUS, WARM, FakeBackend
from prefeed.cli import options, warm
from prefeed.config import SETTINGS, resolve
from prefeed.errors import AccessDeniedError
from prefeed.types import SessionCounts
from prefeed.wire.endpoint import make_runtime_dir

COMMANDS = [
    (["server", "start"], False),
    (["server", "start", "--foreground"], False),
    (["server", "status"], True),
    (["server", "stop"], True),
    (["stats"], True),
    (["warm", "s3://bucket/train"], True),
    (["clear", "--all"], True),
]
NEED_A_SERVER = [["server", "status"], ["stats"]]
JSON_IDS = [" ".join(arguments) for arguments, _ in COMMANDS]


@pytest.mark.parametrize(("arguments", "running"), COMMANDS, ids=JSON_IDS)
def test_succeeds_with_text_on_stdout_and_nothing_on_stderr(run, arguments: list[str], running: bool) -> None:
    result = run(FakeBackend(running=running), *arguments)

    assert result.exit_code == 0
    assert result.stdout or "--foreground" in arguments
    assert result.stderr == ""


@pytest.mark.parametrize(("arguments", "running"), COMMANDS, ids=JSON_IDS)
def test_json_is_one_object_and_nothing_else(run, arguments: list[str], running: bool) -> None:
    result = run(FakeBackend(running=running), *arguments, "--json")

    assert result.exit_code == 0
    assert isinstance(json.loads(result.stdout), dict)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", NEED_A_SERVER, ids=" ".join)
def test_without_a_server_says_so_and_ends_with_3(run, arguments: list[str]) -> None:
    backend = FakeBackend(running=False)

    result = run(backend, *arguments)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr == f"prefeed: no server is running for {os.environ['PREFEED_HOME']}\n"
    assert not backend.running


@pytest.mark.parametrize("arguments", NEED_A_SERVER, ids=" ".join)
def test_json_error_is_one_object_too(run, arguments: list[str]) -> None:
    result = run(FakeBackend(running=False), *arguments, "--json")

    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["code"] == "server-unavailable"
    assert result.stderr.startswith("prefeed: ")


@pytest.mark.parametrize("arguments", [["warm", "s3://b"], ["clear", "--all"]], ids=" ".join)
def test_no_server_and_no_autostart_ends_with_1(run, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")

    result = run(FakeBackend(running=False), *arguments)

    assert result.exit_code == 1
    assert result.stderr.startswith("prefeed: no server is running")


@pytest.mark.parametrize(
    "arguments",
    [
        ["clear"],
        ["clear", "s3://b", "--all"],
        ["warm"],
        ["nonsense"],
        ["server", "nonsense"],
        ["stats", "--nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(run, arguments: list[str]) -> None:
    backend = FakeBackend()

    result = run(backend, *arguments)

    assert result.exit_code == 2
    assert backend.calls == []
    assert "Usage: " in result.stderr


def test_bad_setting_is_one_line_that_names_it(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", "lots")

    result = run(FakeBackend(), "stats")

    assert result.exit_code == 1
    assert result.stderr == "prefeed: PREFEED_MEMORY: 'lots' is not a size; write it like 8GiB, 500MB or 4096\n"


def test_twice_verbose_lets_the_traceback_through(run) -> None:
    backend = FakeBackend(error=AccessDeniedError("s3://b refused the credentials"))

    with pytest.raises(AccessDeniedError):
        run(backend, "-vv", "warm", "s3://b")


# ---------------------------------------------------------------- server


def test_start_prints_the_process_id(run) -> None:
    result = run(FakeBackend(running=False), "server", "start", "--json")

    home = os.environ["PREFEED_HOME"]
    assert json.loads(result.stdout) == {"pid": 4321, "home": home, "started": True, "notices": []}


def test_start_says_what_differs_from_what_was_asked(run) -> None:
    backend = FakeBackend(running=False, notices=("the memory tier holds 4.0 GiB, not 8.0 GiB",))

    assert run(backend, "server", "start").stderr == "prefeed: the memory tier holds 4.0 GiB, not 8.0 GiB\n"
    assert "notice            the memory tier holds 4.0 GiB" in run(backend, "server", "status").stdout


def test_start_when_one_runs_already_is_no_error(run) -> None:
    result = run(FakeBackend(running=True), "server", "start")
    printed = json.loads(run(FakeBackend(running=True), "server", "start", "--json").stdout)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"server 4321 already runs for {os.environ['PREFEED_HOME']}\n"
    assert (printed["pid"], printed["started"]) == (4321, False)


@pytest.mark.parametrize("foreground", [[], ["--foreground"]], ids=["background", "foreground"])
def test_start_options_are_settings(run, tmp_path: Path, foreground: list[str]) -> None:
    backend = FakeBackend(running=False)

    run(backend, "server", "start", "--memory", "2MiB", "--home", str(tmp_path), *foreground)

    assert (backend.configs[0].memory, backend.configs[0].home) == (2 * 1024**2, tmp_path)


def test_foreground_ends_with_the_servers_exit_code(run) -> None:
    assert run(FakeBackend(foreground_exit_code=1), "server", "start", "--foreground").exit_code == 1


def test_stop_waits_and_names_the_process(run) -> None:
    backend = FakeBackend()

    result = run(backend, "server", "stop")

    assert result.stdout == "server 4321 stopped\n"
    assert backend.calls == [("stop",)]


def test_status_json_has_every_field(run) -> None:
    assert json.loads(run(FakeBackend(), "server", "status", "--json").stdout) == {
        **asdict(STATUS), "notices": [], "fetch_processes": [],
    }  # fmt: skip


def test_home_option_selects_the_server(run, tmp_path: Path) -> None:
    backend = FakeBackend()
    for arguments in (["server", "status"], ["server", "stop"], ["stats"], ["warm", "s3://b"], ["clear", "--all"]):
        run(backend, *arguments, "--home", str(tmp_path))

    assert {config.home for config in backend.configs} == {tmp_path}


# ---------------------------------------------------------------- stats


def test_stats_json_has_every_field_and_the_ratio(run) -> None:
    printed = json.loads(run(FakeBackend(), "stats", "--json").stdout)

    counts = json.loads(json.dumps(asdict(STATISTICS)))
    assert printed == {**counts, "reads": 1000, "hit_ratio": 0.9, "stage_caches": []}


# ---------------------------------------------------------------- warm and clear


def test_warm_lists_as_the_settings_say(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_LISTING_AGE", "60")
    backend = FakeBackend()

    run(backend, "warm", "s3://bucket/train")

    asked = [call for call in backend.calls if call[0] == "warm"]
    assert asked == [("warm", "s3://bucket/train", 60.0, False)]


@pytest.mark.usefixtures("sandbox")
def test_warm_draws_a_bar_on_a_terminal(run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    for module in (warm, options):
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    result = run(FakeBackend(), "warm", "s3://b")

    assert "warming" in terminal.getvalue()
    assert result.stdout == "1,000 objects, 80.1 MiB: all in the cache; 800 fetched now in 4.0 s (200 objects/s)\n"


def test_warm_makes_a_path_absolute(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = FakeBackend()

    run(backend, "warm", "data")
    run(backend, "clear", "data")

    assert backend.calls[0][1] == str(tmp_path / "data")
    assert ("clear", str(tmp_path / "data")) in backend.calls


def test_warm_of_a_url_with_one_slash_names_the_url(run) -> None:
    backend = FakeBackend()

    result = run(backend, "warm", "s3:/bucket/train")

    assert (result.exit_code, backend.calls) == (1, [])
    assert result.stderr.endswith("s3:/bucket/train does not exist; did you mean s3://bucket/train?\n")


def test_warm_starts_a_server(run) -> None:
    backend = FakeBackend(running=False)

    assert run(backend, "warm", "s3://b").exit_code == 0
    assert backend.running


def test_warm_with_failed_objects_ends_with_1_and_still_prints_its_result(run) -> None:
    backend = FakeBackend(warm_result=replace(WARM, resident=998, failed=2))

    result = run(backend, "warm", "s3://b", "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["failed"] == 2
    assert result.stderr.startswith("prefeed: 2 of 1,000 objects could not be fetched")


def test_warm_error_is_the_origins_message(run) -> None:
    backend = FakeBackend(error=AccessDeniedError("s3://b refused the credentials"))

    result = run(backend, "warm", "s3://b")

    assert result.exit_code == 1
    assert result.stderr == "prefeed: s3://b refused the credentials\n"
    assert backend.calls[-1] == ("close",)


def test_clear_all_and_clear_one(run) -> None:
    backend = FakeBackend()

    assert run(backend, "clear", "--all").stdout == "1,234 entries freed, 5.0 MiB\n"
    assert run(backend, "clear", "gs://b/x", "--json").stdout == '{"entries": 1234, "bytes": 5242880}\n'
    assert [call for call in backend.calls if call[0] == "clear"] == [("clear", None), ("clear", "gs://b/x")]


# ------------------------------------------------------------ stage caches


def with_caches() -> FakeBackend:
    return FakeBackend(counts=replace(STATISTICS, sessions=SessionCounts(sessions=2, caches=1)))


def test_statistics_list_the_stage_caches(run) -> None:
    *_, head, empty, filled = run(with_caches(), "stats").stdout.splitlines()
    assert head.split()[:2] == ["session", "cache"]
    assert empty.split() == ["0", "-", "-", "-", "-", "-", "0"]
    for text in ("1493732251", "3618046178", "1,000", "500", "600.0 KiB", "90.0 %", "Compose(Resize, ToTensor)"):
        assert text in filled


def test_the_json_of_statistics_has_the_stage_caches(run) -> None:
    found = json.loads(run(with_caches(), "stats", "--json").stdout)["stage_caches"]
    assert [one["session"] for one in found] == [0, 1493732251]
    assert found[1]["caches"][0]["hit_ratio"] == 0.9
    assert found[1]["caches"][0]["average_bytes"] == 600 * 1024
    assert json.loads(run(FakeBackend(), "stats", "--json").stdout)["stage_caches"] == []


@pytest.mark.usefixtures("sandbox")
def test_stopping_what_does_not_run_is_told_so_and_is_no_error(run) -> None:
    result, as_json = run(None, "server", "stop"), run(None, "server", "stop", "--json")

    assert (result.exit_code, as_json.exit_code, result.stderr) == (0, 0, "")
    assert result.stdout == f"no server runs for {os.environ['PREFEED_HOME']}: there is nothing to stop\n"
    assert json.loads(as_json.stdout) == {"pid": None, "stopped": False, "killed": False}


# ---------------------------------------------------------------- config and logs


def test_settings_are_shown_with_their_places(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prefeed.toml").write_text('idle_timeout = 9\nmemory = "1GiB"\n')
    monkeypatch.setenv("PREFEED_MEMORY", "8GiB")

    lines = run(None, "config", "memory", "idle_timeout", "disk", "home", "--home", "/h").stdout.splitlines()
    everything = json.loads(run(None, "config", "--json").stdout)["settings"]

    assert [line.split() for line in lines] == [
        ["setting", "value", "from"], ["memory", "8GiB", "PREFEED_MEMORY"],
        ["idle_timeout", "9.0", "prefeed.toml:", "idle_timeout"], ["disk", "0", "default"], ["home", "/h", "--home"],
    ]  # fmt: skip
    assert everything["memory"] == {"value": 8 * 1024**3, "from": "PREFEED_MEMORY"}
    assert list(everything) == list(SETTINGS)


def test_values_shown_can_be_written_down(run) -> None:
    shown = [line.split()[:2] for line in run(None, "config").stdout.splitlines()[1:]]

    assert resolve(dict(shown)) == resolve()


def test_a_setting_that_does_not_exist_is_answered_with_the_one_meant(run) -> None:
    assert "did you mean 'memory'?" in run(None, "config", "memroy").stderr


@pytest.mark.usefixtures("sandbox")
def test_the_newest_log_is_shown_from_its_end(run) -> None:
    none = run(None, "logs")
    directory = make_runtime_dir(resolve().runtime_dirs)
    (directory / "server.log").write_text("one\ntwo\nthree\n")

    assert (none.exit_code, "no server was started" in none.stderr) == (1, True)
    assert run(None, "logs").stdout == "one\ntwo\nthree\n"
    assert json.loads(run(None, "logs", "--json").stdout) == {
        "path": str(directory / "server.log"), "lines": ["one", "two", "three"],
    }  # fmt: skip
