"""Program of the sidecar: records the set of the pod, serves it, lists and copies its objects, and runs its jobs.

::

    volumes: documents, secrets ─→ the home: the set, its credentials ─→ the node server, in this process, until SIGTERM
                                  `prefeed sampleset bring-up`, then `prefeed job apply`: children, retried until done ←┘
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prefeed.client.node import NodeClient
from prefeed.config import EVERYTHING, Config
from prefeed.errors import PrefeedError, SpecError
from prefeed.jobs.records import SUCCEEDED
from prefeed.jobs.running import JobEvents, apply_job
from prefeed.jobs.spec import WARMUP, parse_job, resolve_job
from prefeed.kubernetes.child import ChildRunner
from prefeed.kubernetes.layout import DOCUMENT, DOCUMENTS, JOBS, OWN, SECRETS
from prefeed.kubernetes.sizes import PORT, SizesEndpoint
from prefeed.sampleset.applying import SECRET, SECRET_KEYS, apply_documents
from prefeed.sampleset.documents import Document
from prefeed.sampleset.records import find
from prefeed.sampleset.yaml_files import load_documents
from prefeed.system.removing import remove_tree
from prefeed.system.units import format_bytes

_LOOK_AGAIN_SECONDS: Final = 0.05
_LEAST_WAIT_SECONDS: Final = 1.0
_MOST_WAIT_SECONDS: Final = 15.0
"""Maximum delay before a refused listing is tried again, and interval at which changed secrets are looked for."""

TERMINATION: Final = Path("/dev/termination-log")
"""File whose text kubelet shows as the termination message of the container."""

_MOST_SAID: Final = 2000

Serve = Callable[[Config], int]
"""Runs the node server until it is stopped, and returns the exit status."""

Say = Callable[[str], None]
"""Writes a line to the log of the container."""


def run_sidecar(
    name: str, config: Config, serve: Serve, say: Say, *, is_cleared: bool = False, port: int = PORT
) -> int:
    """Serve the set of a pod until SIGTERM. Return the exit status.

    A restarted container finds the home and the tier of the previous one.

    Args:
        name: Name of the set.
        config: Settings in force. Their home is in the pod's volume.
        serve: Runs the node server in this process.
        say: Logs the set, the listing and the jobs.
        is_cleared: Whether to clear the directories at the end, which on a node no other process would do.
        port: Port that reports the cache sizes; 0 chooses a free one.

    Raises:
        SpecError: The document of the set, or a secret, is missing or invalid.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("prefeed").setLevel(logging.INFO)  # reports a failing origin and low memory
    settings = _given(name, config)
    environment = dict(os.environ)  # copied first, because the server removes the variables of stores
    say(f"serves the sample set {name} from {find(name, config).read_url}; {_sizes_of(settings)}")
    looking = ChildRunner(environment)
    sizes = SizesEndpoint(lambda: looking.run("sampleset", "list", name, "--json", has_output=True)[1], port=port)
    filling = _Filling(name, config, environment, say, sizes.expire)
    filling.start()
    sizes.start()
    try:
        return serve(settings)
    finally:
        looking.end()
        sizes.end()
        filling.end()
        if is_cleared:
            _clear()


def run_job(name: str, text: str, config: Config, *, partitions: int = 1, is_again: bool = False) -> int:
    """Run a job of a set in a pod of its own. Return the exit status.

    Args:
        name: Name of the set.
        text: Document of the job, as JSON.
        config: Settings in force.
        partitions: Number of pods that run the job, each on another node. They divide a warm-up.
        is_again: Whether the job has a schedule. Each run is then recorded under the name of its pod.

    Raises:
        SpecError: The set or a secret is invalid.
    """
    _given(name, config)
    try:
        document = json.loads(text)
        if is_again:
            document["metadata"]["name"] = socket.gethostname()
        if partitions > 1 and document["spec"]["type"] == WARMUP:
            document["spec"] = _part_of(document["spec"], partitions, int(os.environ["JOB_COMPLETION_INDEX"]))
        said = parse_job(document)
        record = apply_job(resolve_job(said.metadata.name, said.spec, document["spec"], config), config, JobEvents())
        is_done = record.phase == SUCCEEDED
        message = record.message or ", ".join(
            f"{key}: {value}" for key, value in (record.result or {}).items() if value
        )
    except PrefeedError as err:
        is_done, message = False, str(err)
    if TERMINATION.exists():
        TERMINATION.write_text(message[:_MOST_SAID])
    return 0 if is_done else 1


