"""``cache_admin`` as scripts know it. Numbers are those of MindSpore's own list of argument cases."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from leaks import wait_until
from prefeed.cli.cache_admin import MOST_WORKERS, parse
from prefeed.client.node import NodeClient
from prefeed.config import config_for_port, resolve
from prefeed.types import ServerStatus
from sandbox import Sandbox
from servers import free_port

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Admin:
    """The command, with a default port of its own: others may use 50052 on this machine."""

    def __init__(self) -> None:
        self.port = free_port()

    def __call__(self, *words: str | int, **environment: str) -> Result:
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / "cache_admin"), *map(str, words)],
            capture_output=True,
            text=True,
            env=self.environment | environment,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{SCRIPTS}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "MS_CACHE_PORT": str(self.port)}

    def ok(self, *words: str | int) -> str:
        result = self(*words)
        assert (result.code, result.err) == (0, ""), result
        return result.out

    def refuse(self, *words: str | int, because: str, **environment: str) -> None:
        """It ends with 1, says why on stderr and nothing on stdout."""
        result = self(*words, **environment)
        assert (result.code, result.out) == (1, ""), result
        assert re.search(because, result.err), result.err

    def status(self, port: int | None = None) -> ServerStatus:
        with NodeClient.connect(config_for_port(resolve(), port or self.port), autostart=False) as node:
            return node.status()

    def session(self) -> int:
        return int(self.ok("-g").split()[-1])


@pytest.fixture
def admin(sandbox: Sandbox) -> Admin:
    return Admin()


@pytest.fixture
def started(admin: Admin) -> Admin:
    admin.ok("--start")
    return admin


# ------------------------------------------------------------ what is said


def test_no_arguments_is_the_help_and_an_error(admin: Admin) -> None:
    result = admin()
    assert result.code == 1
    assert admin.ok("--help") == result.out
    for word in ("--start", "--generate_session, -g", "--destroy_session, -d", "--hostname, -h", "--spilldir, -s"):
        assert word in result.out


def test_lines_have_the_form_that_scripts_read(admin: Admin, sandbox: Sandbox) -> None:
    lines = admin.ok("--start").splitlines()
    assert lines[0] == "Cache server startup completed successfully!"
    pid = admin.status().pid
    assert lines[1].endswith(f"process id {pid} and is listening on port {admin.port}")

    line = admin.ok("--generate_session")
    session = int(line.split()[-1])
    assert line == f"Session created for server on port {admin.port}: {session}\n"
    assert 0 < session < 2**32

    lines = admin.ok("--list_sessions").splitlines()
    assert lines[0] == f"Listing sessions for server on port {admin.port}"
    assert lines[2] == "     Session    Cache Id  Mem cached  Disk cached  Avg cache size  Numa hit"
    assert lines[3].split() == [str(session), *["n/a"] * 5]
    assert len(lines[2]) == len(lines[3])

    info = admin.ok("--server_info")
    workers = re.search(r"number of workers +(\d+)$", info, re.MULTILINE)
    assert workers
    assert parse(["--start", "-w", workers[1]], {}).workers == min(resolve().limits.max_in_flight, MOST_WORKERS)
    for words in (("hostname", "127.0.0.1"), ("port", str(admin.port)), ("log level", "1"), ("spill dir", "None")):
        assert re.search(r"\s+".join(words), info)
    assert info.splitlines()[-2:] == ["Active sessions:", str(session)]

    assert admin.ok("-d", session) == f"Drop session successfully for server on port {admin.port}\n"
    assert "No active sessions." in admin.ok("--list_sessions")
    assert "No active sessions." in admin.ok("--server_info")
    assert admin.ok("--stop") == f"Cache server on port {admin.port} has been stopped successfully.\n"
    assert not list(sandbox.memory_dir.iterdir())


def test_options_reach_the_server(admin: Admin, tmp_path: Path) -> None:
    admin.ok("--start", "-w", 7, "-l", 3, "-s", tmp_path, "-m", 4, "-r", 0.5)
    with NodeClient.connect(config_for_port(resolve(), admin.port), autostart=False) as node:
        settings = node.connection.settings
    assert (settings["workers"], settings["log_level"]) == ("7", "3")
    size, _, directory = settings["disk"].partition(":")
    assert size == "auto"
    assert Path(directory).parent == tmp_path
    assert Path(directory).stat().st_mode & 0o777 == 0o700
    info = admin.ok("--server_info")
    assert re.search(r"number of workers +7\b", info)
    assert re.search(rf"spill dir +{tmp_path}", info)


def test_the_environment_stands_for_options(admin: Admin) -> None:
    admin.refuse("--start", MS_CACHE_HOST="0.0.0.0", because="0.0.0.0")
    admin.refuse("--start", MS_CACHE_PORT="many", because="port 'many'")
    admin.refuse("--start", MS_CACHE_PORT="80", because="port 80 .*1025 to 65535")
    admin.refuse("--start", GLOG_v="9", because="loglevel 9 .*0 to 4")
    assert admin("--start", GLOG_v="2").code == 0
    assert re.search(r"log level +2\b", admin.ok("--server_info"))


def test_hidden_options_are_checked(admin: Admin) -> None:
    admin.refuse("--start", "-m", 0, because="shared_memory_size 0")
    admin.refuse("--start", "-r", 0, because="memory_cap_ratio 0 .*at most 1")
    admin.refuse("--start", "-r", 1.5, because=r"memory_cap_ratio 1\.5")
    admin.refuse("--start", "--memory_cap_ratio", "half", because="half")
    assert "shared_memory_size" not in admin.ok("--help")


def test_an_option_is_given_once(admin: Admin) -> None:
    admin.refuse("--start", "-l", 1, "--loglevel", 2, because="more than once")
    admin.refuse("--start", "--start", because="twice")


def test_the_servers_port_is_taken(started: Admin) -> None:
    """Nobody listens on it: a connection is refused, and so is a bind."""
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.0.0.1", started.port))
    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(("127.0.0.1", started.port))
    started.ok("--stop")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", started.port))


def test_a_server_started_so_does_not_end_for_being_idle(admin: Admin) -> None:
    result = admin("--start", PREFEED_IDLE_TIMEOUT="0.2")
    assert result.code == 0
    pid = admin.status().pid
    assert wait_until(lambda: admin.status().uptime_seconds > 1.0, timeout_seconds=60)
    assert admin.status().pid == pid


def test_functions_of_shell_scripts_work_unchanged(admin: Admin) -> None:
    script = f"""
        source {ROOT}/examples/cache_util.sh
        bootup_cache_server
        CACHE_SESSION_ID=$(generate_cache_session)
        echo "session=${{CACHE_SESSION_ID}}"
        cache_admin --list_sessions
        cache_admin --destroy_session ${{CACHE_SESSION_ID}}
        cache_admin --stop
    """
    done = subprocess.run(
        ["bash", "-eu", "-c", script], capture_output=True, text=True, env=admin.environment, check=True
    )
    found = re.search(r"^session=(\d+)$", done.stdout, re.MULTILINE)
    assert found
    assert "startup completed" in done.stdout
    assert re.search(rf"^ *{found[1]} ", done.stdout, re.MULTILINE)
    assert "stopped successfully" in done.stdout


def test_the_default_port_is_the_home_itself(sandbox: Sandbox) -> None:
    config = resolve()
    assert config_for_port(config, 50052) == config
    assert config_for_port(config, 50053).home == sandbox.home / "ports" / "50053"


# ------------------------------------------------------------ cases 1 to 6: words


def test_case_1_two_commands(admin: Admin) -> None:
    admin.refuse("--start", "--stop", because="--stop was given together with --start")


def test_case_2_no_command(admin: Admin) -> None:
    admin.refuse("--port", 50082, because="no command")


def test_case_3_port_is_no_number(admin: Admin) -> None:
    admin.refuse("-p", "abc", "--start", because="'abc' is not a whole number")


def test_case_4_port_without_a_value(admin: Admin) -> None:
    admin.refuse("-p", "--start", because="-p needs a value: -p <port>")


def test_case_5_unknown_option(admin: Admin) -> None:
    admin.refuse("--not_exist_cmd", because="--not_exist_cmd is not an argument")


def test_case_6_spill_directory_that_does_not_exist(admin: Admin, tmp_path: Path) -> None:
    admin.refuse("--start", "--spilldir", tmp_path / "nowhere", because="nowhere does not exist")
    admin.refuse("--start", "--spilldir", "relative", because="absolute")


# ------------------------------------------------------------ cases 7 to 12: start and stop


def test_cases_7_to_9_start_start_again_stop(admin: Admin) -> None:
    admin.ok("--start")
    pid = admin.status().pid
    admin.refuse("--start", because=f"already runs on port {admin.port}")
    assert admin.status().pid == pid
    admin.ok("--stop")


def test_cases_10_and_11_two_servers(admin: Admin) -> None:
    other = free_port()
    admin.ok("--start")
    admin.ok("--start", "-p", other)
    assert admin.status().pid != admin.status(other).pid
    session = int(admin.ok("-g", "-p", other).split()[-1])
    admin.refuse("-d", session, because=f"session {session} not found")
    admin.ok("--stop")
    assert str(session) in admin.ok("--list_sessions", "-p", other)
    admin.ok("--stop", "-p", other)


def test_case_12_stop_when_none_runs(admin: Admin) -> None:
    admin.refuse("--stop", because=f"no server runs on port {admin.port}")


# ------------------------------------------------------------ cases 13 to 17: host


@pytest.mark.parametrize("host", ["0.0.0.0", "illegal"])
def test_cases_13_and_14_another_host(admin: Admin, host: str) -> None:
    admin.refuse("--start", "-h", host, because=f"host {re.escape(host)} cannot be used")


def test_case_15_host_without_a_value(admin: Admin) -> None:
    admin.refuse("--start", "-h", because="-h needs a value")


def test_case_16_host_twice_without_a_value(admin: Admin) -> None:
    admin.refuse("--start", "-h", "--hostname", because="-h needs a value")


def test_case_17_host_twice(admin: Admin) -> None:
    admin.refuse("--start", "-h", "--hostname", "127.0.0.1", because="-h needs a value")


def test_the_local_host_may_be_named(admin: Admin) -> None:
    admin.ok("--start", "-h", "127.0.0.1")
    admin.ok("--stop", "--hostname", "127.0.0.1")


# ------------------------------------------------------------ cases 18 to 25: port, sessions without a server


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_cases_18_to_20_port_out_of_range(admin: Admin, port: str) -> None:
    admin.refuse("--start", "-p", port, because=rf"port {port} .*1025 to 65535")


def test_case_21_port_is_a_word(admin: Admin) -> None:
    admin.refuse("--start", "-p", "illegal", because="port 'illegal'")


def test_case_22_port_at_the_end_without_a_value(admin: Admin) -> None:
    admin.refuse("--start", "-p", because="-p needs a value")


@pytest.mark.parametrize("listens", [True, False])
def test_case_23_port_of_another_program(admin: Admin, listens: bool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", admin.port))
        if listens:
            other.listen()
        admin.refuse("--start", because=f"port {admin.port} .*another program")
    admin.ok("--start")


def test_case_24_session_without_a_server(admin: Admin) -> None:
    admin.refuse("-g", because=f"no server runs on port {admin.port}")


def test_case_25_session_with_a_value(started: Admin) -> None:
    started.refuse("-g", 1, because="1 is not an argument")


# ------------------------------------------------------------ cases 26 to 30: destroying sessions


def test_case_26_negative_session(started: Admin) -> None:
    started.refuse("-d", -2, because="session -2 is out of range")


def test_case_27_session_is_a_word(started: Admin) -> None:
    started.refuse("-d", "illegal", because="'illegal' is not a whole number")


def test_case_28_destroy_without_a_session(started: Admin) -> None:
    started.refuse("-d", because="-d needs a value: -d <session id>")


def test_case_29_session_that_does_not_exist(started: Admin) -> None:
    started.refuse("-d", 99999, because="session 99999 not found")


def test_case_30_two_sessions_at_once(started: Admin) -> None:
    first, second = started.session(), started.session()
    started.ok("-d", first, second)
    assert "No active sessions." in started.ok("--list_sessions")


# ------------------------------------------------------------ cases 31 to 41: options of start


@pytest.mark.parametrize("workers", ["0", "-1", "9999999"])
def test_cases_31_32_35_workers_out_of_range(admin: Admin, workers: str) -> None:
    admin.refuse("--start", "-w", workers, because=f"workers {workers} is out of range")


def test_case_33_workers_is_a_word(admin: Admin) -> None:
    admin.refuse("--start", "-w", "illegal", because="workers 'illegal'")


def test_case_34_one_worker_too_many(admin: Admin) -> None:
    admin.refuse("--start", "-w", max(100, os.cpu_count() or 1) + 1, because="workers")


def test_case_36_workers_without_a_value(admin: Admin) -> None:
    admin.refuse("--start", "-w", because="-w needs a value")


def test_case_37_spill_directory_without_a_value(admin: Admin) -> None:
    admin.refuse("--start", "-s", because="-s needs a value")


def test_case_38_spill_directory_that_cannot_be_written(admin: Admin) -> None:
    """The root may write to its own directory, but not there."""
    admin.refuse("--start", "-s", "/proc" if os.geteuid() == 0 else "/", because="cannot be written")


@pytest.mark.parametrize("level", ["5", "-1"])
def test_cases_39_and_40_log_level_out_of_range(admin: Admin, level: str) -> None:
    admin.refuse("--start", "-l", level, because=f"loglevel {level} .*0 to 4")


def test_case_41_log_level_without_a_value(admin: Admin) -> None:
    admin.refuse("--start", "-l", because="-l needs a value")


def test_what_was_refused_started_nothing(admin: Admin, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", admin.port))
        admin.refuse("--start", "-s", tmp_path, because="another program")
    assert not list(tmp_path.iterdir())
    assert not list(Path(os.environ["PREFEED_MEMORY_DIR"]).iterdir())
