"""From whatever an allocator returned to the values of the interface, or a clear `Nonsense`.

Ints and numpy ints are ints; lists, tuples and arrays are tables; any iterable of pairs are
copies. Everything else (floats, strings, bools, int subclasses, sets, endless iterables, ids
out of range) is nonsense, and the text says what it was.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from kvspec.driver.watchdog import TimeUp
from kvspec.interface import Admission, Copy
from kvspec.kernel.state import Entries

_INTEGERS = frozenset(np.dtype(code).type for code in np.typecodes["AllInteger"])

_MOST_BITS = 63
"""No number of the interface is larger; and Python refuses to print very large ones."""

_LONGEST = 1000
"""More characters of a text are never looked at."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{7,}\b")


class Nonsense(Exception):
    """A value that the interface does not have; the text says what and where."""


def text_of(say: Callable[[Any], str], value: object, most: int) -> str:
    """What `say` (`str` or `repr`) says of `value`, on one line; empty where it fails.

    Addresses are left out: they differ from run to run, and traces must not.

    >>> text_of(str, ValueError("one\\ntwo"), 80), text_of(repr, "x" * 9, 8)
    ('one two', "'xxxx...")
    """
    try:
        text = _ADDRESS.sub("", " ".join(str.split(say(value)[:_LONGEST])))
    except (TimeUp, KeyboardInterrupt):
        raise
    except BaseException:  # a hostile str or repr must not take the report down
        return ""
    return text if len(text) <= most else text[: most - 3] + "..."


def shown(value: object) -> str:
    """A short text for any value, even one whose repr fails.

    >>> shown("abc"), shown(2.5)
    ("'abc' (str)", '2.5 (float)')
    """
    text = text_of(repr, value, 60) or "something without a repr"
    return f"{text} ({type(value).__name__})"


def raised(error: BaseException) -> str:
    """A short text for an exception, even one whose str fails.

    >>> raised(KeyError("k")), raised(NotImplementedError())
    ("KeyError('k')", 'NotImplementedError (claimed but not implemented)')
    """
    text, name = text_of(str, error, 80), type(error).__name__
    hint = " (claimed but not implemented)" if isinstance(error, NotImplementedError) else ""
    # The text of a KeyError is a repr already; again it would turn ids into strings.
    inner = text if isinstance(error, KeyError) else repr(text)
    return (f"{name}({inner})" if text else name) + hint


def whole_number(value: object, what: str) -> int:
    """`value` as an int: an int or a numpy int, and no subclass that could lie about itself."""
    number = int(value) if type(value) in _INTEGERS else value  # type: ignore[call-overload]  # just asked
    if type(number) is not int:
        raise Nonsense(f"{what} is {shown(value)}, not an int")
    if number.bit_length() > _MOST_BITS:
        raise Nonsense(f"{what} is an int of {number.bit_length()} bits")
    return number


def _items(value: object, what: str, most: int) -> list[Any]:
    tolist = getattr(value, "tolist", None)
    items = tolist() if callable(tolist) else value
    if isinstance(items, set | frozenset):
        # In the order of its hashes; and no repr of it is the same in every run.
        raise Nonsense(f"{what} is a {type(items).__name__}, which has no order")
    if isinstance(items, str | bytes | bytearray | Mapping) or not isinstance(items, Iterable):
        raise Nonsense(f"{what} is {shown(value)}")
    listed = list(islice(items, most + 1))
    if len(listed) > most:
        raise Nonsense(f"{what} has more than {most} entries")
    return listed


def block_id(value: object, blocks: range, what: str) -> int:
    """`value` as one of `blocks`."""
    block = whole_number(value, what)
    if block not in blocks:
        raise Nonsense(f"{what} is {block}, not in {blocks.start}..{blocks.stop - 1}")
    return block


def table(value: object, blocks: range, most: int, window: bool = False) -> Entries:
    """A block table: a list, tuple or array of block ids; with a window, `None` is one too."""
    if isinstance(value, list | tuple) and len(value) <= most:  # what nearly all are, quickly
        entries: tuple[Any, ...] = tuple(value)
        for entry in entries:
            if type(entry) is not int or entry not in blocks:
                break
        else:
            return entries
    if not (isinstance(value, Sequence | set | frozenset) or hasattr(value, "tolist")):
        raise Nonsense(f"the table is {shown(value)}, not a list, tuple or array")
    return tuple(
        None if window and item is None else block_id(item, blocks, f"entry {i}")
        for i, item in enumerate(_items(value, "the table", most))
    )


def copies(value: object, sources: range, ends: range, most: int) -> tuple[Copy, ...]:
    """The copies that a mutator returned: `None`, or an iterable of pairs of block ids."""
    if value is None or (type(value) is list and not value):
        return ()
    pairs = []
    for i, item in enumerate(_items(value, "the answer", most)):
        pair = _items(item, f"copy {i}", 3)
        if len(pair) != 2:
            raise Nonsense(f"copy {i} is {shown(item)}, not a pair")
        what = f"an end of copy {i}"
        pairs.append(Copy(block_id(pair[0], sources, what), block_id(pair[1], ends, what)))
    return tuple(pairs)


def count(value: object, what: str) -> int:
    """A whole number that is not negative."""
    number = whole_number(value, what)
    if number < 0:
        raise Nonsense(f"{what} is {number}")
    return number


def block_set(value: object, blocks: range, most: int) -> tuple[int, ...]:
    """A collection of block ids, in ascending order; none may be in it twice."""
    items = list(value) if isinstance(value, set | frozenset) and len(value) <= most else None
    listed = _items(value, "the answer", most) if items is None else items
    ids = sorted(block_id(item, blocks, "a block of the answer") for item in listed)
    if len(set(ids)) != len(ids):
        raise Nonsense(f"the answer has a block twice: {ids}")
    return tuple(ids)


def admission(value: object) -> str:
    """The name of an admission: the enum's, or a string."""
    name = getattr(value, "name", value)
    if type(name) is not str or name not in Admission.__members__:
        raise Nonsense(f"the answer is {shown(value)}, not OK, LATER or NEVER")
    return name
