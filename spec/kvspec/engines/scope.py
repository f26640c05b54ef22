"""A small scope: which calls are tried in a state when all of them are to be.

Right calls come from the rooms, which know what may make a difference; wrong ones are tried once
in every kind of state, since they must be answered in the same way in all states of a kind.
"""

from collections.abc import Hashable, Iterator
from hashlib import blake2b

from attrs import define, field, frozen

from kvspec.kernel.generation import longest
from kvspec.kernel.names import plural
from kvspec.kernel.operation import Operation
from kvspec.kernel.specification import Specification
from kvspec.kernel.state import State
from kvspec.kernel.step import Step
from kvspec.rooms.resize import MOST_TIMES

MOST_FAULTS = 64
"""After so many checkpoints a call is no longer made to fail."""


@frozen
class Scope:
    """All calls about at most so many sequences, in the geometry of `spec`.

    The ids are 0 and up. Where `symmetric`, one unused id stands for all of them.
    """

    spec: Specification
    sequences: int
    symmetric: bool = False

    @property
    def bounds(self) -> str:
        """How far it goes, for the report."""
        geometry = self.spec.geometry
        parts = [
            f"{plural(geometry.num_blocks, 'block')} of {plural(geometry.block_size, 'token')}",
            plural(self.sequences, "sequence"),
            f"lengths up to {longest(self.spec)}",
        ]
        if geometry.num_host_blocks:
            parts.insert(1, plural(geometry.num_host_blocks, "host block"))
        if geometry.window is not None:
            parts.append(f"a window of {geometry.window}")
        for number, group in enumerate(geometry.groups or ()):
            own = "the one pool" if group.num_blocks is None else f"its own {group.num_blocks}"
            window = "" if group.window is None else f", a window of {group.window}"
            parts.append(f"group {number} in blocks of {group.block_size} from {own}{window}")
        if self.spec.claims("resize"):
            most = plural(MOST_TIMES * geometry.num_blocks, "block")
            parts.append(f"pools of up to {most}")
        if self.spec.claims("prefix"):
            parts.append("tokens of two letters, two keys")
        if self.spec.claims("lease"):
            parts.append("two leases at once")
        return ", ".join(parts)

    def right_calls(self, state: State) -> Iterator[Operation]:
        """Every right call that makes a difference, each once."""
        unused = [seq for seq in range(self.sequences) if seq not in state.sequences]
        ids = unused[:1] if self.symmetric else unused
        for room in self.spec.rooms:
            for operation in room.every(state, self.spec, ids):
                if not self.spec.expect(state, operation).errors and operation.sensible(state):
                    yield operation

    def wrong_calls(self, state: State) -> Iterator[Operation]:
        """Some wrong calls, where the contract says what becomes of them.

        Those of the rooms, and of all calls the first that is wrong in each way.
        """
        if self.spec.contract.misuse != "raises":
            return
        known = set()
        for room in self.spec.rooms:
            yield from room.wrong(state, self.spec)
            for operation in room.every(state, self.spec, ()):
                errors = self.spec.expect(state, operation).errors
                way = (type(operation), operation.subjects, errors)
                if errors and way not in known:
                    known.add(way)
                    yield operation


@define
class Kinds:
    """Which kinds of states have been seen: after the first of each, wrong calls are tried.

    What an allocator has inside is part of the kind, where it can be compared: with the same
    inside it answers in the same way. Where it cannot, the call that led there is: an id that was
    freed just now is another unknown id than one that never was in use.
    """

    spec: Specification
    _seen: set[Hashable] = field(factory=set)

    def new(self, state: State, step: Step | None = None, inside: bytes | None = None) -> bool:
        """Whether `state`, to which `step` led, is the first of its kind, with that inside."""
        way: Hashable = inside and blake2b(inside, digest_size=16).digest()
        if inside is None and step is not None:
            way = type(step.operation), step.answer.kind
        kind = self._kind(state), way
        new = kind not in self._seen
        self._seen.add(kind)
        return new

    def _kind(self, state: State) -> Hashable:
        """Who is where, empty, full to a block's end or partly; what is free, and in flight."""
        size = self.spec.geometry.block_size
        ids = sorted(state.sequences)
        about = tuple(
            (seq, one.tier, min(one.length, 1 + one.length % size), one.limit == one.length)
            for seq, one in ((seq, state.sequences[seq]) for seq in ids)
        )
        free = tuple((place, self.spec.available(state, place) > 0) for place in state.pools)
        others = tuple(sorted({type(holder).__name__ for holder in state.holds}))
        return about, free, others
