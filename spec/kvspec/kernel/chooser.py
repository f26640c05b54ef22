"""The one vocabulary of generation.

Rooms propose operations by asking a `Chooser`. Hypothesis, a seeded generator and an
enumerator can each be one, so that every engine draws from the same proposals.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chooser(Protocol):
    """Whatever makes the free choices of a run."""

    def integer(self, low: int, high: int, near: Sequence[int] = ()) -> int:
        """An integer with `low <= n <= high`, or one of `near`, which are the likelier."""
        ...

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`, which are not empty; the first is the simplest."""
        ...
