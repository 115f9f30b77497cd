from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed import config as config_module
from prefeed.config import (
    GIB,
    KIB,
    MIB,
    SETTINGS,
    Config,
    DiskBudget,
    configure,
    current,
    parse_bool,
    parse_bytes,
    resolve,
)
from prefeed.errors import ConfigError
from prefeed.limits import Limits

NO_TOML = Path("/nonexistent/prefeed.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        (512, 512),
        ("8GiB", 8 * GIB),
        ("8 gib", 8 * GIB),
        ("8g", 8 * GIB),
        ("500MB", 500_000_000),
        ("1.5k", 1536),
        ("2KiB", 2 * KIB),
        ("1TiB", 1024 * GIB),
        ("0", 0),
    ],
)
def test_parse_bytes(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "8 GiBs", "-1", "1e9", "8 Gi B", True])
def test_parse_bytes_refuses_and_shows_the_value(text: str) -> None:
    with pytest.raises(ConfigError, match=repr(text)):
        parse_bytes(text)


def test_parse_bytes_refuses_a_negative_number() -> None:
    with pytest.raises(ConfigError, match="negative: -1"):
        parse_bytes(-1)


@pytest.mark.parametrize("text", ["1", "true", "YES", " on ", True])
def test_parse_bool_true(text: str | int) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "False", "no", "off", ""])
def test_parse_bool_false(text: str | int) -> None:
    assert parse_bool(text) is False


def test_parse_bool_refuses_anything_else() -> None:
    with pytest.raises(ConfigError, match="'maybe' is neither"):
        parse_bool("maybe")


def test_defaults_need_nothing() -> None:
    config = resolve(environ={}, toml_path=NO_TOML)

    assert config.enabled
    assert config.memory is None
    assert config.disk == DiskBudget()
    assert config.home.name == "prefeed"


def test_default_home_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/cache")

    assert resolve(environ={}, toml_path=NO_TOML).home == Path("/scratch/cache/prefeed")


def test_keyword_beats_environment_beats_toml_beats_default(tmp_path: Path) -> None:
    toml = tmp_path / "prefeed.toml"
    toml.write_text('memory = "1MiB"\nidle_timeout = 1\nfetch_processes = 1\n')
    environ = {"PREFEED_MEMORY": "2MiB", "PREFEED_IDLE_TIMEOUT": "2"}

    config = resolve({"memory": "3MiB"}, environ=environ, toml_path=toml)

    assert (config.memory, config.idle_timeout, config.fetch_processes) == (3 * MIB, 2.0, 1)
    assert config.report_interval == 120.0


def test_settings_in_force_are_the_same_object_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of cached objects depend on it: to resolve all settings takes longer than such a read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_module, "_process_overrides", {})
    monkeypatch.setattr(config_module, "_resolved", None)
    assert current() is current()
    for index, change in enumerate(
        (
            lambda: monkeypatch.setenv("PREFEED_REPORT_INTERVAL", "1"),
            lambda: configure(report_interval=2),
            lambda: configure(report_interval=None),
            lambda: monkeypatch.delenv("PREFEED_REPORT_INTERVAL"),
            lambda: Path("prefeed.toml").write_text("report_interval = 4\n"),
            configure,
        )
    ):
        change()
        assert current().report_interval == (1, 2, 1, 120, 120, 4)[index]
        assert current() is current()


def test_toml_in_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prefeed.toml").write_text("autostart = false\n")
    monkeypatch.chdir(tmp_path)

    assert resolve(environ={}).autostart is False


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "prefeed").mkdir(parents=True)
    return tmp_path / "config" / "prefeed" / "config.toml"


def test_toml_of_the_project_beats_the_user_s_own_beats_default(tmp_path: Path, own_file: Path) -> None:
    toml = tmp_path / "prefeed.toml"
    toml.write_text("fetch_processes = 1\n")
    own_file.write_text("fetch_processes = 2\nreads = 'all'\n")

    config = resolve(environ={}, toml_path=toml)

    assert (config.fetch_processes, config.reads, config.report_interval) == (1, "all", 120.0)


