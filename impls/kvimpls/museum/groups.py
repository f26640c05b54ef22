"""Faults of KV groups: what is done in one group and not in the others."""

from collections.abc import Callable

from kvimpls.reference import Reference, SequenceState
from kvspec import Geometry, OutOfBlocks


class SmallestBlockSize(Reference):
    """Every group counts in blocks of the smallest size that any group has.

    vllm-project/vllm#55600, where the place of a state was computed so.
    """

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        smallest = min(group.block_size for group in geometry.layout)
        for group in self._groups:
            group._block_size = smallest


class FirstGroupKeeps(Reference):
    """What the first group took is not returned when another group cannot be served.

    sgl-project/sglang#16067, where the first was the state of a hybrid model.
    """

    def _begin(self, seq: int, sequence: SequenceState, length: int) -> None:
        self._start(seq, sequence, length)
        try:
            for group in self._groups[1:]:
                group._start(seq, SequenceState(sequence.limit), length)
        except OutOfBlocks:
            self._journal.forget()
            del self._sequences[seq]
            for group in self._groups[1:]:
                other = group._sequences.pop(seq, None)
                group._let_go(other.held() if other else [])
            self._journal.forget()
            raise


class NumbersPoolsBackwards(Reference):
    """The ids of several pools are numbered from the last pool to the first.

    No public report of this is known to us. Whoever takes an id for one of the pool to which it
    belongs by the numbering copies the blocks of another group.
    """

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        start = self._first_block
        for pool in reversed(self._pools):
            pool.ids = range(start, start + len(pool.ids))
            pool.free = list(reversed(pool.ids))
            start = pool.ids.stop
