"""Coverage of situations: which operation was tried in which of them, and how often.

What a suite never tried it cannot have found wrong. A situation is a named predicate over a step,
in the words of the kernel, so that it means the same for every operation and every engine.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from attrs import define, field, frozen

from kvspec.geometry import Place
from kvspec.kernel.events import Displaced
from kvspec.kernel.room import Room
from kvspec.kernel.state import TableOf
from kvspec.kernel.step import Step


@frozen
class Situation:
    """A situation in which an operation may find things, or which it may bring about."""

    name: str
    statement: str
    holds: Callable[[Step], bool]


def _right(step: Step) -> bool:
    return not (step.expected.errors or step.expected.injected)


def _wrong_call(step: Step) -> bool:
    return bool(step.expected.errors)


def _injected(step: Step) -> bool:
    return step.outcome.fault is not None


def _refusal(step: Step) -> bool:
    return _right(step) and step.answer.kind == "refused"


def _exact_fit(step: Step) -> bool:
    expected = step.expected
    return _right(step) and expected.done and expected.fresh == expected.available > 0


def _zero_tokens(step: Step) -> bool:
    operation = step.operation
    asked = getattr(operation, "num_tokens", getattr(operation, "tokens", None))
    return _right(step) and type(asked) in (int, tuple) and not asked


def _places(step: Step) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(step.before.places))


def _empty_pool(step: Step) -> bool:
    return not any(step.before.at(place).held for place in _places(step))


def _full_pool(step: Step) -> bool:
    return any(step.spec.available(step.before, place) == 0 for place in _places(step))


def _subjects(step: Step) -> tuple[int, ...]:
    """The sequences that the call is about, whether it changes them or only asks."""
    return tuple(dict.fromkeys((*step.operation.subjects, *step.operation.touched)))


def _lengths(step: Step) -> Iterator[tuple[int | None, int | None]]:
    """The lengths of the subjects, before and after."""
    for seq in _subjects(step):
        before, after = step.before.sequences.get(seq), step.after.sequences.get(seq)
        yield before.length if before else None, after.length if after else None


def _at_boundary(length: int | None, step: Step) -> bool:
    sizes = (group.block_size for group in step.spec.geometry.layout)
    return length is not None and length > 0 and any(length % size == 0 for size in sizes)


def _from_boundary(step: Step) -> bool:
    return _right(step) and any(_at_boundary(before, step) for before, _ in _lengths(step))


def _to_boundary(step: Step) -> bool:
    return step.done and any(
        before != after and _at_boundary(after, step) for before, after in _lengths(step)
    )


def _shared_written(step: Step) -> Iterator[TableOf]:
    """The tables that wrote into an entry whose block another table had too."""
    if step.done:
        for table, indices in step.reserved.items():
            entries = step.before.entries(table)
            if any(len(step.before.users(table, b)) > 1 for b in entries[indices[0] :]):
                yield table


def _writes_shared(step: Step) -> bool:
    return any(True for _ in _shared_written(step))


def _copies_and_grows(step: Step) -> bool:
    return any(
        len(step.after.entries(table)) > len(step.before.entries(table))
        for table in _shared_written(step)
    )


def _hit(step: Step, in_use: bool) -> bool:
    for table, index in step.adopted:
        block = step.after.entries(table)[index]
        if (block in step.before.at(table.place).held) == in_use:
            return True
    return False


def _hit_in_free_list(step: Step) -> bool:
    return step.done and _hit(step, in_use=False)


def _hit_in_use(step: Step) -> bool:
    return step.done and _hit(step, in_use=True)


def _eviction(step: Step) -> bool:
    asked = any(isinstance(event, Displaced) for event in step.events)
    idle = any(block in step.before.at(table.place).idle for table, _, block in step.taken)
    return step.done and (asked or idle)


def _in_flight(step: Step) -> bool:
    """A lease pins a block that the subjects have, or had."""
    for state in (step.before, step.after):
        for seq in _subjects(step):
            for table in state.homes(seq):
                pins = state.at(table.place).pins
                if pins and any(block in pins for block in state.entries(table)):
                    return True
    return False


def _window_release(step: Step) -> bool:
    return any(
        old is not None and new is None
        for _, before, after in step.survivors
        if before != after
        for old, new in zip(before, after, strict=False)
    )


def _release_fits(step: Step) -> bool:
    return step.done and any(
        need.freed and need.fresh > step.spec.available(step.before, need.place)
        for need in step.operation.needs(step.before, step.spec)
    )


def _swapped_out(step: Step) -> bool:
    sequences = (step.before.sequences.get(seq) for seq in _subjects(step))
    return any(sequence is not None and not sequence.resident for sequence in sequences)


ANSWERS = (
    Situation("wrong call", "an error of the interface applies", _wrong_call),
    Situation("injected fault", "a checkpoint of the call failed", _injected),
    Situation("refusal", "a right call was refused", _refusal),
    Situation("exact fit", "it takes the very last of the free blocks", _exact_fit),
    Situation("zero tokens", "a right call about no token", _zero_tokens),
    Situation("empty pool", "nobody had a block on the device", _empty_pool),
    Situation("full pool", "no block of some pool on the device was free", _full_pool),
    Situation("from a boundary", "a subject's length filled its last block", _from_boundary),
    Situation("to a boundary", "a subject's new length fills its last block", _to_boundary),
    Situation("swapped out", "a subject was not on the device", _swapped_out),
)
"""How the call stood to the pool, and to the lengths of its subjects."""

BLOCKS = (
    Situation("shared written", "a block that another table has is written into", _writes_shared),
    Situation("copies and grows", "and the same call takes further blocks", _copies_and_grows),
    Situation("hit in free list", "cached contents that nobody used are found", _hit_in_free_list),
    Situation("hit in use", "cached contents that somebody uses are found", _hit_in_use),
    Situation("eviction", "cached contents are given up, for a block or on request", _eviction),
    Situation("in flight", "a lease pins a block of a subject", _in_flight),
    Situation("window release", "an entry is released", _window_release),
    Situation("release fits", "it fits only by what it releases itself", _release_fits),
)
"""What happened to blocks."""

SITUATIONS = (*ANSWERS, *BLOCKS)


@define
class Coverage:
    """How often each operation was called, and in which situations."""

    calls: Counter[str] = field(factory=Counter)
    counts: Counter[tuple[str, str]] = field(factory=Counter)

    def note(self, step: Step) -> None:
        """Count one judged step, and the queries that followed it."""
        method = step.operation.method
        self.calls[method] += 1
        for situation in SITUATIONS:
            if situation.holds(step):
                self.counts[method, situation.name] += 1
        for asked in step.seen.asked:
            self.calls[asked.query.method] += 1

    def include(self, other: "Coverage") -> None:
        """Count what another has counted as well."""
        self.calls += other.calls
        self.counts += other.counts

    def table(self, rooms: tuple[Room, ...]) -> Mapping[str, Mapping[str, int]]:
        """By operation of `rooms` how often it was called, and then by situation how often in it.

        Operations that were never called are among them.
        """
        methods = dict.fromkeys(kind.method for room in rooms for kind in room.operations)
        return {
            method: {
                "calls": self.calls[method],
                **{s.name: self.counts[method, s.name] for s in SITUATIONS},
            }
            for method in methods
        }
