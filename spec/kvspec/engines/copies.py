"""Copies of an allocator in the middle of a story, and fingerprints of what it has inside.

What an allocator has inside is more than it shows: the order of a free list, a stale counter, the
age of a cached block. An explorer that took two allocators for one because they show the same
would miss what comes of the difference.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from attrs import define, field, frozen

from kvspec.driver.driver import Driver
from kvspec.driver.values import raised
from kvspec.driver.watchdog import TimeUp, within
from kvspec.engines.pickling import Pickler

T = TypeVar("T")


class Uncopied(Exception):
    """The allocator cannot be copied."""


class Uncompared(Exception):
    """What the allocator has inside cannot be asked for by its own method."""


def _within(driver: Driver, failure: type[Exception], work: Callable[[], T]) -> T:
    """What comes of code of the allocator's own, which may raise anything, or never come back."""
    try:
        return within(driver.timeout, work)
    except KeyboardInterrupt:
        raise
    except TimeUp:
        raise failure(f"it did not come back within {driver.timeout:g} s") from None
    except BaseException as error:
        raise failure(raised(error)) from None


def _pickled(driver: Driver, names: Sequence[int]) -> bytes:
    """All that the driver keeps of its allocator, and the handles of `names`."""
    stream = io.BytesIO()
    _within(driver, Uncopied, lambda: Pickler(stream).dump(driver.held(names)))
    return stream.getvalue()


@frozen
class Copies:
    """A way of keeping allocators, and of having as many as one likes of each.

    Both ways raise `Uncopied` where that fails.
    """

    origin: Driver

    def keep(self, driver: Driver, names: Sequence[int]) -> bytes:
        """Something from which `again` makes the same allocator, with the handles of `names`."""
        return _pickled(driver, names)

    def again(self, kept: bytes, names: Sequence[int]) -> Driver:
        """The driver of another allocator that is just as the one that was kept."""
        held = _within(self.origin, Uncopied, lambda: pickle.loads(kept))
        return self.origin.with_held(held, names)


def copies(driver: Driver) -> Copies | None:
    """The way of copying this allocator; `None` where there is none."""
    way = Copies(driver)
    try:
        way.again(way.keep(driver, ()), ())
    except Uncopied:
        return None
    return way


# ------------------------------------------------------------------------------ fingerprints


OWN_METHOD = "its own fingerprint()"
PICKLE = "its pickle"


@frozen
class Prints:
    """How the internals of an allocator are compared; `what` says it for the report."""

    what: str

    @property
    def pickles(self) -> bool:
        """Whether what a copy is made from is the fingerprint."""
        return self.what == PICKLE

    def of(self, driver: Driver, names: Sequence[int]) -> bytes:
        """The fingerprint of the driver's allocator.

        By pickle also of the handles of `names`; a method of its own is to know what it needs of
        what it gave away. Raises `Uncopied` for what has no pickle, and `Uncompared` where the
        method fails.
        """
        if self.pickles:
            return _pickled(driver, names)
        allocator = driver.held(names)[0]
        return _within(driver, Uncompared, lambda: repr(allocator.fingerprint()).encode())


def prints(driver: Driver) -> Prints | None:
    """How this allocator is compared with others; `None` where it cannot be.

    Raises `Uncompared` where it has a method of its own that fails.
    """
    allocator = driver.held(())[0]
    own = _within(driver, Uncompared, lambda: callable(getattr(allocator, "fingerprint", None)))
    way = Prints(OWN_METHOD if own else PICKLE)
    try:
        return way if way.of(driver, ()) == way.of(driver, ()) else None
    except Uncopied:
        return None


@define
class Seen:
    """The states that were seen, as 16 bytes each.

    Two of them are never taken for one, but for a chance of about 2 ** -128.
    """

    _numbers: dict[bytes, int] = field(init=False, factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def number(self, *parts: bytes) -> int:
        """The number of the state that these texts make up: the next one, if it is new."""
        digest = blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return self._numbers.setdefault(digest.digest(), len(self._numbers))
