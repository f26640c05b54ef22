"""The KV groups of one allocator, kept in step; and what is refused as misuse.

A sequence has a table in every group. What is done to it is done in one group after the other,
and if the last of them cannot, the journal undoes it in all.
"""

import operator
from collections.abc import Iterable

from kvimpls.reference.paging import Paging, SequenceState, tokens_of
from kvimpls.reference.pool import Lease, Pool
from kvspec import (
    AllocatorError,
    Copy,
    Geometry,
    InvalidLength,
    NotResident,
    SequenceExists,
    UnknownLease,
    UnsupportedGeometry,
)


class Grouping(Paging):
    """All groups; it is itself the first, beside which most allocators have no other."""

    _geometry: Geometry
    _max_tokens: int | None
    _groups: list[Paging]
    _pools: list[Pool]

    def _begin(self, seq: int, sequence: SequenceState, length: int) -> None:
        """Let `seq` have its first tokens in every group; `sequence` is its state in the first."""
        self._start(seq, sequence, length)
        for group in self._groups[1:]:
            group._start(seq, SequenceState(sequence.limit), length)

    def _extend(self, seq: int, num_tokens: int) -> list[Copy]:
        """Let `seq` have `num_tokens` more tokens in every group."""
        length = self._longer(seq, num_tokens)
        # First in all groups, since what one releases may be what another needs.
        for group in self._groups:
            group._slide(seq, length)
        return [copy for group in self._groups for copy in group._grow(seq, length)]

    def _longer(self, seq: int, num_tokens: int) -> int:
        """The length of `seq` with `num_tokens` more."""
        sequence = self._resident(seq)
        room = None if sequence.limit is None else sequence.limit - sequence.length
        return sequence.length + tokens_of(num_tokens, room)

    def _needs(self, length: int) -> list[tuple[Paging, int]]:
        """Of each group, what its pool must have for all the groups that share it."""
        needs = [(group, group._need(length)) for group in self._groups]
        return [
            (group, sum(need for other, need in needs if other._supply is group._supply))
            for group in self._groups
        ]

    def _batch(self, seqs: Iterable[int], num_tokens: int | Iterable[int]) -> list[tuple[int, int]]:
        """The sequences of a batch, each with its number of tokens, if all of that makes sense."""
        try:
            ids = [operator.index(seq) for seq in seqs]
        except TypeError:
            raise AllocatorError(f"{seqs!r} is not an array of sequences") from None
        if len(set(ids)) < len(ids):
            raise AllocatorError(f"a sequence occurs twice in {ids}")
        numbers = _numbers(num_tokens, len(ids))
        if len(numbers) != len(ids):
            raise InvalidLength(f"{len(numbers)} numbers of tokens for {len(ids)} sequences")
        # Misuse further on is told before there is a refusal.
        for seq, number in zip(ids, numbers, strict=True):
            self._longer(seq, number)
        return list(zip(ids, numbers, strict=True))

    def _answer(self, copies: list[Copy]) -> list[Copy]:
        """What a mutator returns when it has succeeded; the last thing that each of them does."""
        return copies

    # What is refused as misuse.

    def _resident(self, seq: int) -> SequenceState:
        sequence = self._sequence(seq)
        if sequence.host is not None:
            raise NotResident(f"sequence {seq} is swapped out")
        return sequence

    def _require_unused(self, seq: int) -> None:
        if seq in self._sequences:
            raise SequenceExists(f"sequence {seq} is already in use")

    def _leased_by(self, lease: object) -> list[int]:
        if not isinstance(lease, Lease) or lease not in self._leases:
            raise UnknownLease(f"{lease!r} was never begun here, or has ended")
        return self._leases[lease]

    def _require_one_group(self, capability: str) -> None:
        if len(self._groups) > 1:
            raise UnsupportedGeometry(f"there is no {capability} with KV groups")


def _numbers(num_tokens: int | Iterable[int], count: int) -> list[int]:
    """The numbers of tokens of `count` sequences, for all of which there may be one."""
    try:
        return list(num_tokens)  # type: ignore[arg-type]  # whether it is many is the question
    except TypeError:
        return [tokens_of(num_tokens)] * count  # type: ignore[arg-type]  # and here it is not
