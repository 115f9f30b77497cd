"""The sidecar of a pod: records the set that the pod was given, serves it, and fills in what the set holds.

::

    volumes: documents, secrets ─→ the home: the set, its credentials ─→ the node server, in this process, until SIGTERM
                                  `prefeed sampleset bring-up`, then `prefeed job apply`: children, tried until they are done ←┘
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import PrefeedError, SpecError
from prefeed.kubernetes.layout import DOCUMENT, DOCUMENTS, JOBS, OWN, SECRETS
from prefeed.sampleset.applying import SECRET, SECRET_KEYS, apply_documents
from prefeed.sampleset.documents import Document
from prefeed.sampleset.records import find
from prefeed.sampleset.yaml_files import load_documents

_LOOK_AGAIN_SECONDS: Final = 0.05
_LEAST_WAIT_SECONDS: Final = 1.0
_MOST_WAIT_SECONDS: Final = 60.0

Serve = Callable[[Config], int]
"""Is the node server until it is told to end; returns the exit status."""


def run_sidecar(name: str, config: Config, serve: Serve) -> int:
    """Serve the set of a pod until SIGTERM; return the exit status.

    A container that is restarted finds the home and the tier as they were left.

    Args:
        name: Of the set.
        config: Settings in force; their home lies in the pod's volume.
        serve: The node server, in this process.

    Raises:
        SpecError: The document of the set, or a secret, is not there or is not understood.
    """
    for directory in OWN:
        if directory.parent.is_dir():  # without a level on disk there is no volume for one
            directory.mkdir(mode=0o700, exist_ok=True)
    apply_documents([*_secrets(), *_documents()], config)
    settings = find(name, config).settings(config)
    filling = _Filling(name, settings, dict(os.environ))  # before the server forgets the variables of stores
    filling.start()
    try:
        return serve(settings)
    finally:
        filling.end()


def _documents() -> list[Document]:
    path = DOCUMENTS / DOCUMENT
    try:
        return list(load_documents(path.read_bytes(), str(path)))
    except OSError as err:
        raise SpecError(f"{path} cannot be read: {err.strerror}; mount the ConfigMap of the sample set there") from err


def _secrets() -> Iterator[Document]:
    """Yield the secrets that are mounted: a directory each, with a file for each key."""
    for directory in sorted(SECRETS.iterdir()) if SECRETS.is_dir() else ():
        keys = {key: _encoded(directory / key) for key in SECRET_KEYS if (directory / key).is_file()}
        yield {"apiVersion": "v1", "kind": SECRET, "metadata": {"name": directory.name}, "data": keys}


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


class _Filling:
    """Lists and copies what the set holds, then runs its jobs: in children, each tried again and again until it is done.

    **Threads and processes**: one thread, which waits for one child at a time. ``end`` ends both.
    """

    def __init__(self, name: str, settings: Config, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._work = [["sampleset", "bring-up", name, "--no-start"]]
        if (DOCUMENTS / JOBS).is_file():
            self._work.append(["job", "apply", "-f", str(DOCUMENTS / JOBS)])
        self._environment = environment
        self._is_ending = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="prefeed-filling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Neither thread nor child is there any more."""
        with self._lock:
            self._is_ending.set()
            if self._child is not None:
                self._child.send_signal(signal.SIGTERM)
        self._thread.join()

    def _run(self) -> None:
        while not self._answers():
            if self._is_ending.wait(_LOOK_AGAIN_SECONDS):
                return
        for words in self._work:
            wait = _LEAST_WAIT_SECONDS
            while self._try(words) != 0 and not self._is_ending.wait(wait):
                wait = min(2 * wait, _MOST_WAIT_SECONDS)

    def _answers(self) -> bool:
        try:
            with NodeClient.connect(self._settings, autostart=False):
                return True
        except (PrefeedError, OSError):  # it starts, or is busy
            return False

    def _try(self, words: list[str]) -> int:
        """Return the exit status of a child; 0 when none is to be started any more."""
        with self._lock:
            if self._is_ending.is_set():
                return 0
            command = [sys.executable, "-m", "prefeed", *words]
            self._child = subprocess.Popen(command, env=self._environment, stdin=subprocess.DEVNULL)
        return self._child.wait()
