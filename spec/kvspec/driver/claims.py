"""Claims: which capabilities a type shows, and what is nearly there.

What is there in part, or under a name that is close to the right one, is never passed over: it is
a `TargetError` that says what to rename. A method that is `None` is not there.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from kvspec.driver.driver import DEFAULT_CALL_TIMEOUT
from kvspec.driver.making import TargetError
from kvspec.driver.values import shown
from kvspec.driver.watchdog import within
from kvspec.kernel.room import Room
from kvspec.rooms import ROOMS


def _attribute(owner: object, name: str, timeout: float = DEFAULT_CALL_TIMEOUT) -> Any:
    """The attribute, or `None` where it is missing or fails."""
    try:
        return within(timeout, lambda: getattr(owner, name, None))
    except KeyboardInterrupt:
        raise
    except BaseException:  # TimeUp too: what cannot be had is not there
        return None


def _missing(make: object, owner: object, room: Room, sure: bool) -> list[str]:
    """What `owner` lacks of a room; unless `sure`, what cannot be seen is taken to be there."""
    absent = [method for method in room.methods if not callable(_attribute(owner, method))]
    for method, keyword in room.keywords.items():
        asked = _attribute(owner, method) if method else make
        if not _takes(asked, keyword, sure):
            absent.append(f"{method or 'the factory'}(..., {keyword}=)")
    absent += [flag for flag in room.flags if sure and _attribute(owner, flag) is not True]
    return absent


def _parameters(method: Any) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a method by name; `None` where they cannot be seen."""
    try:
        return inspect.signature(method).parameters
    except (TypeError, ValueError):
        return None


def _takes(method: Any, keyword: str, sure: bool) -> bool:
    parameters = _parameters(method)
    if parameters is None:
        return callable(method) and not sure
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = parameters.get(keyword)
    takes = named is not None and named.kind is not named.POSITIONAL_ONLY
    return takes or (anything and not sure)


def detected(make: object, kind: type, name: str) -> tuple[str, ...]:
    """The capabilities whose complete method sets the type has; a part of one is an error."""
    claimed = []
    for room in ROOMS:
        absent = _missing(make, kind, room, sure=True)
        if not absent:
            claimed.append(room.capability)
            continue
        core, parts = room.capability == "core", len(room.methods + room.flags) + len(room.keywords)
        unclaimed = "" if core else ", or list the capabilities in its contract"
        near = next(_misspelt(make, kind, room, absent), None)
        if near is not None:
            close, meant = near
            raise TargetError(
                f"{name}: it has {close} and lacks {meant}, of the capability "
                f"{room.capability}; rename it{unclaimed}"
            )
        if core or len(absent) < parts:
            without = unclaimed and f"{unclaimed} without it"
            raise TargetError(
                f"{name}: it lacks {', '.join(absent)}, of the capability {room.capability}; "
                f"implement it{without}"
            )
    return tuple(claimed)


def _misspelt(make: object, kind: type, room: Room, absent: list[str]) -> Iterator[tuple[str, str]]:
    """What is there in the place of something that the room lacks: as it is, and as it is meant."""
    names = [n for n in dir(kind) if n[0] != "_" and not any(n in r.methods for r in ROOMS)]
    others = [n for n in names if callable(_attribute(kind, n))]
    for method in room.methods:
        if method in absent:
            there = _attribute(kind, method)
            if there is not None:
                yield f"{method} = {shown(there)}", f"{method}(), a method"
            close = closest(method, others)
            if close:
                yield close, method
    for method, keyword in room.keywords.items():
        asked = _attribute(kind, method) if method else make
        taken = _parameters(asked) or {}
        close = closest(keyword, [n for n in taken if not _known_keyword(n)])
        if keyword not in taken and close:
            call = method or "the factory"
            yield f"{call}(..., {close}=)", f"{call}(..., {keyword}=)"
    for flag in room.flags:
        there = _attribute(kind, flag)
        if there is not None and not isinstance(there, bool):
            yield f"{flag} = {shown(there)}", f"{flag} = True"
        close = closest(flag, names)
        if flag in absent and close:
            yield close, flag


def _known_keyword(name: str) -> bool:
    return any(name in room.keywords.values() for room in ROOMS)


def require(make: object, made: object, room: Room, name: str, timeout: float) -> None:
    """Stop for a claim that the allocator itself, whose type may not show it, does not bear out."""
    absent = _missing(make, made, room, sure=False)
    absent += [a for a in room.attributes if _attribute(made, a, timeout) is None]
    if absent:
        raise TargetError(
            f"{name}: it claims {room.capability} and lacks {', '.join(absent)}; implement it, "
            "or take the capability out of its contract"
        )


def closest(name: str, others: Iterable[str], least: float | None = None) -> str | None:
    """The one of `others` that is most like `name`, if it is like enough to be meant for it."""
    least = least or (0.75 if len(name) <= 4 else 0.85)
    ratios = [(_likeness(name, other), other) for other in others if other != name]
    best = max(ratios, default=(0.0, ""))
    return best[1] if best[0] >= least else None


def _likeness(name: str, other: str) -> float:
    """Near 1 for the same letters, from the first letter on; it is often the first that is lost."""
    if other == name[1:] or sorted(other) == sorted(name):
        return 1.0
    alike = other[:1].lower() == name[:1].lower()
    return SequenceMatcher(None, name, other).ratio() if alike else 0.0
