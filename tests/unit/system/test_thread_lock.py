"""A lock that a forked child finds free."""

from __future__ import annotations

import os
import threading

from prefeed.system.thread_lock import ThreadLock


def test_a_thread_may_enter_twice() -> None:
    lock = ThreadLock()
    with lock, lock:
        pass
    assert lock._lock.acquire(blocking=False)
    lock._lock.release()


def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    lock = ThreadLock()
    inherited = lock._lock = threading.Lock()  # type: ignore[assignment]
    inherited.acquire()
    lock._pid = os.getpid() + 1
    with lock:
        assert lock._pid == os.getpid()
    assert inherited.locked()


def test_a_child_that_was_forked_inside_leaves_a_lock_that_it_has_entered_again() -> None:
    lock = ThreadLock()
    with lock:
        lock._pid = os.getpid() + 1
        with lock:
            pass
