"""A small kubelet: the containers of a pod as processes, each in a PID and a mount namespace of its own, with the pod's volumes.

It does what a pod's document says of commands, environment, volumes, mounts, read-only roots, init containers, startup probes and
native sidecars. There are no images and no users: a container is root and sees this machine's files, with an empty /run, a /dev/shm of
its pod, and none of the sockets of others. Volumes belong to another user and all may write to them, as a kubelet makes them for a user
that is not root; those in memory are file systems with the pod's limit. Pods that are given the same directories of a node share them.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from prefeed_bench.errors import BenchFailedError, MissingRequirementError

Document = dict[str, Any]

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWPID: Final = 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_PRIVATE_TREE = 0x1, 0x20, 0x1000, 0x40000 | 0x4000
_PR_SET_PDEATHSIG: Final = 1
_ANOTHER_USER: Final = 1234
_PROBE_SECONDS: Final = 300.0
_PROBE_PAUSE_SECONDS: Final = 0.05
_EXECUTED: Final = "executed"
_OF_SERVERS: Final = Path(f"/tmp/prefeed-{os.getuid()}")
_KINDS: Final = (("mnt", _CLONE_NEWNS), ("pid", _CLONE_NEWPID))

_libc = ctypes.CDLL(None, use_errno=True)


class Pod:
    """A pod that runs: its servers are started; other containers are run when its user says so.

    A server is a native sidecar, or a container with a startup probe.
    """

    def __init__(self, pipe: Connection, logs: Path) -> None:
        self._pipe = pipe
        self._logs = logs

    def run(self, name: str) -> tuple[int, str]:
        """Run a container to its end; return its exit status and what it wrote this time."""
        self.begin(name)
        return self.finish(name)

    def begin(self, name: str) -> None:
        """Start a container; nothing else can be asked of the pod before ``finish``."""
        self._pipe.send(("run", name))

    def finish(self, name: str) -> tuple[int, str]:
        """Wait for the end of a container that was begun; return its exit status and what it wrote this time."""
        return int(self._answer("run", name)), self.log(name)

    def kill(self, name: str) -> None:
        """End all processes of a sidecar by SIGKILL."""
        self._ask("kill", name)

    def start(self, name: str) -> None:
        """Start a sidecar, and wait for its startup probe."""
        self._ask("start", name)

    def stop(self, name: str) -> int:
        """End a sidecar by SIGTERM; return its exit status."""
        return int(self._ask("stop", name))

    def execute(self, name: str, *command: str) -> tuple[int, str]:
        """Run a command in a container, as ``kubectl exec``; return its exit status and what it wrote."""
        status = self._ask("execute", name, *command)
        return status, self.log(_EXECUTED)

    def log(self, name: str) -> str:
        """Return what a container has written."""
        return (self._logs / f"{name}.log").read_text()

    def _ask(self, *words: str) -> Any:
        self._pipe.send(words)
        return self._answer(*words)

    def _answer(self, *words: str) -> Any:
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise BenchFailedError(f"{' '.join(words)}: {answer}")
        return answer


@contextlib.contextmanager
def pod_running(
    documents: Sequence[Document], name: str, root: Path, on_node: Mapping[str, Path] = MappingProxyType({})
) -> Iterator[Pod]:
    """Run a pod with the ConfigMaps and Secrets that stand beside it; nothing of it is left at the end.

    Args:
        documents: Of kind Pod, ConfigMap and Secret.
        name: Of the pod.
        root: A directory for volumes and logs; must not exist.
        on_node: Directories that stand for those of the node, by their paths in documents.

    Raises:
        MissingRequirementError: This machine allows no namespaces.
        BenchFailedError: The pod does not start; what its containers wrote is in the message.
    """
    root.mkdir()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_pod, args=(documents, name, root, on_node, there))
    process.start()
    there.close()
    try:
        answer = here.recv()
        if answer is None:
            raise MissingRequirementError("this needs root, and a machine that allows mount and PID namespaces")
        if isinstance(answer, str):
            logs = "\n".join(path.read_text() for path in root.glob("*.log"))
            raise BenchFailedError(f"the pod does not start: {answer}\n{logs}")
        yield Pod(here, root)
    finally:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            here.send(("end",))
        process.join()
        process.close()
        here.close()


def pods_of(job: Document) -> list[Document]:
    """Return the pods that a controller makes for an Indexed Job, each with its index and its name."""
    name, spec = job["metadata"]["name"], job["spec"]
    made = []
    for index in range(spec["completions"]):
        pod = copy.deepcopy(spec["template"])
        pod["metadata"] = {**pod.get("metadata", {}), "name": f"{name}-{index}"}
        for container in pod["spec"]["containers"]:
            container["env"] = [*container.get("env", ()), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]
        made.append({"apiVersion": "v1", "kind": "Pod", **pod})
    return made


# ---------------------------------------------------------------- in the process of the pod


def _pod(documents: Sequence[Document], name: str, root: Path, on_node: Mapping[str, Path], pipe: Connection) -> None:
    _die_with_parent()
    if os.geteuid() or _libc.unshare(_CLONE_NEWNS):
        pipe.send(None)
        return
    _mount("none", "/", None, _MS_PRIVATE_TREE)
    pod = _Containers(documents, name, root, on_node)
    _mount("none", "/dev/shm", "tmpfs", 0)  # its containers share one; the node's is in volumes only
    _OF_SERVERS.mkdir(mode=0o700, exist_ok=True)
    _mount(
        "none", str(_OF_SERVERS), "tmpfs", 0, "mode=0700"
    )  # all pods have one home: none finds the server of another
    try:
        pod.begin()
        pipe.send(0)
    except (OSError, ValueError, KeyError) as err:
        pipe.send(f"{type(err).__name__}: {err}")
    for words in iter(pipe.recv, ("end",)):
        try:
            pipe.send(getattr(pod, words[0])(*words[1:]))
        except (OSError, ValueError, KeyError) as err:
            pipe.send(f"{type(err).__name__}: {err}")
    pod.end()


class _Containers:
    def __init__(self, documents: Sequence[Document], name: str, root: Path, on_node: Mapping[str, Path]) -> None:
        (found,) = [each for each in documents if each["kind"] == "Pod" and each["metadata"]["name"] == name]
        self._spec = found["spec"]
        self._root = root
        self._on_node = on_node
        self._containers = {
            each["name"]: each for each in [*self._spec.get("initContainers", ()), *self._spec["containers"]]
        }
        self._volumes = {each["name"]: self._volume(each, documents) for each in self._spec.get("volumes", ())}
        self._running: dict[str, tuple[int, int]] = {}  # name: (process outside, process 1)

    def begin(self) -> None:
        """Init containers in their order, sidecars among them, then the other servers."""
        for each in self._spec.get("initContainers", ()):
            if each.get("restartPolicy") == "Always":
                self.start(each["name"])
            elif status := self.run(each["name"]):
                raise ChildProcessError(f"{each['name']} has ended with status {status}")
        for each in self._spec["containers"]:
            if "startupProbe" in each:
                self.start(each["name"])

    def start(self, name: str) -> int:
        self._running[name] = self._begin(name)
        probe = self._containers[name]["startupProbe"]["exec"]["command"]

        deadline = time.monotonic() + _PROBE_SECONDS
        while self.execute(name, *probe) != 0:
            if os.waitpid(self._running[name][0], os.WNOHANG)[0]:
                del self._running[name]
                raise ChildProcessError(f"{name} has ended")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is not ready")
            time.sleep(_PROBE_PAUSE_SECONDS)
        return 0

    def run(self, name: str) -> int:
        (self._root / f"{name}.log").write_bytes(b"")
        outside, _ = self._begin(name)
        return _status_of(outside)

    def kill(self, name: str) -> int:
        return self._signal(name, signal.SIGKILL)

    def stop(self, name: str) -> int:
        return self._signal(name, signal.SIGTERM)

    def execute(self, name: str, *command: str) -> int:
        _, inside = self._running[name]
        (self._root / f"{_EXECUTED}.log").write_bytes(b"")
        return _status_of(_forked(lambda: self._enter(name, inside, list(command))))

    def _enter(self, name: str, inside: int, command: list[str]) -> int:
        namespaces = [(os.open(f"/proc/{inside}/ns/{kind}", os.O_RDONLY), flag) for kind, flag in _KINDS]
        for namespace, flag in namespaces:
            if _libc.setns(namespace, flag):
                return 126
        return _status_of(
            _forked(lambda: self._become(name, command, _EXECUTED))
        )  # only children are in the PID namespace

    def end(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def _signal(self, name: str, number: int) -> int:
        outside, inside = self._running.pop(name)
        os.kill(inside, number)
        return _status_of(outside)

    def _begin(self, name: str) -> tuple[int, int]:
        """Start a container; return the process that waits for it, and its process 1 as it is called out here."""
        theirs, ours = os.pipe()

        def wait_for_it() -> int:
            _die_with_parent()
            if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID):
                return 126
            set_up, is_set_up = os.pipe()
            inside = _forked(lambda: self._be(self._containers[name], is_set_up))
            os.close(is_set_up)
            os.read(set_up, 1)  # a probe before its mounts are made would open files that they replace
            os.write(ours, str(inside).encode())
            os.close(ours)
            return _status_of(inside)

        outside = _forked(wait_for_it)
        os.close(ours)
        inside = int(os.read(theirs, 20) or b"0")
        os.close(theirs)
        return outside, inside

    def _be(self, container: Document, is_set_up: int) -> int:
        _die_with_parent()
        self._mount_volumes(container)
        os.close(is_set_up)
        name = container["name"]
        return self._become(name, [*container["command"], *container.get("args", ())], name)

    def _become(self, name: str, command: list[str], log_name: str) -> int:
        container = self._containers[name]
        given = {each["name"]: each["value"] for each in container.get("env", ())}
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "LANG": "C.UTF-8",
            **given,
        }
        log = os.open(self._root / f"{log_name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir("/")
        os.execvpe(command[0], command, environment)

    def _mount_volumes(self, container: Document) -> None:
        log = self._root / f"{container['name']}.log"
        log.touch()
        _mount("none", "/run", "tmpfs", 0)
        for each in container.get("volumeMounts", ()):
            target = Path(each["mountPath"])
            target.mkdir(parents=True, exist_ok=True)
            _mount(str(self._volumes[each["name"]]), str(target), None, _MS_BIND)
            if each.get("readOnly"):
                _mount("none", str(target), None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)
        _libc.mount(b"proc", b"/proc", b"proc", 0, None)  # refused in some sandboxes: the one outside serves too
        if container.get("securityContext", {}).get("readOnlyRootFilesystem"):
            _mount("none", str(_OF_SERVERS), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
            _mount(str(self._root), str(self._root), None, _MS_BIND)  # the log is no part of the root
            _mount("none", "/", None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)

    def _directory(self, path: str) -> Path:
        for place, directory in self._on_node.items():
            if Path(path).is_relative_to(place):
                return directory / Path(path).relative_to(place)
        return Path(path)

    def _volume(self, volume: Document, documents: Sequence[Document]) -> Path:
        path = self._root / f"volume-{volume['name']}"
        path.mkdir()
        if "hostPath" in volume:
            given = self._directory(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                given.mkdir(parents=True, exist_ok=True)
            _mount(str(given), str(path), None, _MS_BIND)
            return path
        if "emptyDir" in volume:
            if volume["emptyDir"].get("medium") == "Memory":
                size = volume["emptyDir"]["sizeLimit"].removesuffix("Mi")
                _mount("none", str(path), "tmpfs", 0, f"size={size}m")
            os.chmod(path, 0o777)
            os.chown(path, _ANOTHER_USER, _ANOTHER_USER)
            return path
        kind, name = ("ConfigMap", "name") if "configMap" in volume else ("Secret", "secretName")
        wanted = volume["configMap" if kind == "ConfigMap" else "secret"][name]
        (found,) = [each for each in documents if each["kind"] == kind and each["metadata"]["name"] == wanted]
        is_encoded = kind == "Secret" and "stringData" not in found
        texts: dict[str, str] = found.get("stringData") or found.get("data") or {}
        for key, value in texts.items():
            (path / key).write_bytes(base64.b64decode(value) if is_encoded else value.encode())
        return path


def _forked(work: Callable[[], int]) -> int:
    """Return the process id of a child that does this and ends with the status that it returns."""
    child = os.fork()
    if child == 0:
        status = 127
        try:
            status = work()
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status & 0xFF)
    return child


def _status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if each is None else each.encode() for each in (source, target, kind)]
    if _libc.mount(*words, flags, options.encode() or None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
