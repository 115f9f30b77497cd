"""Lets all DataLoaders of the process use the cache after ``import prefeed.auto``, without other changes of the program.

Covers ``torch.utils.data.DataLoader`` and the loaders of other frameworks (``frameworks``). Frameworks are not imported; their loaders
are patched when the program imports them, before or after this module. A loader that cannot use the cache behaves as before, and the
log states the reason. ``prefeed run`` does the same for an unchanged program and for the processes that it starts.
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
"""The whole package, because its modules import each other, and some exist before they have the functions to replace."""

_STREAMS: Final = "datasets.iterable_dataset"
"""Module of Hugging Face. A spawned worker splits its files before it opens the first one."""


def enable() -> None:
    """Patch all loaders, now or when their framework is imported, unless ``PREFEED_ENABLED`` is 0. Never raises."""
    after_import("torch", _begin)
    for name, act in _FRAMEWORKS.items():
        after_import(name, act)
    after_import("cv2", _REACH["cv2"])
    after_import(_WEBDATASET, _reach_shards)
    after_import(_STREAMS, _reach_streams)


def answer_beside() -> None:
    """Let file reads outside of samples use the cache if the setting ``reads`` is ``all``. Never raises."""
    try:
        config = current()
        if config.enabled and config.reads == "all":
            from prefeed.client import beside
            from prefeed.sampleset.names import resolve_roots

            beside.begin(resolve_roots(config))
            for name, reach in _REACH.items():
                after_import(name, reach)
    except Exception as err:  # A program that only imports a library must not fail.
        _log.warning("prefeed: reads outside samples do not use the cache: %s", err)


def disable() -> None:
    """Restore torch, ``open`` and the log. Loaders no longer use the cache from their next epoch on."""
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
    """Patch torch, which was just imported."""
    try:
        if not current().enabled:
            return
        interception, patch = _parts()
        _speak()
        interception.install()
        patch.enable()
        answer_beside()
    except Exception as err:  # A program that only imports torch must not fail.
        _log.warning("prefeed: off in this process: %s", err)


def _reach_shards() -> None:
    """Let WebDataset, which was just imported, read ``prefeed:`` URLs."""
    try:
        from prefeed.files import webdataset

        webdataset.register()
    except Exception as err:
        _log.warning("prefeed: WebDataset does not read prefeed: URLs: %s", err)


def _reach_streams() -> None:
    """Let streams of Hugging Face, which were just imported, open cached files ahead."""
    from prefeed.loaders import hugging_face

    hugging_face.register()


def _begin_framework(module: str) -> None:
    """Patch the loaders of a framework, whose module was just imported."""
    try:
        if not current().enabled:
            return
        from prefeed import interception

        _speak()
        interception.install()
        hooks.serve(module)
        _start_server()
        answer_beside()
    except Exception as err:  # A program that only imports the framework must not fail.
        _log.warning(
            "prefeed: loaders of %s do not use the cache: %s: %s", module.partition(".")[0], type(err).__name__, err
        )


def _start_server() -> None:
    """Start the node server while the rest of a framework is imported. Only ``prefeed run`` starts it this early."""
    if not counters.is_counting() or _is_of_multiprocessing():
        return
    from prefeed.client.launch import start_ahead
    from prefeed.errors import PrefeedError
    from prefeed.sampleset.names import resolve_roots
    from prefeed.sources.mounts import Roots

    with suppress(PrefeedError):  # The first loader reports the error.
        config = resolve_roots(current())
        if config.limits.start_ahead and Roots.of(config):
            start_ahead(config)


def _speak() -> None:
    if os.environ.get("PREFEED_QUIET") != "1":
        _voice.add()


def _reach_names(module: str) -> None:
    """Replace functions of a library that was just imported, before ``from cv2 import imread`` can bind them."""
    try:
        if current().enabled:
            from prefeed import interception

            interception.install(finished=module)
    except Exception as err:
        _log.warning("prefeed: off in this process: %s", err)


_REACH: Final = {name: partial(_reach_names, name) for name in ("cv2", "numpy", "torchvision.io.image")}
"""Callbacks for libraries that read files without Python's ``open``, by module."""


_FRAMEWORKS: Final = {name: partial(_begin_framework, name) for name in hooks.MODULES}
"""Callbacks for frameworks other than torch, by module."""


def _parts() -> tuple[Any, Any]:
    """Import the modules that need torch.

    Processes of ``multiprocessing`` import ``torch.loader`` with their first loader, because most are workers and create no loader.
    Other processes import it now, so that the processes that they fork have it.
    """
    from prefeed import interception
    from prefeed.torch import patch

    if not _is_of_multiprocessing():
        import prefeed.torch.loader  # noqa: F401
    return interception, patch


def _is_of_multiprocessing() -> bool:
    """Return True if ``multiprocessing`` has started this process, which may still be unpickling its target."""
    is_receiving = getattr(multiprocessing.current_process(), "_inheriting", False)
    return is_receiving or multiprocessing.parent_process() is not None


class _Voice(logging.Handler):
    """Log handler that prints messages from INFO on to stderr while the program has not configured logging.

    Once the program adds a handler for these messages or for all, this handler prints nothing and the program's levels apply.
    """

    def __init__(self) -> None:
        super().__init__()
        self._level_before = logging.NOTSET

    def add(self) -> None:
        """Add the handler to the logger, once."""
        if self in _log.handlers:
            return
        _log.addHandler(self)
        _log.addFilter(self._is_wanted)
        self._level_before = _log.level
        if _log.level == logging.NOTSET:
            _log.setLevel(logging.INFO)

    def remove(self) -> None:
        """Remove the handler and restore the level."""
        if self not in _log.handlers:
            return
        _log.removeHandler(self)
        _log.removeFilter(self._is_wanted)
        if self._level_before == logging.NOTSET and _log.level == logging.INFO:
            _log.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message unless a handler of the program does."""
        if self._others():
            return
        try:
            sys.stderr.write(f"{_PREFIX}{self.format(record).removeprefix(_PREFIX)}\n")
        except Exception:
            self.handleError(record)

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        """Filter messages by the level that the logger would have without this handler."""
        if self._level_before != logging.NOTSET or _log.level != logging.INFO or not self._others():
            return True
        above = _log.parent
        return above is None or record.levelno >= above.getEffectiveLevel()

    def _others(self) -> bool:
        """Return True if a handler of the program receives the messages."""
        own = any(handler is not self for handler in _log.handlers)
        above = _log.parent
        return own or (_log.propagate and above is not None and above.hasHandlers())


_voice = _Voice()

enable()
