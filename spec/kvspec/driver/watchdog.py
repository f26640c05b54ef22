"""A limit on the time that calls may take.

On the main thread of a system with interval timers the call itself is interrupted, again and
again until it gives up, since hostile code may swallow the first interruption. Elsewhere the
calls run in a thread that is left behind when it does not come back. Code that holds the
interpreter without ever returning to it cannot be interrupted by either.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_INSIST = 0.05
"""Seconds between interruptions of a call that swallows them."""


class TimeUp(BaseException):
    """Raised inside a call that has used up its time."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises, or `TimeUp` if it takes longer than `seconds`.

    >>> within(5.0, lambda: 1 + 1)
    2
    """
    if (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    ):
        return _interrupting(seconds, work)
    return _abandoning(seconds, work)


def _interrupting(seconds: float, work: Callable[[], T]) -> T:
    def ring(signum: int, frame: FrameType | None) -> None:
        raise TimeUp

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _INSIST)
        try:
            return work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, previous)


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
    if errors:
        raise errors[0]
    if not results:
        raise TimeUp
    return results[0]
