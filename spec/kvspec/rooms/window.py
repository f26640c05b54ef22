"""The room of the sliding window: what no later token sees is let go of, and nothing else.

It has no methods and no facts. That released entries are `None`, and that their blocks count for
the append which releases them, is in the kernel; here stands when an entry must be released.
"""

from typing import TYPE_CHECKING

from attrs import evolve

from kvspec.contract import Geometries
from kvspec.geometry import Geometry, whole_blocks
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.events import Cloned, Grew, Inherited
from kvspec.kernel.generation import live, new_ids, room_for_another
from kvspec.kernel.growth import freed
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, plural, table_name
from kvspec.kernel.operation import Operation
from kvspec.kernel.perturb import released_otherwise
from kvspec.kernel.room import Proposal, Room
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import Entries, State, TableOf
from kvspec.kernel.step import Step

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


# ------------------------------------------------------------------------------ the law


def _windowed(step: Step, table: TableOf) -> bool:
    return step.spec.geometry.layout[table.group].window is not None


def _gone(entries: Entries) -> frozenset[int]:
    """The entries that are released."""
    return frozenset(i for i, block in enumerate(entries) if block is None)


def _something_released(step: Step) -> bool:
    """Whether an entry is released, was, or had to be."""
    for seq in step.after.sequences:
        for table in step.after.homes(seq):
            entries = step.after.entries(table)
            if _windowed(step, table) and (None in entries or _due(step, table, entries)):
                return True
    return any(None in before for _, before, _ in step.survivors)


def _due(step: Step, table: TableOf, entries: Entries) -> frozenset[int]:
    """The entries that must be released after the step, of those that there are."""
    found = frozenset(range(_released_now(step, table)[0]))
    before = _beginning(step, table)
    if before is not None:
        # What an append finds before the window; the blocks that it adds are never among it.
        found = found.intersection(range(len(before))) | _gone(before)
    return found.intersection(range(len(entries)))


def _beginning(step: Step, table: TableOf) -> Entries | None:
    """The table that this one was before the step; none for a sequence that starts with it."""
    origin = table.seq
    for event in step.events:
        if isinstance(event, Cloned) and event.child == table.seq:
            origin = event.parent
    if origin not in step.before.sequences:
        return None
    return step.before.table(origin, table.group)


def _released_now(step: Step, table: TableOf) -> tuple[int, str]:
    """How many leading entries the step releases, with the reason."""
    group = step.spec.geometry.layout[table.group]
    gone, deed = 0, ""
    for event in step.events:
        match event:
            case Grew(seq, num_tokens) if seq == table.seq and num_tokens:
                length = step.before.sequences[seq].length
                gone = step.spec.released(length, num_tokens, table.group)
                deed = f"gets {plural(num_tokens, 'token')} beyond {length}"
            case Inherited(seq, num_tokens) if seq == table.seq:
                if seq not in step.before.sequences:
                    gone = whole_blocks(num_tokens - (group.window or 0), group.block_size)
                    deed = f"begins with a hit of {plural(num_tokens, 'token')}"
    if not deed:
        return 0, "gets no token beyond what it had, so nothing is released"
    lie = "lies" if gone == 1 else "lie"
    return gone, (
        f"{deed}, and {gone} of its blocks of {group.block_size} {lie} wholly before its window "
        f"of {group.window} then"
    )


def _most_before_a_hit(step: Step, table: TableOf) -> int:
    """How many leading entries the step may release of a sequence that begins with a hit."""
    for event in step.events:
        if isinstance(event, Inherited) and event.seq == table.seq:
            return max(step.spec.released_before_a_hit(event.num_tokens))
    return 0


def _window(step: Step) -> str | None:
    for seq in step.after.sequences:
        for table in step.after.homes(seq):
            why = _misreleased(step, table) if _windowed(step, table) else None
            if why:
                return why
    return None


def _misreleased(step: Step, table: TableOf) -> str | None:
    entries = step.after.entries(table)
    due, gone, before = _due(step, table, entries), _gone(entries), _beginning(step, table)
    if gone == due:
        return None
    if before is not None and step.released_anyway(table, entries):
        return None
    if before is None and gone == frozenset(range(_most_before_a_hit(step, table))):
        return None
    told = (
        f"{table_name(table)} {_released_now(step, table)[1]}; the table was "
        f"{entries_text(before or ())} and is {entries_text(entries)}"
    )
    if late := sorted(due - gone):
        again = before is not None and late[0] in _gone(before)
        must = "was released, and never comes back" if again else "must be released by now"
        return f"{told}: entry {late[0]} {must}."
    return f"{told}: entry {min(gone - due)} must not be released."


def _slide(geometry: Geometry) -> tuple[Call, ...]:
    """The window leaves one block, then none, then two blocks at once."""
    size, window = geometry.block_size, geometry.window or 1
    return (
        call("allocate", seq=0, num_tokens=size + window - 1),
        call("append", seq=0, num_tokens=1),
        call("append", seq=0, num_tokens=2 * size),
        call("append", seq=0, num_tokens=1),
        call("free", seq=0),
    )


LAWS = (
    Law(
        "window",
        "window",
        "An append releases just the entries that lie wholly before the window of its first new "
        "token; nothing else does, and what was released never comes back.",
        "ggml-org/llama.cpp#18720, sgl-project/sglang#27586",
        _something_released,
        _window,
        (released_otherwise,),
        _slide,
    ),
)


# ------------------------------------------------------------------------------ proposals