def test_the_user_s_own_file_lies_in_dot_config_when_no_variable_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which is to be ignored, says the specification
    own = tmp_path / ".config" / "prefeed" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("fetch_processes = 2\n")

    assert resolve(environ={}, toml_path=NO_TOML).fetch_processes == 2


OF_USER: dict[str, object] = {
    "home": "/evil/home", "memory_dir": "/evil", "disk": "1GiB:/evil/disk", "pool": "evil:1", "metrics": "0.0.0.0:1",
}  # fmt: skip


@pytest.mark.parametrize("name", OF_USER)
def test_a_project_does_not_say_where_data_go(
    tmp_path: Path, own_file: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told so once, the rest of its file counts, and so does what others say of that setting."""
    toml = tmp_path / "prefeed.toml"
    toml.write_text(f"{name} = {OF_USER[name]!r}\nfetch_processes = 7\n")
    default = resolve(environ={}, toml_path=NO_TOML)

    for _ in range(2):
        config = resolve(environ={}, toml_path=toml)
        assert getattr(config, name) == getattr(default, name)
        assert config.fetch_processes == 7
    (line,) = [record.message for record in caplog.records]
    assert all(word in line for word in (str(toml), name, str(own_file), f"PREFEED_{name.upper()}"))

    own_file.write_text(f"{name} = {OF_USER[name]!r}\n")
    said = resolve({name: OF_USER[name]}, environ={}, toml_path=NO_TOML)
    assert getattr(resolve(environ={}, toml_path=toml), name) == getattr(said, name) != getattr(default, name)
    environ = {f"PREFEED_{name.upper()}": str(OF_USER[name])}
    assert getattr(resolve(environ=environ, toml_path=toml), name) == getattr(said, name)


@pytest.mark.parametrize("which", ["project", "own"])
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("owner", "belongs to user 12345"),
        ("group", "mode 0664"),
        ("all", "mode 0646"),
        ("link", "belongs to user 12345"),
        ("pipe", "is not a file"),
        ("directory", "is not a file"),
        ("loop", "symbolic links"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_others_may_have_written_is_not_read(
    tmp_path: Path, own_file: Path, which: str, trouble: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    toml = own_file if which == "own" else tmp_path / "prefeed.toml"
    target = tmp_path / "target.toml" if trouble == "link" else toml
    if trouble == "pipe":
        os.mkfifo(toml)
    elif trouble == "directory":
        toml.mkdir()
    elif trouble == "loop":
        toml.symlink_to(toml)
    else:
        target.write_text("fetch_processes = 7\n")
        target.chmod({"group": 0o664, "all": 0o646}.get(trouble, 0o644))
    if trouble == "link":
        toml.symlink_to(target)
    if trouble in ("owner", "link"):
        os.chown(target, 12345, 12345)

    for _ in range(2):
        assert resolve(environ={}, toml_path=NO_TOML if which == "own" else toml).fetch_processes is None
    (line,) = [record.message for record in caplog.records]
    assert str(toml) in line
    assert "is ignored" in line
    assert reason in line


def test_none_among_keywords_means_not_given() -> None:
    config = resolve({"memory": None}, environ={"PREFEED_MEMORY": "2MiB"}, toml_path=NO_TOML)

    assert config.memory == 2 * MIB


def test_auto_memory_is_the_default_again() -> None:
    assert resolve({"memory": "auto"}, environ={"PREFEED_MEMORY": "2MiB"}, toml_path=NO_TOML).memory is None


def test_unknown_keyword_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown setting 'memroy'; did you mean 'memory'\? the settings are enabled, home"
    ):
        resolve({"memroy": 1}, environ={}, toml_path=NO_TOML)


def test_unknown_name_in_toml_names_the_file(tmp_path: Path) -> None:
    toml = tmp_path / "prefeed.toml"
    toml.write_text("memroy = 1\n")

    with pytest.raises(ConfigError, match=rf"{toml}: unknown setting 'memroy'"):
        resolve(environ={}, toml_path=toml)


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    toml = tmp_path / "prefeed.toml"
    toml.write_text("memory = \n")

    with pytest.raises(ConfigError, match=rf"cannot read {toml}: "):
        resolve(environ={}, toml_path=toml)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MEMORY", "lots"), ("ENABLED", "maybe"), ("FETCH_PROCESSES", "65"), ("FETCH_PROCESSES", "x"),
     ("IDLE_TIMEOUT", "-1"), ("IDLE_TIMEOUT", "soon")],
)  # fmt: skip
def test_unusable_value_says_where_it_came_from(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^PREFEED_{name}: .*'{value}'") as caught:
        resolve(environ={f"PREFEED_{name}": value}, toml_path=NO_TOML)

    assert caught.value.details == {"setting": name.lower(), "value": value}


def test_paths_are_absolute_and_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")

    config = resolve({"home": "cache", "memory_dir": "~/shm"}, environ={}, toml_path=NO_TOML)

    assert (config.home, config.memory_dir) == (tmp_path / "cache", Path("/home/someone/shm"))


def test_one_home_one_socket() -> None:
    one, other = Config(home=Path("/a")), Config(home=Path("/b"))

    assert one.socket_path == Config(home=Path("/a")).socket_path
    assert one.socket_path != other.socket_path
    assert len(one.home_id) == 8


def test_another_kernel_has_another_socket_and_disk_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the directory of the socket, or of the disk tier, is a volume that both have mounted."""
    one, named = Config(home=Path("/a")), Config(home=Path("/a"), disk=DiskBudget(1, Path("/d")))
    before = {one.socket_path, one.disk_path, named.disk_path}
    monkeypatch.setattr(config_module, "boot_name", lambda: "0123456789ab")
    assert before.isdisjoint({one.socket_path, one.disk_path, named.disk_path})
    assert one.disk_path == Path("/a/nodes/0123456789ab-0/disk")
    assert named.disk_path == Path("/d/0123456789ab-0")
    assert one.home_id == named.home_id


def test_socket_path_fits_into_sun_path() -> None:
    assert len(str(resolve().socket_path)) < 107


def test_every_setting_has_help() -> None:
    assert all(setting.metadata["help"] for setting in SETTINGS.values())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("auto", None),
        ("0", ""),
        ("", ""),
        (0, ""),
        ("9105", "127.0.0.1:9105"),
        (9105, "127.0.0.1:9105"),
        ("0.0.0.0:9105", "0.0.0.0:9105"),
        ("localhost:0", "localhost:0"),
        ("[::1]:9105", "[::1]:9105"),
    ],
    ids=repr,
)
def test_addresses_of_metrics(text: object, address: str | None) -> None:
    assert resolve({"metrics": text}, environ={}).metrics == address


