"""A limit on the time that calls may take.

On the main thread of a system with interval timers the call itself is interrupted, again and
again until it gives up, since hostile code may swallow an interruption. An alarm beats all the
time, and a call has so many beats: to set an alarm for each call takes longer than most calls.
Elsewhere the call runs in a thread of its own, which is asked to stop in the same way, and is left
behind where it sits in code that is not Python's. What cannot be interrupted: code that holds the
interpreter without ever returning to it, and code that takes the timer for itself.
"""

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from attrs import define

T = TypeVar("T")

_BEAT = 0.05
"""Seconds between beats, and so between interruptions of a call that swallows them."""

_WOUND = 64
"""Before every so manieth call the alarm is set again, in case an earlier one took the timer."""

_PATIENCE = 3
"""So many interruptions of the plain kind before a trap is laid."""

_ASKED = 10
"""So often is a thread asked to stop before it is left behind."""


class TimeUp(BaseException):
    """Raised inside a call that has used up its time."""


def within(seconds: float, work: Callable[..., T], *arguments: Any) -> T:
    """What `work` returns or raises, or `TimeUp` if it takes longer than `seconds`.

    It is `TimeUp` also for a call that swallowed the interruption and came back later.
    `KeyboardInterrupt` is always let through.

    >>> within(5.0, lambda: 1 + 1)
    2
    """
    if _bell.hung_by != threading.get_ident():
        with watching():
            if _bell.hung_by != threading.get_ident():
                return _abandoning(seconds, work, arguments)
            return _interrupting(seconds, work, arguments)
    if _bell.armed:
        return work(*arguments)  # within another limit, which holds
    return _interrupting(seconds, work, arguments)


@contextmanager
def watching() -> Iterator[None]:
    """Keep the alarm beating for many calls; the handler that was there before comes back.

    Without it each call installs and removes the handler, which takes as long as a step.
    """
    if (
        _bell.hung_by is not None
        or threading.current_thread() is not threading.main_thread()
        or not hasattr(signal, "setitimer")
        or signal.getitimer(signal.ITIMER_REAL)[0] != 0.0  # somebody else's alarm would be lost
    ):
        yield
        return
    previous = signal.signal(signal.SIGALRM, _beat)
    _bell.hung_by, _bell.calls = threading.get_ident(), 0
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _bell.hung_by = None
        signal.signal(signal.SIGALRM, previous or signal.SIG_DFL)


# ------------------------------------------------------------------------- on the main thread


@define
class _Bell:
    """The one alarm of the process: whose it is, what is left of a call's time, what it did."""

    hung_by: int | None = None
    """The thread that installed its handler."""
    armed: bool = False
    calls: int = 0
    beats_left: int = 0
    rings: int = 0
    before_trap: tuple[Any, bool] | None = None
    """The trace function, and whether the collector was on, before a trap was laid."""


_bell = _Bell()


def _beat(signum: int, frame: FrameType | None) -> None:
    if not _bell.armed:  # between calls
        return
    _bell.beats_left -= 1
    if _bell.beats_left > 0:
        return
    _bell.rings += 1
    if _bell.rings > _PATIENCE:
        _lay_trap(frame)
    raise TimeUp


def _interrupting(seconds: float, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    if _bell.calls % _WOUND == 0:
        signal.setitimer(signal.ITIMER_REAL, _BEAT, _BEAT)
    _bell.calls += 1
    _bell.rings, _bell.beats_left, _bell.armed = 0, int(seconds / _BEAT) + 2, True
    try:
        result = work(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        if _bell.rings:
            raise TimeUp from None
        raise
    finally:
        # The first statement, before any call: an alarm is only ever handled in between calls.
        _bell.armed = False
        if _bell.before_trap is not None:
            tracing, collecting = _bell.before_trap
            _bell.before_trap = None
            sys.settrace(tracing)
            if collecting:
                gc.enable()
    if _bell.rings:
        raise TimeUp
    return result


def _lay_trap(frame: FrameType | None) -> None:
    """Interrupt the call once more, at the very next line that it executes.

    A loop that waits inside a `try` is always interrupted there, and always swallows it. The
    next line is one of the handler, which its own `try` does not protect. Until the call is back
    the collector rests: an interruption in one of its callbacks would stop nothing, and be printed.
    """
    if _bell.before_trap is None:
        _bell.before_trap = sys.gettrace(), gc.isenabled()
    gc.disable()

    def trap(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":  # the events of the first interruption itself come before
            raise TimeUp
        return trap

    while frame is not None and frame.f_code is not _interrupting.__code__:
        frame.f_trace = trap
        frame = frame.f_back
    sys.settrace(trap)


# -------------------------------------------------------------------------------- elsewhere


def _abandoning(seconds: float, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(*arguments))
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
        thread.join(_BEAT)
        if not thread.is_alive():
            return
