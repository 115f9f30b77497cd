"""Settings, as one frozen ``Config``, from keywords, environment, ``prefeed.toml``, the user's ``config.toml`` and defaults.

A test compares docs/configuration.md with ``SETTINGS``. Start with ``Config`` and ``resolve``.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from prefeed.errors import ConfigError
from prefeed.limits import LIMITS_VARIABLE, Limits, parse_limits
from prefeed.places import (
    default_home,
    expanded,
    near,
    project_settings,
    read_settings,
    require_known,
    runtime_dirs,
    say_once,
    user_file,
)
from prefeed.quantities import EVERYTHING as EVERYTHING
from prefeed.quantities import GIB as GIB
from prefeed.quantities import KIB as KIB
from prefeed.quantities import MIB as MIB
from prefeed.quantities import number_of, size_text, whole
from prefeed.quantities import parse_bytes as parse_bytes
from prefeed.system.machine import boot_name
from prefeed.system.trust import is_own_possible

_LEAST_BARE_SIZE: Final = 1000


def _setting_bytes(value: str | int) -> int:
    """Parse a size; refuse small numbers without a unit, because the unit was probably forgotten."""
    size = parse_bytes(value)
    if 0 < size < _LEAST_BARE_SIZE and not str(value).strip()[-1:].isalpha():
        raise ConfigError(f"{value!r} means {size} bytes; write the unit, as in {size}GiB, or {size}B if that is meant")
    return size


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """Size limit and directory of the disk tier, as in ``500GB:/nvme``.

    Attributes:
        size_bytes: Maximum size of the tier. 0 for no disk tier, ``EVERYTHING`` for all but the space that stays free.
        directory: Directory that holds one subdirectory per node; None for a directory in the home.
    """

    size_bytes: int = 0
    directory: Path | None = None

    def __str__(self) -> str:
        """Return the value of the setting ``disk``."""
        size = size_text(self.size_bytes)
        return size if self.directory is None else f"{size}:{self.directory}"


def parse_disk(value: str | int | DiskBudget) -> DiskBudget:
    """Parse ``auto``, a size, or either of them with a directory, as in ``500GB:/nvme``.

    Raises:
        ConfigError: The size or the path is unusable.
    """
    if isinstance(value, DiskBudget):
        return value
    size, colon, directory = value.partition(":") if isinstance(value, str) else (value, "", "")
    size_bytes = EVERYTHING if size == "auto" else _setting_bytes(size)
    return DiskBudget(size_bytes, _path(directory) if colon else None)


def parse_bool(value: str | int | bool) -> bool:
    """Return True for 1, true, yes, on; False for 0, false, no, off and the empty string."""
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ConfigError(f"{value!r} is neither true nor false; write 1 or 0")


_MOST_SECONDS: Final = 1e9


def _seconds(value: str | int | float) -> float:
    if not (seconds := _age(value)) <= _MOST_SECONDS:
        raise ConfigError(f"a time is at most {_MOST_SECONDS:,.0f} seconds, which is 31 years: {value!r}")
    return seconds


def _age(value: str | int | float) -> float:
    """Parse seconds. ``inf`` is valid, for no limit."""
    seconds = math.nan
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            seconds = float(value)
    elif value == math.inf:
        seconds = math.inf
    elif (number := number_of(value)) is not None:
        seconds = float(number)
    if math.isnan(seconds):
        raise ConfigError(f"{value!r} is not a number of seconds")
    if seconds < 0:
        raise ConfigError(f"a time cannot be negative: {value!r}")
    return seconds


MOST_FETCH_PROCESSES: Final = 64


def _fetch_processes(value: str | int | None) -> int | None:
    """Parse a number of processes; return None for ``auto``."""
    if value in (None, "", "auto"):
        return None
    if not 0 <= (number := whole(value)) <= MOST_FETCH_PROCESSES:
        raise ConfigError(f"must be 0 to {MOST_FETCH_PROCESSES}, or auto: {value!r}")
    return number


LEAST_PORT: Final = 1025
MOST_PORT: Final = 65535

METRICS_PORT: Final = 7733
"""Default port of the metrics. If another program uses it, a free port is taken."""


def _metrics(value: str | int) -> str | None:
    """Parse an address; return ``host:port``, ``""`` for none, None for ``auto``. The default host is 127.0.0.1."""
    text = str(value).strip()
    if text == "auto":
        return None
    if text in ("", "0"):
        return ""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= MOST_PORT) or (
        ":" in host and host[0] + host[-1] != "[]"
    ):
        raise ConfigError(
            f"{value!r} is not an address for metrics; write a port, host:port, [::1]:port, or 0 for none"
        )
    return f"{host or '127.0.0.1'}:{int(port)}"


def _pool(value: Any) -> str:
    """Parse addresses and paths of unix sockets; return them without duplicates, separated by commas."""
    if not isinstance(value, str) and not (
        isinstance(value, Iterable) and all(isinstance(entry, str) for entry in value)
    ):
        raise ConfigError(f"{value!r} names no pool servers; write host:port as text, or a list of them")
    entries = value.split(",") if isinstance(value, str) else list(value)
    found = dict.fromkeys(entry.strip() for entry in entries if entry.strip() not in ("", "none"))
    for entry in found:
        if not re.fullmatch(r"/[^\s]+|(?:\[[0-9a-fA-F:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})", entry) or not _has_port(entry):
            raise ConfigError(
                f"{entry!r} is not a pool server; write host:port, [::1]:port, or the path of a unix socket, "
                "and commas between them"
            )
    return ",".join(found)


def _has_port(entry: str) -> bool:
    return entry.startswith("/") or 1 <= int(entry.rpartition(":")[2]) <= MOST_PORT


def _path(value: str | os.PathLike[str]) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{value!r} is not a path; write the name of a directory as text")
    if not os.fspath(value):
        raise ConfigError("the path is empty; name a directory, or leave the setting out")
    return expanded(value)


SAMPLE_SET: Final = "sampleset://"
"""Prefix of the name of a sample set, which is valid as a URL and as a directory."""

_ROOT: Final = re.compile(rf"{SAMPLE_SET}[^{os.pathsep}]*|[^{os.pathsep}]+")


def _paths(value: Any) -> tuple[str, ...] | None:
    """Parse directories, separated as in ``PATH``, and sample sets; return None for ``auto``."""
    if value is None or value == "auto":
        return None
    if isinstance(value, os.PathLike):
        value = [value]
    if not isinstance(value, str) and not (
        isinstance(value, Iterable) and all(isinstance(part, str | os.PathLike) for part in value)
    ):
        raise ConfigError(
            f"{value!r} names no directories; write a list of paths, or text with {os.pathsep} between them"
        )
    parts = _ROOT.findall(value) if isinstance(value, str) else [os.fspath(part) for part in value]
    return tuple(part if part.startswith(SAMPLE_SET) else _absolute(part) for part in parts if part)


def _absolute(path: str) -> str:
    return os.path.abspath(expanded(path))


READS: Final = ("samples", "all")


def _reads(value: Any) -> str:
    if value not in READS:
        raise ConfigError(f"{value!r} is not a choice of reads; write {' or '.join(READS)}")
    return str(value)


def _optional_bytes(value: str | int | None) -> int | None:
    return None if value in (None, "", "auto") else _setting_bytes(value)


def _setting(parse: Any, default: Any, help: str, *, factory: Any = None) -> Any:
    metadata = {"parse": parse, "help": help}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. Each is a keyword, ``PREFEED_<NAME>`` in the environment and ``<name>`` in ``config.toml``.

    ``prefeed.toml`` can set all settings except ``places.USER_SETTINGS`` and the directory of ``disk``.
    """

    enabled: bool = _setting(parse_bool, True, "0 turns prefeed off: loaders behave exactly as torch's own")
    home: Path = _setting(
        _path,
        None,
        "directory of manifests, records and credentials; nodes that share it have separate caches",
        factory=default_home,
    )
    memory: int | None = _setting(
        _optional_bytes, None, "bytes of memory that the memory tier and stage caches may take; auto = half of the smallest "
        "of RAM and control-group limits"
    )  # fmt: skip
    memory_dir: Path = _setting(_path, Path("/dev/shm"), "tmpfs directory that holds stage caches")
    disk: DiskBudget = _setting(
        parse_disk,
        DiskBudget(),
        "bytes that the disk tier may take on this node, and its directory, as in 500GB:/nvme; without a directory, in "
        "the home; 0 = no disk tier; auto = all but a tenth of the file system",
    )
    pool: str = _setting(
        _pool, "", "memcached servers that nodes share, as `host:port`, with commas between them; a path is a unix "
        "socket; none = no pool"
    )  # fmt: skip
    fetch_processes: int | None = _setting(
        _fetch_processes, None, "processes that fetch for the node server from web servers and S3; 0 = the server itself; auto = one when "
        "there is much to fetch, up to one per two cores when they are busy"
    )  # fmt: skip
    idle_timeout: float = _setting(_seconds, 600.0, "seconds without clients after which the server stops; 0 = never")
    metrics: str | None = _setting(
        _metrics, None, "address, `host:port` or a port of 127.0.0.1, at which the server shows metrics to Prometheus; "
        f"0 = none; auto = 127.0.0.1:{METRICS_PORT}, or a free port when that is taken"
    )  # fmt: skip
    autostart: bool = _setting(parse_bool, True, "let the first client start the node server")
    trust_samplers: bool = _setting(
        parse_bool, False, "read ahead with every sampler, not only with samplers known to draw their order up front"
    )
    roots: tuple[str, ...] | None = _setting(
        _paths, None, "directories, separated by `:`, whose files are cached when a dataset opens them by path; also "
        "sampleset://NAME; auto = every mounted network file system"
    )  # fmt: skip
    reads: str = _setting(
        _reads, "samples", "which reads of files below the roots use the cache: `samples` = reads while samples are made; `all` "
        "= also all other reads, in any thread or child process, with `import prefeed.auto` and `prefeed run`"
    )  # fmt: skip
    read_once: bool = _setting(
        parse_bool, False, "free each object once it is consumed; 0 = keep objects for the next epoch"
    )
    revalidate: bool = _setting(
        parse_bool, True, "check per epoch whether files opened by path have changed; 0 = once per loader"
    )
    listing_age: float = _setting(
        _age, 0.0, "maximum age in seconds of the listing that a new dataset uses; 0 = list for each dataset; "
        "inf = keep the first listing"
    )  # fmt: skip
    report_interval: float = _setting(_seconds, 120.0, "seconds between two lines of hit rates in the log; 0 = none")

    limits: Limits = Limits()
    """Constants that tests can replace; not a setting."""

    @property
    def disk_path(self) -> Path:
        """Directory of the disk tier of this node's first server. Further servers use the next numbers."""
        name = f"{boot_name()}-0"
        return self.disk.directory / name if self.disk.directory else self.home / "nodes" / name / "disk"

    @property
    def home_id(self) -> str:
        """Eight hexadecimal digits that identify the home."""
        return hashlib.sha256(os.fsencode(self.home)).hexdigest()[:8]

    @property
    def node_id(self) -> str:
        """Identifies this home on this node. Part of the socket's and the store's name."""
        return f"{self.home_id}-{boot_name()[:8]}"

    @property
    def runtime_dirs(self) -> tuple[Path, ...]:
        """Candidates for the directory of the socket, ``<base>/prefeed-<uid>/<node id>``. A server uses the first trusted one."""
        return runtime_dirs(os.environ.get("XDG_RUNTIME_DIR", ""), self.home, self.node_id, os.getuid())

    @property
    def common_runtime_dirs(self) -> tuple[Path, ...]:
        """Candidates that do not depend on the environment of a process.

        Each server records its socket in the first trusted one. The last one is in the home, where no other user can create it.
        """
        return runtime_dirs("", self.home, self.node_id, os.getuid())

    @property
    def runtime_dir(self) -> Path:
        """Private directory (0700) of the socket and of plans in transit, for a server that starts now."""
        *shared, in_home = self.runtime_dirs
        return next(filter(is_own_possible, shared), in_home)

    @property
    def socket_path(self) -> Path:
        """Unix socket of the node server."""
        return self.runtime_dir / "server.sock"


