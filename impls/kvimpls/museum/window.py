"""Faults of the sliding window: what it releases, when, and who still counts on it."""

from collections.abc import Callable
from typing import Any

from kvimpls.reference import Reference, SequenceState
from kvimpls.reference.paging import Entry, Paging
from kvspec import Geometry


class JudgedByTheLast(Reference):
    """An append releases what its last new token does not see, which its first one does.

    ggml-org/llama.cpp#18720: one token at a time, both are the same.
    """

    def _judged_at(self, sequence: SequenceState, length: int) -> int:
        # No further than to the entry that it writes into, which is another matter.
        written = sequence.length - sequence.length % self._block_size
        return min(length, written + (self._window or 0))


class AdmitsByTheWindow(Reference):
    """`can_allocate` counts the blocks of a window, and `allocate` takes those of the prompt.

    vllm-project/vllm#17834.
    """

    def _needs(self, length: int) -> list[tuple[Paging, int]]:
        return [
            (group, need if group._window is None else min(need, group._need(group._window)))
            for group, need in super()._needs(length)
        ]


class RemembersTheReleased(Reference):
    """What allocators that do not forget released blocks have in common.

    `_gone` has, by sequence and index, the block that was there before the window left it.
    """

    def __init__(
        self, geometry: Geometry, *, checkpoint: Callable[[str], object] | None = None
    ) -> None:
        super().__init__(geometry, checkpoint=checkpoint)
        self._gone: dict[int, dict[int, int]] = {}

    def _slide(self, seq: int, length: int) -> None:
        before = list(self._sequences[seq].blocks)
        super()._slide(seq, length)
        after = self._sequences[seq].blocks
        gone = {
            index: block
            for index, (block, now) in enumerate(zip(before, after, strict=True))
            if block is not None and now is None
        }
        self._journal.put(self._gone, seq, {**self._gone.get(seq, {}), **gone})

    def _end(self, seq: int) -> None:
        super()._end(seq)
        if seq in self._gone:
            self._journal.delete(self._gone, seq)


class TombstoneFrees(RemembersTheReleased):
    """The end of a sequence frees what its window had left, although another has it by now.

    sgl-project/sglang#27586: the map of a tombstone still named the slot.
    """

    def _end(self, seq: int) -> None:
        tombs = dict.fromkeys(self._gone.get(seq, {}).values())
        super()._end(seq)
        for block in tombs:
            if self._references[block]:
                self._journal.append(self._free, block)


class PublishesWhatHasGone(RemembersTheReleased):
    """A sequence publishes the blocks that its window had left, whoever writes into them now.

    sgl-project/sglang#31486.
    """

    def _publish_up_to(self, sequence: SequenceState, length: int) -> None:
        super()._publish_up_to(sequence, length)
        seq = next(seq for seq, state in self._sequences.items() if state is sequence)
        for index, block in self._gone.get(seq, {}).items():
            known = index < self._full(sequence, length) and self._publishes(sequence)
            if known and not self._cached(block):
                self._publish(block, self._contents(sequence.tokens, sequence.key, index))


class FoundByWholeWindows(Reference):
    """With a window, a hit has to be of so many whole windows; what is cached is so many blocks.

    1CatAI/1Cat-vLLM#205: what was kept and what was looked for had hardly a length in common.
    """

    def _hit(self, tokens: tuple[int, ...], key: Any, most: int) -> list[Entry]:
        step = self._window or self._block_size
        for length in range(most // step * step, 0, -step):
            hit = super()._hit(tokens, key, length)
            if len(hit) * self._block_size == length:
                return hit
        return []