def _part_of(spec: Document, partitions: int, index: int) -> Document:
    options = spec.get("warmupOptions") or {}
    if "partitions" in options:
        return spec
    return {**spec, "warmupOptions": {**options, "partitions": partitions, "partition": index}}


def _sizes_of(settings: Config) -> str:
    memory = "half of the memory" if settings.memory is None else format_bytes(settings.memory)
    size = settings.disk.size_bytes
    disk = "all but a tenth of its disk" if size == EVERYTHING else format_bytes(size)
    return f"memory tier: {memory}, disk tier: {disk if size else 'none'}"


def _given(name: str, config: Config) -> Config:
    """Record the set of the pod in the home, and return its settings."""
    for directory in OWN:
        if directory.parent.is_dir():  # a set without a disk level has no volume for it
            directory.mkdir(mode=0o700, exist_ok=True)
    apply_documents([*_secrets(), *_documents()], config)
    return find(name, config).settings(config)


def _clear() -> None:
    """Empty the directories of this user, which hold the cache of this node in memory and on disk."""
    for directory in OWN:
        for path in directory.iterdir() if directory.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                remove_tree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _documents() -> list[Document]:
    path = DOCUMENTS / DOCUMENT
    try:
        return list(load_documents(path.read_bytes(), str(path)))
    except OSError as err:
        raise SpecError(f"{path} cannot be read: {err.strerror}; mount the ConfigMap of the sample set there") from err


def _secrets() -> Iterator[Document]:
    """Yield the mounted secrets: a directory each, with a file per key."""
    for directory in sorted(SECRETS.iterdir()) if SECRETS.is_dir() else ():
        keys = {key: _encoded(directory / key) for key in SECRET_KEYS if (directory / key).is_file()}
        yield {"apiVersion": "v1", "kind": SECRET, "metadata": {"name": directory.name}, "data": keys}


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


class _Filling:
    """Thread that lists and copies a set and then runs its jobs, each in a child that is retried until it succeeds.

    Changed secrets are recorded again, because kubelet updates their files in the volume.

    **Threads and processes**: one thread, which waits for one child at a time. ``end`` stops both.
    """

    def __init__(
        self, name: str, config: Config, environment: Mapping[str, str], say: Say, done: Callable[[], None]
    ) -> None:
        self._config = config
        self._done = done
        self._settings = find(name, config).settings(config)
        self._secrets = list(_secrets())
        self._say = say
        self._work = [["sampleset", "bring-up", name, "--no-start"]]
        if (DOCUMENTS / JOBS).is_file():
            self._work.append(["job", "apply", "-f", str(DOCUMENTS / JOBS)])
        self._is_ending = threading.Event()
        self._child = ChildRunner(environment)
        self._thread = threading.Thread(target=self._run, name="prefeed-filling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop the child and wait for the thread."""
        self._is_ending.set()
        self._child.end()
        self._thread.join()

    def _run(self) -> None:
        while not self._answers():
            if self._is_ending.wait(_LOOK_AGAIN_SECONDS):
                return
        for words in self._work:
            wait, called = _LEAST_WAIT_SECONDS, " ".join(words[:2])
            while self._child.run(*words)[0] != 0:
                self._say(f"{called} has failed, for the reason above; trying again in {wait:g} s")
                if self._is_ending.wait(wait):
                    return
                self._renew_secrets()
                wait = min(2 * wait, _MOST_WAIT_SECONDS)
            self._done()  # so that the operator does not report the previous failure
            self._say(f"{called} is done")
        while not self._is_ending.wait(_MOST_WAIT_SECONDS):
            self._renew_secrets()

    def _renew_secrets(self) -> None:
        """Record the secrets again if they have changed."""
        try:
            secrets = list(_secrets())
            if secrets != self._secrets:
                apply_documents([*secrets, *_documents()], self._config)
                self._secrets = secrets
                self._say("uses the changed secrets")
        except (PrefeedError, OSError) as err:
            self._say(f"the changed secrets are not used: {err}")

    def _answers(self) -> bool:
        try:
            with NodeClient.connect(self._settings, autostart=False):
                return True
        except (PrefeedError, OSError):  # the server is starting or busy
            return False
