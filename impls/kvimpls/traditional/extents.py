"""Allocators that give a sequence one extent of consecutive slots."""

from operator import index
from typing import ClassVar

from attrs import define

from kvspec import (
    Contract,
    Copy,
    Exact,
    Geometries,
    Geometry,
    InvalidLength,
    OutOfBlocks,
    SequenceExists,
    UnknownSequence,
    UnsupportedGeometry,
)

SLOTS = Geometries(block_sizes=(1,))
"""A contiguous scheme has no blocks: each slot is one."""


def power_of_two(tokens: int) -> int:
    """The smallest power of two that is at least `tokens`; 0 for 0."""
    return 2 ** (tokens - 1).bit_length() if tokens else 0


@define
class Extent:
    """One sequence: where it lies, how many slots it reserves and fills, and what was known."""

    start: int
    reserved: int
    length: int
    limit: int | None


class Extents:
    """One extent a sequence. Subclasses say how large it is, and where it goes.

    Raises `UnsupportedGeometry` for windows, groups, host blocks, or blocks of more than one
    token.
    """

    contract: ClassVar[Contract] = Contract(
        reservation=Exact(), placement="contiguous", geometries=SLOTS
    )

    def __init__(self, geometry: Geometry) -> None:
        if geometry.window or geometry.groups or geometry.num_host_blocks:
            raise UnsupportedGeometry("no windows, groups or host blocks")
        if geometry.block_size not in (self.contract.geometries.block_sizes or (1,)):
            raise UnsupportedGeometry("a contiguous pool has blocks of one token")
        self._geometry = geometry
        self._sequences: dict[int, Extent] = {}

    # What a scheme decides.

    def _size(self, allocated: int, length: int, limit: int | None) -> int:
        """How many slots a sequence reserves at first: its prompt, its length and its bound."""
        raise NotImplementedError

    def _place(self, size: int) -> int | None:
        """Where an extent of `size` goes, if anywhere; it is taken."""
        raise NotImplementedError

    def _grow(self, extent: Extent, length: int) -> list[Copy]:
        """Make `extent` reserve `length` or more, or raise `OutOfBlocks` and change nothing."""
        raise NotImplementedError

    def _release(self, extent: Extent) -> None:
        """Give the slots of `extent` back."""
        raise NotImplementedError

    def num_free_blocks(self) -> int:
        """How many slots are in no extent."""
        raise NotImplementedError

    # The interface.

    def allocate(self, seq: int, num_tokens: int) -> list[Copy]:
        """Start `seq`, whose final length nobody knows."""
        return self._start(seq, num_tokens, None)

    def _start(self, seq: int, num_tokens: int, limit: int | None) -> list[Copy]:
        if seq in self._sequences:
            raise SequenceExists(seq)
        most = self._geometry.max_tokens
        length = _tokens(num_tokens, most)
        if limit is not None and _tokens(limit, most) < length:
            raise InvalidLength(f"{length} tokens, and at most {limit}")
        size = self._size(length, length, limit) if length else 0
        start = self._place(size) if size else 0
        if start is None:
            raise OutOfBlocks(f"no hole for {size} slots")
        self._sequences[seq] = Extent(start, size, length, limit)
        return []

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Reserve slots for `num_tokens` more tokens; a move is reported, slot by slot."""
        extent = self._sequence(seq)
        bounds = [b for b in (extent.limit, self._geometry.max_tokens) if b is not None]
        length = extent.length + _tokens(num_tokens, None)
        if any(length > bound for bound in bounds):
            raise InvalidLength(f"{length} tokens, and at most {min(bounds)}")
        copies: list[Copy] = []
        if length > extent.reserved:
            if extent.reserved == 0:
                # It began with nothing: it is placed now, as a new sequence would be.
                size = self._size(0, length, extent.limit)
                start = self._place(size)
                if start is None:
                    raise OutOfBlocks(f"no hole for {size} slots")
                extent.start, extent.reserved = start, size
            else:
                copies = self._grow(extent, length)
        extent.length = length
        return copies

    def free(self, seq: int) -> None:
        """End `seq` and give its extent back."""
        self._release(self._sequence(seq))
        del self._sequences[seq]

    def block_table(self, seq: int) -> list[int]:
        """The slots of the extent, those not yet filled included."""
        extent = self._sequence(seq)
        return list(range(extent.start, extent.start + extent.reserved))

    def reserved(self, seq: int) -> int:
        """How many slots `seq` reserves."""
        return self._sequence(seq).reserved

    def _sequence(self, seq: int) -> Extent:
        try:
            return self._sequences[seq]
        except KeyError:
            raise UnknownSequence(seq) from None


class AnnouncedExtents(Extents):
    """Extents whose caller may bound the final length."""

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> list[Copy]:
        """Start `seq`; the extent is sized by `limit` where the scheme wants to know it."""
        return self._start(seq, num_tokens, limit)


def _tokens(value: int, most: int | None) -> int:
    try:
        tokens = index(value)
    except TypeError:
        raise InvalidLength(f"{value!r} is no number of tokens") from None
    if tokens < 0 or (most is not None and tokens > most):
        raise InvalidLength(f"{tokens} tokens, and at most {most}")
    return tokens
