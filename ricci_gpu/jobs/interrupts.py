"""Ctrl-C and SIGTERM, which schedulers send before they kill: one clean `KeyboardInterrupt`.

Python raises it between any two steps, also between taking a lease and holding it. `uninterrupted`
makes such steps one: the signal waits until they are through.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _State:
    """Of this process: signals are one per process, too."""

    asked = False  # somebody wants us to stop
    raised = False  # and `KeyboardInterrupt` says so; further signals add nothing
    depth = 0  # of `uninterrupted`


def stop_is_asked() -> bool:
    """Whether a signal came, even where some library swallowed the exception."""
    return _State.asked


@contextmanager
def interruptible() -> Iterator[None]:
    """Both signals raise `KeyboardInterrupt`, the first time, outside of `uninterrupted`."""
    _State.asked = _State.raised = False
    before = {number: signal.signal(number, _handle) for number in SIGNALS}
    try:
        yield
        if _State.asked:
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Steps that a signal must not separate. Threads other than the main one never see signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
    _raise_once()


def _handle(number: int, frame: FrameType | None) -> None:
    _State.asked = True
    _raise_once()


def _raise_once() -> None:
    if _State.asked and not _State.raised and _State.depth == 0:
        _State.raised = True
        raise KeyboardInterrupt
