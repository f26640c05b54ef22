"""The room of KV groups: one sequence has a table in each, and they tell one history.

That every group takes from its pool is in the kernel, which has a place for each. Here stands
that the groups are kept in step: what is done in one is done in all, or in none.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import evolve

from kvspec.contract import Geometries
from kvspec.geometry import DEVICE, Geometry, Group, Place, blocks_for
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Ended
from kvspec.kernel.generation import fit, live, new_ids, room_for_another
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, plural, sequence_name, table_name
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import Outcome
from kvspec.kernel.perturb import other_count, other_table
from kvspec.kernel.room import Proposal, Room, ungrouped
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import State
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


# ------------------------------------------------------------------------------ the law


def _of_sequences(step: Step) -> bool:
    """Whether a sequence has tables in the groups, or was refused them."""
    live = (*step.before.sequences.values(), *step.after.sequences.values())
    return not step.done or any(sequence.length for sequence in live)


def _groups(step: Step) -> str | None:
    return _foreign(step) or _uneven(step) or _half_changed(step) or _half_counted(step)


def _foreign(step: Step) -> str | None:
    """Where a table has a block of a pool that is not its group's."""
    for table, entries in step.after.tables():
        blocks = step.after.blocks(table.place)
        for i, block in enumerate(entries):
            if block is not None and block not in blocks:
                return (
                    f"entry {i} of {table_name(table)} is block {block}; group {table.group} takes "
                    f"its blocks from the {table.place}, which has {blocks.start} to "
                    f"{blocks.stop - 1}."
                )
    return None


def _uneven(step: Step) -> str | None:
    """Where some tables of a sequence cover its length, and others do not."""
    for seq, sequence in step.after.sequences.items():
        covered: list[str] = []
        short: list[str] = []
        for table in step.after.homes(seq):
            size = step.spec.block_size(table)
            room = len(step.after.entries(table)) * size
            told = f"{plural(room, 'token')} in group {table.group}"
            (short if room < sequence.length else covered).append(told)
        if covered and short:
            return (
                f"{sequence_name(seq)} has {plural(sequence.length, 'token')}, and its tables have "
                f"room for {' and '.join((*covered, *short))}: every group must have room for all."
            )
    return None


def _half_changed(step: Step) -> str | None:
    """Where a call that did not succeed changed a sequence in some groups and not in others."""
    if step.done:
        return None
    changed: dict[int, list[str]] = {}
    kept: dict[int, int] = {}
    for table, before, after in step.survivors:
        if before == after or step.released_anyway(table, after):
            kept[table.seq] = table.group
        else:
            told = f"{entries_text(before)} to {entries_text(after)} in group {table.group}"
            changed.setdefault(table.seq, []).append(told)
    for seq, ways in changed.items():
        if seq in kept:
            return (
                f"the call did not succeed, yet the table of {sequence_name(seq)} went from "
                f"{' and from '.join(ways)}, while it stayed as it was in group {kept[seq]}."
            )
    return None


def _half_counted(step: Step) -> str | None:
    """Where what did not succeed, or an end, is right in one pool and has not come to another."""
    ended = [event.seq for event in step.events if isinstance(event, Ended)]
    if step.done and not ended:
        return None
    wrong = [p for p, free in step.seen.free.items() if free not in _free(step, p)]
    right = [place for place in step.seen.free if place not in wrong]
    if not (wrong and right):
        return None
    place, why = wrong[0], "the call did not succeed"
    if ended:
        why = f"{sequence_name(ended[0])} ended in every group"
    return (
        f"{why}, so {plural(_free(step, place)[-1], 'block')} of the {_name(place)} must be free; "
        f"the allocator says {step.seen.free[place]}, while its count of the {_name(right[0])} is "
        "right: what is done in one group is done in all."
    )


def _free(step: Step, place: Place) -> range:
    return step.spec.free_counts(step.after, place)


def _name(place: Place) -> str:
    return f"{place.tier} pool {place.pool}"


def _one_group_behind(step: Step) -> Iterator[Outcome]:
    """Each disturbance of one table, or of the count of one pool."""
    yield from other_table(step)
    yield from other_count(step)


def _in_step(geometry: Geometry) -> tuple[Call, ...]:
    """A prompt that fits the first group alone is refused; another grows in both, and goes."""
    most = geometry.capacity
    return (
        call("allocate", seq=0, num_tokens=most),
        call("allocate", seq=0, num_tokens=1),
        call("append", seq=0, num_tokens=geometry.block_size),
        call("append", seq=0, num_tokens=most - 1 - geometry.block_size or 1),
        call("free", seq=0),
    )


