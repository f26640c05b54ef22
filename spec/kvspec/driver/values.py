"""From whatever an allocator returned to the values of the interface, or a clear `Nonsense`.

Ints and numpy ints are ints; lists, tuples and arrays are tables; any iterable of pairs are
copies. Everything else (floats, strings, bools, int subclasses, endless iterables, ids out of
range) is nonsense, and the text says what it was.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from kvspec.interface import Admission, Copy


class Nonsense(Exception):
    """A value that the interface does not have; the text says what and where."""


def shown(value: object) -> str:
    """A short text for any value, even one whose repr fails.

    >>> shown("abc"), shown(2.5)
    ("'abc' (str)", '2.5 (float)')
    """
    try:
        text = repr(value)
    except Exception:  # a hostile repr must not take the report down
        text = "something without a repr"
    if len(text) > 60:
        text = text[:57] + "..."
    # Addresses differ from run to run, and traces must not.
    if " at 0x" in text:
        text = text.split(" at 0x")[0] + ">"
    return f"{text} ({type(value).__name__})"


def whole_number(value: object, what: str) -> int:
    """`value` as an int: an int or a numpy int, and no subclass that could lie about itself."""
    if type(value) is int:
        return value
    if isinstance(value, np.integer):
        return int(value)
    raise Nonsense(f"{what} is {shown(value)}, not an int")


def _items(value: object, what: str, most: int) -> list[Any]:
    if isinstance(value, str | bytes | dict):
        raise Nonsense(f"{what} is {shown(value)}")
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    if not isinstance(value, Iterable):
        raise Nonsense(f"{what} is {shown(value)}")
    items = list(islice(value, most + 1))
    if len(items) > most:
        raise Nonsense(f"{what} has more than {most} entries")
    return items


def block_id(value: object, blocks: range, what: str) -> int:
    """`value` as one of `blocks`."""
    block = whole_number(value, what)
    if block not in blocks:
        raise Nonsense(f"{what} is {block}, not in {blocks.start}..{blocks.stop - 1}")
    return block


def table(value: object, blocks: range, most: int) -> tuple[int, ...]:
    """A block table: a list, tuple or array of block ids."""
    if not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        raise Nonsense(f"the table is {shown(value)}, not a list, tuple or array")
    return tuple(
        block_id(item, blocks, f"entry {i}")
        for i, item in enumerate(_items(value, "the table", most))
    )


def copies(value: object, blocks: range, most: int) -> tuple[Copy, ...]:
    """The copies that a mutator returned: `None`, or an iterable of pairs of block ids."""
    if value is None:
        return ()
    pairs = []
    for i, item in enumerate(_items(value, "the answer", most)):
        pair = _items(item, f"copy {i}", 3)
        if len(pair) != 2:
            raise Nonsense(f"copy {i} is {shown(item)}, not a pair")
        source, destination = (block_id(end, blocks, f"an end of copy {i}") for end in pair)
        pairs.append(Copy(source, destination))
    return tuple(pairs)


def admission(value: object) -> str:
    """The name of an admission: the enum's, or a string."""
    name = getattr(value, "name", value)
    if type(name) is not str or name not in Admission.__members__:
        raise Nonsense(f"the answer is {shown(value)}, not OK, LATER or NEVER")
    return name
