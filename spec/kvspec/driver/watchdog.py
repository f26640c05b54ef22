"""A limit on the time that calls may take.

On the main thread of a system with interval timers the call itself is interrupted, again and
again until it gives up, since hostile code may swallow an interruption. Elsewhere the call
runs in a thread of its own, which is asked to stop in the same way, and is left behind where
it sits in code that is not Python's. What cannot be interrupted: code that holds the
interpreter without ever returning to it, and code that takes the timer for itself.
"""

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_INSIST = 0.05
"""Seconds between interruptions of a call that swallows them."""

_PATIENCE = 3
"""So many interruptions of the plain kind before a trap is laid."""

_ASKED = 10
"""So often is a thread asked to stop before it is left behind."""


class TimeUp(BaseException):
    """Raised inside a call that has used up its time."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, or `TimeUp` if it takes longer than `seconds`.

    It is `TimeUp` also for a call that swallowed the interruption and came back later.
    `KeyboardInterrupt` is always let through.

    >>> within(5.0, lambda: 1 + 1)
    2
    """
    if (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0]
        == 0.0  # else somebody else's alarm would be lost
    ):
        return _interrupting(seconds, work)
    return _abandoning(seconds, work)


# ------------------------------------------------------------------------- on the main thread


def _interrupting(seconds: float, work: Callable[[], T]) -> T:
    armed, rings = True, 0
    tracing = sys.gettrace()

    def ring(signum: int, frame: FrameType | None) -> None:
        nonlocal rings
        if not armed:  # it was on its way when the call came back
            return
        rings += 1
        if rings > _PATIENCE:
            _lay_trap(frame)
        raise TimeUp

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _INSIST)
        result = work()
    except KeyboardInterrupt:
        raise
    except BaseException:
        if rings:
            raise TimeUp from None
        raise
    finally:
        # The first statement, before any call: an alarm is only ever handled in between calls.
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if rings > _PATIENCE:
            sys.settrace(tracing)
        signal.signal(signal.SIGALRM, previous or signal.SIG_DFL)
    if rings:
        raise TimeUp
    return result


def _lay_trap(frame: FrameType | None) -> None:
    """Interrupt the call once more, at the very next line that it executes.

    A loop that waits inside a `try` is always interrupted there, and always swallows it. The
    next line is one of the handler, which its own `try` does not protect.
    """

    def trap(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":  # the events of the first interruption itself come before
            raise TimeUp
        return trap

    while frame is not None and frame.f_code is not _interrupting.__code__:
        frame.f_trace = trap
        frame = frame.f_back
    sys.settrace(trap)


# -------------------------------------------------------------------------------- elsewhere


def _abandoning(seconds: float, work: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # handed on to the caller below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _ask_to_stop(thread)
        raise TimeUp
    if errors:
        raise errors[0]
    return results[0]


def _ask_to_stop(thread: threading.Thread) -> None:
    """Have the thread raise `TimeUp` at its next instruction; again, while it goes on."""
    for _ in range(_ASKED):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeUp)
        )
        thread.join(_INSIST)
        if not thread.is_alive():
            return