def _windows(spec: "Specification") -> list[tuple[int, int, int]]:
    """The groups with a window: (group, block size, window)."""
    return [
        (number, group.block_size, group.window)
        for number, group in enumerate(spec.geometry.layout)
        if group.window is not None
    ]


def _bounded(spec: "Specification", lengths: list[int], *bounds: int | None) -> list[int]:
    """Those of `lengths` that a right call may add; where misuse raises, one beyond as well."""
    most = min((b for b in (*bounds, spec.most_tokens) if b is not None), default=0)
    beyond = spec.contract.misuse == "raises" and most < spec.most_tokens
    return [n for n in lengths if 0 < n <= most + beyond] or [0]


def _draw_long(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """A prompt longer than the window, of which nothing is released yet."""
    _, size, window = chooser.pick(_windows(spec))
    lengths = [window + size, window + 1, window + size - 1, window + 2 * size]
    tokens = chooser.pick(_bounded(spec, lengths, spec.geometry.max_tokens))
    seq = chooser.pick(new_ids(state))
    return spec.operation(call("allocate", seq=seq, num_tokens=tokens))


def _slides(state: State, spec: "Specification") -> dict[int, bool]:
    """The sequences from which one more token takes a block, and whether another has it too."""
    found: dict[int, bool] = {}
    for seq in live(state):
        length = state.sequences[seq].length
        for group, _, _ in _windows(spec):
            table = state.home(seq, group)
            leaving = [
                block
                for block in state.entries(table)[: spec.released(length, 1, group)]
                if block is not None
            ]
            if leaving:
                alone = len(set(freed(state, spec, table, 1))) == len(leaving)
                found[seq] = found.get(seq, False) or not alone
    return found


def _some_slide(state: State, spec: "Specification") -> bool:
    return bool(_slides(state, spec))


def _some_near(state: State, spec: "Specification") -> bool:
    return bool(live(state))


def _draw_slide(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """One that releases a block, and fits by that just or just not.

    What others have too, or a lease, is released and yet not free: so these come more often.
    """
    slides = _slides(state, spec)
    seq = chooser.pick((*slides, *(seq for seq, shared in slides.items() if shared)))
    group, size, _ = chooser.pick(_windows(spec))
    table, sequence = state.home(seq, group), state.sequences[seq]
    length, available = sequence.length, spec.available(state, table.place)
    spare = len(state.entries(table)) * size - length
    gained = len(set(freed(state, spec, table, 1)))
    left = spec.released(length, 1, group) - sum(
        block is None for block in state.entries(table)[: spec.released(length, 1, group)]
    )
    fits = [available + gained, available + gained - 1, available, available + left]
    lengths = [1, size, *(fit * size + spare for fit in fits)]
    lengths += [fit * size + spare + 1 for fit in fits]
    most = (sequence.limit, spec.geometry.max_tokens)
    bounds = [bound - length for bound in most if bound is not None]
    tokens = chooser.pick(_bounded(spec, sorted(set(lengths)), *bounds))
    return spec.operation(call("append", seq=seq, num_tokens=tokens))


def _draw_near(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """An append after which the window begins at a block's edge, or beside it."""
    seq = chooser.pick(live(state))
    sequence = state.sequences[seq]
    _, size, window = chooser.pick(_windows(spec))
    first = sequence.length + 1 - window
    edge = -first % size
    lengths = sorted({1, edge - 1, edge, edge + 1, edge + size, window + edge, size + 1})
    most = (sequence.limit, spec.geometry.max_tokens)
    bounds = [bound - sequence.length for bound in most if bound is not None]
    tokens = chooser.pick(_bounded(spec, lengths, *bounds))
    return spec.operation(call("append", seq=seq, num_tokens=tokens))


def _may_ask(state: State, spec: "Specification") -> bool:
    return spec.claims("admission")


def _ask(state: State, spec: "Specification", chooser: Chooser) -> Operation:
    """About a prompt that is longer than the window, and around what is free."""
    size, free = spec.geometry.block_size, spec.available(state)
    whole = sum(spec.geometry.pools[:1])
    lengths = [free * size, free * size + 1, whole * size, whole * size + 1]
    tokens = chooser.pick(_bounded(spec, lengths, spec.geometry.max_tokens))
    return spec.operation(call("can_allocate", num_tokens=tokens))


def _has_a_window(geometry: Geometry) -> bool:
    return any(group.window is not None for group in geometry.layout)


def _with_a_window(geometry: Geometry, allowed: Geometries, chooser: Chooser | None) -> Geometry:
    """A window of a few tokens; drawn, in most of the geometries."""
    if geometry.groups is not None:
        return geometry
    if chooser is None:
        # So short that a sequence outgrows it also where its length is bounded.
        most = geometry.max_tokens
        roomy = most is None or most >= geometry.block_size + 3
        return evolve(geometry, window=3 if roomy else 1)
    if chooser.pick((False, True, True)):
        return evolve(geometry, window=chooser.integer(1, 2 * geometry.block_size + 1))
    return geometry


ROOM = Room(
    capability="window",
    methods=(),
    flags=("supports_window",),
    laws=LAWS,
    applies=_has_a_window,
    needed_by=_has_a_window,
    shaped=_with_a_window,
    proposals=(
        Proposal("allocate_long", room_for_another, _draw_long),
        Proposal("slide", _some_slide, _draw_slide, weight=4),
        Proposal("near_window", _some_near, _draw_near),
        Proposal("ask_long", _may_ask, _ask),
    ),
    weight=3,
)
