"""Found by every Python that ``prefeed run`` starts, by way of PYTHONPATH; prefeed.auto is imported when torch is.

Kept as cheap as it can be, for every Python process imports it; and silent where prefeed is not installed.
"""

import importlib
import os
import sys


def _enable():  # type: () -> None
    import prefeed.auto  # noqa: F401


_answering = False


def _answer_beside():  # type: () -> None
    """Answer reads outside of samples, unless that is being begun, or torch is: half of it is there, and nothing more may be imported."""
    global _answering
    torch = sys.modules.get("torch")
    if _answering or (torch is not None and getattr(torch.__spec__, "_initializing", False)):
        return  # the import that is under way does it
    _answering = True
    try:
        import prefeed.auto

        prefeed.auto.answer_beside()
    finally:
        _answering = False


def _examine():  # type: () -> None
    from prefeed.diagnose.doctor import begin

    begin()


def _frameworks():  # type: () -> tuple[str, ...]
    from prefeed.frameworks.hooks import MODULES

    return tuple(MODULES)


def _count():  # type: () -> None
    """Count for the run summary, which the outermost process prints when it ends."""
    from prefeed.run_summary import counters

    directory = os.environ.get("PREFEED_RUN_COUNTS", "")
    if not directory or f"/run-{os.getpid()}-" in directory:
        from prefeed.run_summary import report

        directory = report.begin()
    counters.begin(directory)
    if "PREFEED_RUN_EXPLAIN" in os.environ:
        from prefeed.run_summary import explain

        explain.begin(os.environ["PREFEED_RUN_EXPLAIN"])


def _step_aside():  # type: () -> None
    """Take this directory from the path, and run the sitecustomize that it hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as err:
        if err.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if os.environ.get("PREFEED_AUTO") == "1" or os.environ.get("PREFEED_DOCTOR"):
    try:
        from prefeed.after_import import after_import
    except ImportError:
        pass
    else:
        if os.environ.get("PREFEED_AUTO") == "1":
            for name in ("torch", *_frameworks()):
                after_import(name, _enable)
            if os.environ.get("PREFEED_READS") == "all":  # whatever a process reads with, it has imported one of these
                for name in ("numpy", "PIL", "cv2"):
                    after_import(name, _answer_beside)
        if os.environ.get("PREFEED_RUN"):
            try:
                _count()
            except Exception:
                pass  # the program still runs
        if os.environ.get("PREFEED_DOCTOR"):
            after_import("torch", _examine)
_step_aside()