LAWS = (
    Law(
        "groups",
        "groups",
        "What is done to a sequence is done in all of its groups or in none: their tables have "
        "room for one length, and a call that fails in one leaves the others as they were.",
        "sgl-project/sglang#16067, vllm-project/vllm#55600",
        _of_sequences,
        _groups,
        (_one_group_behind,),
        _in_step,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _tight(
    state: State, spec: "Specification", chooser: Chooser, length: int, *bounds: int | None
) -> int:
    """Tokens to add: what just fits one of the pools, or one more, which it refuses."""
    fits = [fit(state, spec, length, place) for place in dict.fromkeys(state.places)]
    least = min(fits)
    edges = [least, least + 1, max(fits), max(fits) + 1]
    edges += [n for size in _sizes(spec) for n in (-length % size, -length % size + 1)]
    most = min((b - length for b in bounds if b is not None), default=max(fits) + 1)
    return chooser.pick([n for n in edges if 0 < n <= most] or [0])


def _sizes(spec: "Specification") -> list[int]:
    return [group.block_size for group in spec.geometry.layout]


def _allocate(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    tokens = _tight(state, spec, chooser, 0, spec.geometry.max_tokens)
    return spec.operation(call("allocate", seq=chooser.pick(new_ids(state)), num_tokens=tokens))


def _may_ask(state: State, spec: "Specification") -> bool:
    return spec.claims("admission")


def _ask(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return spec.operation(call("can_allocate", num_tokens=_tight(state, spec, chooser, 0)))


def _some(state: State, spec: "Specification") -> bool:
    return bool(live(state))


def _append(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    seq = chooser.pick(live(state))
    past = state.sequences[seq]
    tokens = _tight(state, spec, chooser, past.length, past.limit, spec.geometry.max_tokens)
    return spec.operation(call("append", seq=seq, num_tokens=tokens))


def _one_is_full(state: State, spec: "Specification") -> bool:
    """Whether a pool is full which is not the one that the core looks at."""
    return bool(state.sequences) and any(
        place != DEVICE and spec.available(state, place) == 0 for place in state.places
    )


def _free_one(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    return spec.operation(call("free", seq=chooser.pick(tuple(state.sequences))))


def _grouped(geometry: Geometry) -> bool:
    return not ungrouped(geometry)


def _with_groups(geometry: Geometry, allowed: Geometries, chooser: Chooser | None) -> Geometry:
    """A second group with a smaller pool of its own; drawn, in half of them two or three groups.

    The window of the geometry, if it has one, is then that of one group; and pools of their own
    only where they may have some.
    """
    size = geometry.block_size
    if geometry.groups is not None:
        return geometry
    if chooser is None:
        own = max(1, (geometry.capacity - 1) // (size + 1))
        groups = [Group(size), Group(size + 1, num_blocks=own if allowed.own_pools else None)]
        return evolve(geometry, window=None, num_host_blocks=0, groups=groups)
    if chooser.pick((True, False)):
        return geometry
    groups = [Group(size)]
    for _ in range(chooser.pick((1, 1, 2))):
        other = chooser.pick([n for n in (size + 1, 1, 2, 3, 4, size) if 0 < n <= 4] or [size])
        even = max(1, blocks_for(geometry.capacity, other))
        # Mostly so few that the first group may fit, and be taken, before another does not.
        owned = chooser.pick((even - 1, None, even // 2, even * 2 // 3, None, even))
        if not allowed.own_pools:
            owned = None
        groups.append(Group(other, num_blocks=None if owned is None else max(1, owned)))
    if geometry.window is not None:
        where = chooser.integer(0, len(groups) - 1)
        groups[where] = evolve(groups[where], window=geometry.window)
    return evolve(geometry, window=None, num_host_blocks=0, groups=groups)


ROOM = Room(
    capability="groups",
    methods=(),
    keywords={"block_table": "group", "num_free_blocks": "pool"},
    laws=LAWS,
    applies=_grouped,
    needed_by=_grouped,
    shaped=_with_groups,
    proposals=(
        Proposal("allocate_tight", room_for_another, _allocate),
        Proposal("ask_tight", _may_ask, _ask),
        Proposal("append_tight", _some, _append, weight=2),
        Proposal("make_room_in_one", _one_is_full, _free_one, urgent=True),
    ),
)
