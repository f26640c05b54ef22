"""How many different states a walk has seen, in a memory that does not grow."""

import math

import numpy as np
from attrs import define, field

from kvspec.geometry import Geometry
from kvspec.kernel.state import State, TableOf

_BITS = 14
"""The standard error of the estimate is 1.04 / sqrt(2 ** _BITS), 0.8 %."""

_MASK = 2**64 - 1


@define
class Distinct:
    """An estimate of how many different numbers were added, within about 1 %.

    A HyperLogLog (Flajolet et al., AofA 2007): 16 KiB, however many there are.

    >>> seen = Distinct()
    >>> for number in (1, 2, 3, 2, 1):
    ...     seen.add(number)
    >>> seen.count
    3
    """

    _registers: bytearray = field(init=False, factory=lambda: bytearray(2**_BITS))

    def add(self, number: int) -> None:
        """Add one of them; the order does not matter, nor how often it is added."""
        # The finalizer of splitmix64: neighbouring numbers must not lie in neighbouring registers.
        mixed = (number & _MASK) * 0x9E3779B97F4A7C15 & _MASK
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
        mixed ^= mixed >> 31
        index = mixed >> (64 - _BITS)
        rank = 65 - _BITS - (mixed & (2 ** (64 - _BITS) - 1)).bit_length()
        if rank > self._registers[index]:
            self._registers[index] = rank

    def include(self, other: "Distinct") -> None:
        """Add all that were added to another; those that both have count once."""
        mine, theirs = (np.frombuffer(d._registers, np.uint8) for d in (self, other))
        np.maximum(mine, theirs, out=mine)

    @property
    def count(self) -> int:
        """The estimate."""
        size = 1 << _BITS
        harmonic = sum(2.0 ** -int(rank) for rank in self._registers)
        estimate = 0.7213 / (1 + 1.079 / size) * size * size / harmonic
        empty = self._registers.count(0)
        if estimate <= 2.5 * size and empty:
            return round(size * math.log(size / empty))
        return round(estimate)


def shape_of(geometry: Geometry) -> int:
    """A number for a geometry, apart from the number of blocks of its pools, which may change."""
    groups = tuple((group.block_size, group.window or -1) for group in geometry.layout)
    return hash((groups, geometry.max_tokens or -1))


def fingerprint(state: State, shape: int) -> int:
    """A number for who holds which block and how long each sequence is, in a pool of that shape.

    The same in every process: it depends on no text and on no address.
    """
    held = 0  # a sum, since two leases may hold the same, and in no order
    for holder, entries in state.holds.items():
        told = entries if None not in entries else _plain(entries)
        who = (holder.seq, holder.group) if isinstance(holder, TableOf) else holder.pins
        held += hash((who, told))
    lengths = [(s, q.length, len(q.cells), q.resident) for s, q in state.sequences.items()]
    pools = tuple(len(blocks) for blocks in state.pools.values())
    return hash((shape, pools, held, tuple(lengths)))


def _plain(entries: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(-1 if block is None else block for block in entries)
