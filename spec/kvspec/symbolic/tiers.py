"""How far a run of `kvspec symbolic` goes, and how long it may take."""

from typing import NamedTuple

from attrs import frozen


class Size(NamedTuple):
    """How large a small world is: sequences, blocks in each tier, entries a table."""

    sequences: int
    blocks: int
    entries: int


@frozen
class Tier:
    """A run: the shapes that it asks about, and its bounds in time."""

    name: str
    small: Size
    """The world in which z3 has its twins, and checks its axioms."""
    timeout: float
    """Seconds that CrossHair may take for one function."""
    budget: float | None
    """Seconds of CPU for everything together; of CPU, since machines are shared."""


FAST = Tier("fast", Size(sequences=3, blocks=4, entries=3), timeout=60, budget=60)
SLOW = Tier("slow", Size(sequences=4, blocks=5, entries=4), timeout=600, budget=None)