DEFAULT_PORT: Final = 50052
"""Port that identifies the home itself, in ``cache_admin`` and ``DatasetCache``."""


def config_for_port(config: Config, port: int) -> Config:
    """Return the settings of the server of a port. Each port except 50052 has its own home."""
    return config if port == DEFAULT_PORT else replace(config, home=config.home / "ports" / str(port))


SETTINGS: Final = {f.name: f for f in fields(Config) if "parse" in f.metadata}

SERVER_SETTINGS: Final = (
    "memory",
    "memory_dir",
    "fetch_processes",
    "disk",
    "pool",
    "metrics",
)
"""Settings that a node server keeps from its start, even if later clients have other values."""


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for variable in filter(lambda name: name.startswith(_PREFIX), environ):
        name = variable.removeprefix(_PREFIX).lower()
        if variable.isupper() and name in SETTINGS:
            found[name] = environ[variable].strip()
        elif meant := near(name, SETTINGS):
            say_once(f"{variable} is not a setting and is ignored; did you mean PREFEED_{meant.upper()}?")
    return found


def resolve(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    toml_path: Path | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Config:
    """Resolve the settings from keywords, ``PREFEED_*``, ``prefeed.toml``, the user's ``config.toml`` and defaults, in this order.

    ``prefeed.toml`` cannot set destinations and sources of data, and is ignored if another user can write to it.

    Args:
        overrides: Settings by name. None means that a setting is not given.
        environ: Environment; None for that of the process.
        toml_path: Project file; None for ``prefeed.toml`` in the working directory.
        limits: Values of ``Limits`` by name, for tests. Other limits are those of the process.

    Raises:
        ConfigError: A name is unknown or a value invalid. The message contains the source of the setting.
    """
    return resolve_with_places(overrides, environ=environ, toml_path=toml_path, limits=limits)[0]


DEFAULT: Final = "default"
"""Source of a setting that has its default value."""


def resolve_with_places(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    toml_path: Path | None = None,
    limits: Mapping[str, Any] | None = None,
) -> tuple[Config, dict[str, str]]:
    """Resolve the settings as ``resolve`` does, and return the source of each value as well."""
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    require_known(given, SETTINGS)
    environ = os.environ if environ is None else environ
    toml_path = Path("prefeed.toml") if toml_path is None else toml_path
    own_path = user_file()
    layers = (
        ("", given),
        (_PREFIX, _environment(environ)),
        (f"{toml_path}: ", project_settings(toml_path, SETTINGS)),
        (f"{own_path}: ", read_settings(own_path, SETTINGS)),
    )
    values: dict[str, Any] = {}
    places = dict.fromkeys(SETTINGS, DEFAULT)
    for origin, layer in layers:
        for name, raw in layer.items():
            if name not in values:
                places[name] = _shown(name, origin)
                values[name] = parse_setting(name, raw, places[name])
    return Config(**values, limits=replace(parse_limits(environ.get(LIMITS_VARIABLE, "")), **(limits or {}))), places


_PREFIX: Final = "PREFEED_"


def _shown(name: str, origin: str) -> str:
    return f"{origin}{name.upper()}" if origin == _PREFIX else f"{origin}{name}"


def _parsed(parse: Any, value: Any, name: str, shown: str) -> Any:
    try:
        return parse(value)
    except (ValueError, TypeError, OverflowError) as err:
        raise ConfigError(f"{shown}: {err}", setting=name, value=value) from err


def parse_setting(name: str, value: Any, shown: str = "") -> Any:
    """Parse the value of a setting for ``Config``.

    Args:
        name: Name of the setting.
        value: Value as given by the user.
        shown: Name of the setting in messages; empty for ``name``.

    Raises:
        ConfigError: The value is invalid. The message contains the reason and valid values.
    """
    return _parsed(SETTINGS[name].metadata["parse"], value, name, shown or name)


def is_size(name: str) -> bool:
    """Return True if a setting is a number of bytes."""
    return SETTINGS[name].metadata["parse"] is _optional_bytes


def as_text(name: str, value: Any) -> str:
    """Format the value of a setting as for an environment variable."""
    if isinstance(value, tuple):
        return os.pathsep.join(value)
    if value is None:
        return "auto"
    if is_size(name):
        return size_text(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def settings_of(config: Config | None) -> Config:
    """Return these settings, or for None those in force in the process.

    Raises:
        ConfigError: The argument is not a ``Config``.
    """
    if config is None:
        return current()
    if not isinstance(config, Config):
        raise ConfigError(
            f"config must be a prefeed.Config, not {type(config).__name__}; "
            "prefeed.configure(memory='8GiB') changes the settings of this process and returns one"
        )
    return config


_process_overrides: dict[str, Any] = {}
_resolved: tuple[dict[bytes, bytes], Config] | None = None
"""Environment and result of the last resolution."""


def configure(**settings: Any) -> Config:
    """Change settings of this process, read the files of settings again, and return the settings in force.

    Raises:
        ConfigError: A name is unknown or a value invalid. No setting was changed.
    """
    global _resolved
    config = resolve({**_process_overrides, **settings})
    _process_overrides.update(settings)
    _resolved = environment(), config
    return config


def current() -> Config:
    """Return the settings in force in this process.

    Calls return the same object until the environment changes or ``configure`` is called. Only then are the files read again.
    """
    global _resolved
    last, now = _resolved, environment()
    if last is None or last[0] != now:
        last = _resolved = now, resolve(_process_overrides)
    return last[1]


def environment() -> dict[bytes, bytes]:
    """Return a copy of the environment. ``os.environ.copy()`` decodes each variable, which takes longer than a cached read."""
    copy: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]
    return copy
