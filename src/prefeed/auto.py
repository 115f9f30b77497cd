"""Zero code: after ``import prefeed.auto`` every ``torch.utils.data.DataLoader`` of the process is served.

So are loaders of other frameworks (``frameworks``). None is imported for it: when the program imports torch, before or after, its
loaders change in place. What cannot
be helped behaves exactly as before, and one line of the log says why. ``prefeed run`` does the same for a program, and
for those that it starts, with no line at all.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any, Final

from prefeed.after_import import after_import, forget
from prefeed.config import current
from prefeed.frameworks import hooks
from prefeed.run_summary import counters

__all__ = ["answer_beside", "disable", "enable"]

_log = logging.getLogger("prefeed")
_PREFIX = "prefeed: "
_WEBDATASET: Final = "webdataset"
"""All of it: its modules import each other, and one of them is there before it has what is replaced."""

_STREAMS: Final = "datasets.iterable_dataset"
"""Of Hugging Face: a worker that is spawned splits its files before it opens the first one."""


def enable() -> None:
    """Serve every loader, now or as soon as torch is imported; nothing when ``PREFEED_ENABLED`` is 0. Never raises."""
    after_import("torch", _begin)
    for name, act in _FRAMEWORKS.items():
        after_import(name, act)
    after_import("cv2", _REACH["cv2"])
    after_import(_WEBDATASET, _reach_shards)
    after_import(_STREAMS, _reach_streams)


def answer_beside() -> None:
    """Answer reads of files outside of samples too, if the settings say so (``reads = all``). Never raises."""
    try:
        config = current()
        if config.enabled and config.reads == "all":
            from prefeed.client import beside
            from prefeed.sampleset.names import resolve_roots

            beside.begin(resolve_roots(config))
            for name, reach in _REACH.items():
                after_import(name, reach)
    except Exception as err:  # a program that only imports a library must not fail for us
        _log.warning("prefeed: reads outside samples do not use the cache: %s", err)


def disable() -> None:
    """Leave torch, ``open`` and the log as they were; loaders are torch's own from their next epoch on."""
    forget("torch", _begin)
    forget(_WEBDATASET, _reach_shards)
    forget(_STREAMS, _reach_streams)
    for name, reach in (*_REACH.items(), *_FRAMEWORKS.items()):
        forget(name, reach)
    hooks.undo()
    for name, undo in (
        ("prefeed.torch.patch", "disable"), ("prefeed.client.beside", "end"), ("prefeed.interception", "uninstall"),
    ):  # fmt: skip
        if name in sys.modules:
            getattr(sys.modules[name], undo)()
    _voice.remove()


def _begin() -> None:
    """Do what ``enable`` promises: torch is there."""
    try:
        if not current().enabled:
            return
        interception, patch = _parts()
        counters.note(counters.IMPORTED, "torch")
        _speak()
        interception.install()
        patch.enable()
        answer_beside()
    except Exception as err:  # a program that only imports torch must not fail for us
        _log.warning("prefeed: off in this process: %s", err)


def _reach_shards() -> None:
    """WebDataset was imported: it reads ``prefeed:`` URLs."""
    try:
        from prefeed.files import webdataset

        webdataset.register()
    except Exception as err:
        _log.warning("prefeed: WebDataset does not read prefeed: URLs: %s", err)


def _reach_streams() -> None:
    """Hugging Face's streams were imported: what is read through the cache is opened ahead."""
    from prefeed.loaders import hugging_face

    hugging_face.register()


def _begin_framework(module: str) -> None:
    """Do what ``enable`` promises for a framework: the module that has its loaders is there."""
    try:
        if not current().enabled:
            return
        from prefeed import interception

        counters.note(counters.IMPORTED, module.partition(".")[0])
        _speak()
        interception.install()
        hooks.serve(module)
        _start_server()
        answer_beside()
    except Exception as err:  # a program that only imports it must not fail for us
        _log.warning("prefeed: loaders of %s are left alone: %s: %s", module.partition(".")[0], type(err).__name__, err)


def _start_server() -> None:
    """Let the node server start while the rest of a framework is imported; only for ``prefeed run``, which is asked to serve."""
    if not counters.is_counting() or _is_of_multiprocessing():
        return
    from prefeed.client.launch import start_ahead
    from prefeed.errors import PrefeedError
    from prefeed.sampleset.names import resolve_roots
    from prefeed.sources.mounts import Roots

    with suppress(PrefeedError):  # the first loader says it
        config = resolve_roots(current())
        if config.limits.start_ahead and Roots.of(config):
            start_ahead(config)


def _speak() -> None:
    if os.environ.get("PREFEED_QUIET") != "1":
        _voice.add()


def _reach_names(module: str) -> None:
    """A library was imported: replace what it reads with before anybody can write ``from cv2 import imread``."""
    try:
        if current().enabled:
            from prefeed import interception

            interception.install(finished=module)
    except Exception as err:
        _log.warning("prefeed: off in this process: %s", err)


_REACH: Final = {name: partial(_reach_names, name) for name in ("cv2", "numpy", "torchvision.io.image")}
"""What is done for libraries that read files past Python's ``open``."""


_FRAMEWORKS: Final = {name: partial(_begin_framework, name) for name in hooks.MODULES}
"""What is done for frameworks other than torch."""


def _parts() -> tuple[Any, Any]:
    """Return what is imported only once torch is: it imports torch, and much else.

    What serves loaders is imported with the first loader in a process of ``multiprocessing``: most are workers, and make none. In others
    it is imported now, so that processes that they fork have it.
    """
    from prefeed import interception
    from prefeed.torch import patch

    if not _is_of_multiprocessing():
        import prefeed.torch.loader  # noqa: F401
    return interception, patch


def _is_of_multiprocessing() -> bool:
    """Return whether another process of the program has started this one, which may still be receiving what it is to do."""
    is_receiving = getattr(multiprocessing.current_process(), "_inheriting", False)
    return is_receiving or multiprocessing.parent_process() is not None


class _Voice(logging.Handler):
    """Lets a user who configured no logging see what prefeed has to say: on stderr, from INFO on.

    As soon as there is a handler of the user's, for these messages or for all, it is silent, and the user's levels hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self._level_before = logging.NOTSET

    def add(self) -> None:
        """Speak; a second call does nothing."""
        if self in _log.handlers:
            return
        _log.addHandler(self)
        _log.addFilter(self._is_wanted)
        self._level_before = _log.level
        if _log.level == logging.NOTSET:
            _log.setLevel(logging.INFO)

    def remove(self) -> None:
        """Leave the logger as it was."""
        if self not in _log.handlers:
            return
        _log.removeHandler(self)
        _log.removeFilter(self._is_wanted)
        if self._level_before == logging.NOTSET and _log.level == logging.INFO:
            _log.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, if no other process does."""
        if self._others():
            return
        try:
            sys.stderr.write(f"{_PREFIX}{self.format(record).removeprefix(_PREFIX)}\n")
        except Exception:
            self.handleError(record)

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        """Return what the logger's level would say if it had not been lowered for this handler."""
        if self._level_before != logging.NOTSET or _log.level != logging.INFO or not self._others():
            return True
        above = _log.parent
        return above is None or record.levelno >= above.getEffectiveLevel()

    def _others(self) -> bool:
        """Return True when a handler of the user's will see what the logger says."""
        own = any(handler is not self for handler in _log.handlers)
        above = _log.parent
        return own or (_log.propagate and above is not None and above.hasHandlers())


_voice = _Voice()

enable()
