"""Whether a table that was handed out is a snapshot, or one with the allocator's own."""

from collections.abc import Callable
from typing import Any

from attrs import define

from kvspec.driver.values import Nonsense
from kvspec.driver.watchdog import TimeUp
from kvspec.kernel.state import Entries

UNASKED = object()
"""Stands for an answer that was not asked for."""


@define
class Given:
    """A table as the caller was given it, and what it read then."""

    raw: Any
    entries: Entries


def is_shared(
    earlier: Given, ask: Callable[[], Any], entries: Callable[[object], Entries], junk: int
) -> tuple[bool, Any]:
    """Whether the table that the caller holds is one with the allocator's own.

    It is when it has changed by itself, or when the caller's scribbling on it shows in the
    next answer, is gone with it, or brings the allocator to fall. It is undone at once. Junk
    is nobody's block; and not negative, since tables may be arrays of unsigned numbers. If it
    is not, the answer that showed it is the table as it is now, where one was asked for.
    """
    try:
        same = type(earlier.raw) is list and tuple(earlier.raw) == earlier.entries
        if not same and entries(earlier.raw) != earlier.entries:
            return True, UNASKED
    except Nonsense:
        return True, UNASKED
    if not earlier.entries or not _overwrite(earlier.raw, 0, junk):
        return False, UNASKED
    try:
        answer = ask()
        shared = _starts_with(junk, answer) or not _starts_with(junk, earlier.raw)
        return shared, UNASKED if shared else answer
    except (TimeUp, KeyboardInterrupt):
        raise
    except BaseException:  # whether it was the scribbling shows below
        pass
    finally:
        _overwrite(earlier.raw, 0, earlier.entries[0])
    ask()
    return True, UNASKED


def _starts_with(junk: int, raw: Any) -> bool:
    try:
        return bool(raw[0] == junk)
    except Exception:  # a hostile table shows nothing
        return False


def _overwrite(raw: Any, index: int, value: object) -> bool:
    try:
        raw[index] = value
    except Exception:  # immutable: there is nothing to scribble on
        return False
    return True