@pytest.mark.parametrize("text", ["host", "host:", ":x", "1:2:3", "::1", "host:70000", "-1", "h:-1", "[::1]"])
def test_what_is_no_address_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PREFEED_METRICS"):
        resolve(environ={"PREFEED_METRICS": text})


# ---------------------------------------------------------------- limits


def test_limits_of_a_parent_process() -> None:
    config = resolve(
        environ={"PREFEED_LIMITS": "block_bytes=65536 start_ahead=0 request_seconds=0.5"}, toml_path=NO_TOML
    )

    assert config.limits == Limits(block_bytes=65536, start_ahead=False, request_seconds=0.5)
    assert resolve(environ={"PREFEED_LIMITS": str(config.limits)}, toml_path=NO_TOML) == config


def test_limits_of_a_test_are_added() -> None:
    environ = {"PREFEED_LIMITS": "block_bytes=65536 max_in_flight=1"}

    assert resolve(environ=environ, toml_path=NO_TOML, limits={"max_in_flight": 2}).limits == Limits(
        block_bytes=65536, max_in_flight=2
    )


@pytest.mark.parametrize("text", ["blocks=1", "block_bytes", "block_bytes=64KiB"])
def test_unusable_limits(text: str) -> None:
    with pytest.raises(ConfigError, match=f"PREFEED_LIMITS: '{text}' is not name=number"):
        resolve(environ={"PREFEED_LIMITS": text}, toml_path=NO_TOML)


@pytest.mark.parametrize("name", ["lookahead", "disk_dir", "max_object", "port", "limits"])
def test_a_constant_is_no_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'"):
        resolve({name: 1}, environ={}, toml_path=NO_TOML)
