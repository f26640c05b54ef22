"""Mistakes that are often made when an allocator is plugged in, for the page about that.

Each class is the reference with one mistake, which its docstring names. `docs/generate.py`
shows what kvspec says of it.
"""

from typing import Any, ClassVar

from kvimpls.reference import Reference
from kvspec import Contract, Copy, Geometry, OutOfBlocks, UnsupportedGeometry

# ------------------------------------------------------- found before anything is run: exit 2


class NoFree(Reference):
    """A method of the core is missing."""

    free: Any = None


class MisspeltCount(Reference):
    """A method has almost the right name."""

    num_free_blocks: Any = None

    def num_free_block(self) -> int:
        """How many blocks are free."""
        return len(self._free)


class HalfALease(Reference):
    """A capability is there in part."""

    end_transfer: Any = None


class ClaimsAStore(Reference):
    """The contract claims a capability that is not there."""

    contract: ClassVar[Contract] = Contract(capabilities=("core", "sharing", "store"))


class ClaimsSpeculation(Reference):
    """The contract claims a capability that has no specification yet."""

    contract: ClassVar[Contract] = Contract(capabilities=("core", "speculation"))


class ContractAsDict(Reference):
    """The contract is not a `Contract`."""

    contract: ClassVar[Any] = {"first_block": 1}


class NeedsMore(Reference):
    """The factory wants more than a geometry."""

    def __init__(self, geometry: Geometry, device: str) -> None:
        super().__init__(geometry)


class LargeBlocksOnly(Reference):
    """The factory cannot be built with the small pools of the suite, and no contract says so."""

    def __init__(self, geometry: Geometry) -> None:
        if geometry.block_size % 16:
            raise UnsupportedGeometry("the block size must be a multiple of 16")
        super().__init__(geometry)


# ------------------------------------------------------------------ found by a law: exit 1


class RaisesKeyError(Reference):
    """An unknown sequence is reported with an error that has none of the interface's names."""

    def free(self, seq: int) -> list[Copy]:
        """End `seq`."""
        if seq not in self._sequences:
            raise KeyError(seq)
        return super().free(seq)


class ReturnsItsOwnTable(Reference):
    """`block_table` returns the list that the allocator works on."""

    def block_table(self, seq: int, group: int = 0) -> Any:
        """The blocks of `seq`, now and later."""
        return super().block_table(seq, group) if group else self._sequence(seq).blocks


class CountsAsFloat(Reference):
    """The free count is a float."""

    def num_free_blocks(self, pool: int = 0) -> Any:
        """How many blocks are free."""
        return float(super().num_free_blocks(pool))


class ReturnsTheBlock(Reference):
    """`append` returns the new blocks, where the interface has the copies that are needed."""

    def append(self, seq: int, num_tokens: int) -> Any:
        """Reserve slots, and say where."""
        super().append(seq, num_tokens)
        return self._sequence(seq).blocks[-1:]


class StartsAtOne(Reference):
    """Block ids start at 1, and no contract says so."""

    _first_block = 1


class ABlockForNothing(Reference):
    """A sequence of no tokens takes a block."""

    def _need(self, length: int) -> int:
        return max(1, super()._need(length))


class KeepsOneBack(Reference):
    """A block is kept in reserve, which the free count includes."""

    def _take(self, count: int) -> list[int]:
        if count and count >= len(self._free):
            raise OutOfBlocks("one block stays in reserve")
        return super()._take(count)


class CopiesAtFork(Reference):
    """A fork copies the partly filled tail at once, and no contract says so."""

    def _copied_at_fork(self, origin: Any) -> list[int]:
        whole, rest = divmod(origin.length, self._geometry.block_size)
        return [whole] if rest else []
