"""Programs of tests, forked from a process that has imported what they import: milliseconds instead of seconds.

``install`` replaces ``subprocess.Popen``, for this process, by one that starts the programs of ``PROGRAMS`` from a *warm*
process; any other command is started as ever. What is started is a process like any other: a child of this one, with
the arguments, environment, directory, descriptors and session that were asked for, in /proc too. Only what an
interpreter does before it runs the first line of a program is left out, so tests of that mark themselves ``cold``.
Processes that ``multiprocessing`` spawns, and its fork server, are forked alike.

    pytest ──Popen──→ WarmPopen ──request, descriptors──→ warm process ──fork──→ between ──fork──→ program
       ↑                                                                            │ ends          │
       └───────────────── is the parent from then on (PR_SET_CHILD_SUBREAPER) ←─────┴───────────────┘
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing.util
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final

PYTHON: Final = sys.executable
TESTS: Final = Path(__file__).parent
BENCH: Final = TESTS.parent / "bench" / "src" / "prefeed_bench"
EXAMPLES: Final = TESTS.parent / "examples"
SCRIPTS: Final = Path(PYTHON).parent

_WITH_PREFEED: Final = ("prefeed.server.main", "prefeed.client.node")
_WITH_TORCH: Final = ("torch", "torchvision", "torchvision.datasets", "prefeed.torch.loader", *_WITH_PREFEED)

PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "-m prefeed.server": _WITH_PREFEED,
    "-m prefeed.cli.main": _WITH_PREFEED,
    "-m prefeed": _WITH_PREFEED,
    f"{SCRIPTS}/cache_admin": _WITH_PREFEED,
    "-m prefeed.sources.fork_proxy": _WITH_PREFEED,
    "-m prefeed.mount.holder": (*_WITH_PREFEED, "prefeed.mount.daemon", "prefeed.mount.starting"),
    **{f"-m prefeed_bench.{name}": _WITH_PREFEED for name in ("origin", "slow_directory_server")},
    **{f"-m e2e.{name}": _WITH_TORCH for name in ("ddp_train", "parity_job")},
    "-m e2e.frameworks": (*_WITH_TORCH, "accelerate", "lightning"),
    "-m prefeed_bench.loading": _WITH_TORCH,
    **{
        f"-m prefeed_bench.cases.{name}": _WITH_TORCH
        for name in ("loader_ceiling", "multi", "pod", "pool", "stage_hit")
    },
    **{f"{BENCH}/scripts/{name}.py": _WITH_TORCH for name in ("job", "train")},
    **{f"{EXAMPLES}/{path.name}": _WITH_TORCH for path in EXAMPLES.glob("*.py")},
    "-m e2e.home_node": _WITH_TORCH,
    f"{TESTS}/docs/run_page.py": _WITH_TORCH,
    "-m docs.run_page": (*_WITH_TORCH, "accelerate", "lightning"),
    f"{TESTS}/process/trainer.py": _WITH_TORCH,
    f"{TESTS}/process/view_job.py": _WITH_TORCH,
}
"""What is started warm, and the modules that are imported before."""


def given_as_text(code: str) -> str:
    """Have a program that is given with ``-c`` forked from a process that has imported torch; returns it."""
    PROGRAMS[f"-c {code}"] = _WITH_TORCH
    return code


_INHERITED: Final = frozenset(
    {"PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "USER"}
)
_PADDING_BYTES: Final = 4096
_ENVIRONMENT_BYTES: Final = 65536
_PR_SET_CHILD_SUBREAPER: Final = 36
_MADV_COLLAPSE: Final = 25
_HUGE_BYTES: Final = 2 << 20
_LENGTH: Final = struct.Struct("!I")
_MOST_DESCRIPTORS: Final = 64

_libc = ctypes.CDLL(None, use_errno=True)


# ---------------------------------------------------------------- the process that starts programs


class WarmPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` that forks what it can from a warm process."""

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        names = (
            "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell", "p2cread",
            "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite", "restore_signals", "gid", "gids", "uid", "umask",
            "start_new_session", "process_group",
        )  # fmt: skip
        how = dict(zip(names, rest, strict=True))
        modules = _modules_for(args, executable, how)
        if modules is None:
            super()._execute_child(args, executable, *rest)  # type: ignore[misc]
            return
        streams = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        request = {
            "arguments": [os.fsdecode(argument) for argument in args],
            "environment": {
                os.fsdecode(name): os.fsdecode(value)
                for name, value in (os.environ if how["env"] is None else how["env"]).items()
            },
            "directory": os.fsdecode(how["cwd"] or os.getcwd()),
            "descriptors": [0, 1, 2, *how["pass_fds"]],
            "new_session": bool(how["start_new_session"]),
            "process_group": how["process_group"],
            "modules": modules,
        }
        sys.audit("subprocess.Popen", PYTHON, request["arguments"], request["directory"], None)
        descriptors = [own if given == -1 else given for own, given in enumerate(streams)]
        try:
            self.pid = _warm_processes.fork(request, [*descriptors, *how["pass_fds"]])
            self._child_created = True
        finally:
            pipes = (how[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _modules_for(args: Any, executable: Any, how: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what the program wants to find imported; None when it is to be started by a new interpreter."""
    is_plain = (
        executable is None
        and isinstance(args, Sequence)
        and not isinstance(args, str | bytes)
        and how["preexec_fn"] is None
        and how["close_fds"]
        and not how["shell"]
        and (how["gid"], how["gids"], how["uid"], how["umask"]) == (None, None, None, -1)
    )
    if not is_plain or not _warm_processes.is_owner or os.fspath(args[0]) != PYTHON:
        return None
    words = [os.fspath(argument) for argument in args[1:3]]
    return PROGRAMS.get(words[0]) or PROGRAMS.get(" ".join(map(str, words)))


@dataclass
class _WarmProcesses:
    """One warm process for each set of modules, started at first use."""

    is_used: bool = False
    is_paused: bool = False
    sockets: dict[tuple[str, ...], socket.socket] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    owner: int = 0
    lock: Any = field(default_factory=threading.Lock)

    @property
    def is_owner(self) -> bool:
        return self.is_used and not self.is_paused and os.getpid() == self.owner

    def fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have the program forked; return its process id: it is a child of this process."""
        with self.lock:
            modules = tuple(request["modules"])
            if modules not in self.sockets:
                self.sockets[modules] = self._start(modules)
            sock = self.sockets[modules]
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                body = json.dumps(request).encode("utf-8", "surrogatepass")
                socket.send_fds(sock, [_LENGTH.pack(len(body))], list(descriptors))
                sock.sendall(body)
                return int(_LENGTH.unpack(_receive_exactly(sock, _LENGTH.size))[0])
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _start(self, modules: tuple[str, ...]) -> socket.socket:
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); import warm; sys.path.pop(0); warm.serve({theirs.fileno()}, {modules!r})()"
        # Nothing of a test's own: its sandbox ends all processes that name it.
        environment = {name: value for name, value in os.environ.items() if name in _INHERITED}
        # One thread each: a process that has several cannot be forked.
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment["_ROOM"] = "x" * _ENVIRONMENT_BYTES
        with theirs:
            process = _cold_popen(
                [PYTHON, "-c", code, "x" * _PADDING_BYTES],
                env=environment, cwd="/", stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return ours

    def close(self) -> None:
        """End the warm processes; programs that they have forked go on."""
        if os.getpid() == self.owner:
            for sock in self.sockets.values():
                sock.close()
            for process in self.processes:
                process.wait()
            self.sockets.clear()
            self.processes.clear()


def _spawn_warm(path: Any, args: Sequence[Any], descriptors: Sequence[Any]) -> int:
    """As ``multiprocessing.util.spawnv_passfds``; the tracker of resources, which imports next to nothing, is started as ever."""
    words = [os.fsdecode(word) for word in args]
    kept = sorted({int(descriptor) for descriptor in descriptors})
    is_warm = words[1:2] == ["-c"] and words[2].startswith(_SPAWNED) and len(kept) <= _MOST_DESCRIPTORS - 3
    if not is_warm or not _warm_processes.is_owner or os.fsdecode(path) != PYTHON:
        return int(_cold_spawn(path, args, descriptors))  # says itself that it starts a process
    sys.audit("os.posix_spawn", path, words, None)
    request = {
        "arguments": words,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "descriptors": [0, 1, 2, *kept],
        "new_session": False,
        "process_group": -1,
        "modules": _WITH_TORCH,
    }
    return _warm_processes.fork(request, [0, 1, 2, *kept])


_SPAWNED: Final = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")
_cold_spawn = multiprocessing.util.spawnv_passfds
_cold_popen = subprocess.Popen
_warm_processes = _WarmProcesses()


def install() -> None:
    """From now on this process starts the programs of ``PROGRAMS`` warm; its children do not."""
    _warm_processes.is_used = True
    _warm_processes.owner = os.getpid()
    global _cold_spawn
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    _cold_spawn = multiprocessing.util.spawnv_passfds
    multiprocessing.util.spawnv_passfds = _spawn_warm
    atexit.register(_warm_processes.close)


def process_ids() -> list[int]:
    """Return the warm processes of this process."""
    return [process.pid for process in _warm_processes.processes]


def descriptors() -> list[int]:
    """Return the descriptors by which this process speaks to them."""
    return [sock.fileno() for sock in _warm_processes.sockets.values()]


def pause(is_paused: bool) -> None:
    """Start every program by a new interpreter for a while."""
    _warm_processes.is_paused = is_paused


# ---------------------------------------------------------------- the warm process


@dataclass
class Job:
    """One program that this process, a fork of the warm one, is to become."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    descriptors: list[int]
    new_session: bool
    process_group: int
    modules: list[str]
    received: list[int]
    base_path: list[str]

    def __call__(self) -> None:
        """Run the program in ``__main__``, as the interpreter would; what it raises ends the process as ever.

        One that comes to its end has its threads waited for and its exit functions called, and then ends at once: to take
        apart all modules would take as long as to import them.
        """
        status = 0
        try:
            self._run()
        except SystemExit as err:
            if not isinstance(err.code, int | None):
                raise
            status = err.code or 0
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status & 0xFF)

    def _run(self) -> None:
        main = sys.modules["__main__"].__dict__
        for name in [name for name in main if name not in ("__name__", "__builtins__", "__doc__", "__package__")]:
            del main[name]
        words = self.arguments[1:]
        if words[0] == "-m":
            sys.argv = words[:1] + words[2:]
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
            return
        if words[0] == "-c":
            sys.argv = words[:1] + words[2:]
            exec(compile(words[1], "<string>", "exec"), main)
            return
        sys.argv = words
        path = words[0]
        main.update(__file__=path, __cached__=None, __spec__=None, __loader__=SourceFileLoader("__main__", path))
        exec(compile(Path(path).read_bytes(), path, "exec"), main)


class _PatientOs:
    """``os``, but for those who wait until a disk has what was written; a test that puts its own ``fsync`` there sees it called."""

    _fsync = staticmethod(os.fsync)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        if os.fsync is not self._fsync:
            os.fsync(descriptor)


def spare_the_disk() -> None:
    """Nothing of ours waits for a disk: no test cuts the power, and each wait takes a tenth of a second.

    ``os`` itself stays as it is: a function that was put into its place is seen in stages' fingerprints.
    """
    for name in ("system.files", "sources.manifest_writer", "transfer.directory"):
        importlib.import_module(f"prefeed.{name}").os = _PatientOs()  # type: ignore[attr-defined]


def ease_forks() -> None:
    """Put the memory of this process into huge pages, of which a fork copies 2 MiB where it would copy 512 entries.

    A fork of a process with 700 MB takes 22 ms of processor time instead of 90, on 2 busy cores in November 2026. Pages that are written
    while a child has them too fall apart again. Needs Linux 6.1; on others nothing happens.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, mode, _, _, _, *name = line.split()
        if mode == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            for address in range(-(-start // _HUGE_BYTES) * _HUGE_BYTES, end - _HUGE_BYTES + 1, _HUGE_BYTES):
                libc.madvise(address, _HUGE_BYTES, _MADV_COLLAPSE)


def serve(number: int, modules: Sequence[str]) -> Callable[[], None]:
    """Fork whenever asked to; returns in each fork, what it is to run. Ends the warm process when its owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    base_path = sys.path[1:]
    for name, value in list(os.environ.items()):  # copied: the room of the first environment is for those of the forks
        os.environ[name] = value
    del os.environ["_ROOM"]
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError):  # environments of frameworks have no torch
            importlib.import_module(module)
    spare_the_disk()
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()  # no fork has to look through what has been imported
    ease_forks()
    sock = socket.socket(fileno=number)
    while True:
        try:
            header, received, _, _ = socket.recv_fds(sock, _LENGTH.size, _MOST_DESCRIPTORS)
            if not header:
                os._exit(0)
            request = json.loads(_receive_exactly(sock, _LENGTH.unpack(header)[0]).decode("utf-8", "surrogatepass"))
        except OSError:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between, program = os.getpid(), os.fork()
            if program:
                os.write(writing, _LENGTH.pack(program))
                os._exit(0)
            while os.getppid() == between:
                os.sched_yield()
            for descriptor in (reading, writing, sock.detach()):
                os.close(descriptor)
            return _prepared(Job(**request, received=received, base_path=base_path))
        os.close(writing)
        program = _LENGTH.unpack(os.read(reading, _LENGTH.size))[0]
        for descriptor in (reading, *received):
            os.close(descriptor)
        os.waitpid(between, 0)  # its child has another parent now
        sock.sendall(_LENGTH.pack(program))


def _prepared(job: Job) -> Job:
    """Take on everything of the process that was asked for but its program."""
    if job.new_session:
        os.setsid()
    elif job.process_group >= 0:
        os.setpgid(0, job.process_group)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    highest = max(job.descriptors) + 1
    moved = []
    for descriptor in job.received:  # out of the way of the numbers that are wanted
        copy = _duplicate_above(descriptor, highest)
        os.close(descriptor)
        moved.append(copy)
    for copy, wanted in zip(moved, job.descriptors, strict=True):
        os.dup2(copy, wanted, inheritable=True)
        os.close(copy)
    os.chdir(job.directory)
    os.environ.clear()
    os.environ.update(job.environment)
    _show_in_proc(job.arguments, job.environment)
    _open_streams(is_unbuffered=bool(job.environment.get("PYTHONUNBUFFERED")))
    words = job.arguments[1:]
    first = {"-m": job.directory, "-c": ""}.get(words[0], os.path.dirname(os.path.abspath(words[0])))
    added = job.environment.get("PYTHONPATH", "")
    sys.path[:] = [first, *(added.split(os.pathsep) if added else ()), *job.base_path]
    sys.orig_argv[:] = job.arguments
    importlib.invalidate_caches()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # each interpreter draws other numbers, until it is told not to
    return job


def _duplicate_above(descriptor: int, least: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(least, 3))


def _open_streams(*, is_unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        stream = open(  # noqa: SIM115 - the program's own
            number, "r" if number == 0 else "w", encoding=old.encoding, errors=old.errors, closefd=False
        )
        if number:
            is_by_line = not is_unbuffered and (number == 2 or stream.isatty())
            stream.reconfigure(line_buffering=is_by_line, write_through=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show_in_proc(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let /proc/self/cmdline and environ say what they would say of a new interpreter."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end, environment_start, environment_end = map(int, fields[45:49])
    words = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    _overwrite(start, end, words)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    _overwrite(environment_start, environment_end, variables)


def _overwrite(start: int, end: int, data: bytes) -> None:
    room = end - start
    ctypes.memset(start, 0, room)
    ctypes.memmove(start, data, min(len(data), room - 1))


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise OSError("the other side of a warm process is gone")
        data += more
    return data
