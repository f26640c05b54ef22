"""The fold of events into the facts: what each word means for histories, tables and contents."""

from attrs import evolve

from kvspec.geometry import Geometry, table_index
from kvspec.kernel.events import (
    Cloned,
    Copied,
    Ended,
    Event,
    Grew,
    Inherited,
    Moved,
    Resized,
    Rewound,
    Started,
    TableSeen,
    Written,
)
from kvspec.kernel.state import Cell, Sequence, State, TableOf


def fold(state: State, event: Event, geometry: Geometry) -> State:
    """The state after one event of the kernel; what rooms add for themselves changes nothing."""
    match event:
        case TableSeen(table, entries):
            if table.seq in state.sequences and state.entries(table) != entries:
                return state.holding(table, entries)
            return state
        case Written():
            return _write(state, event, geometry)
        case Copied(source, destination, place, to):
            moved = state.contents.get((place, source), ())
            return state.having(contents={**state.contents, (to, destination): moved})
        case Inherited(seq, num_tokens):
            sequence = state.sequences[seq]
            cells = reading(state, state.home(seq), num_tokens, geometry)
            cells += sequence.cells[num_tokens:]
            return state.with_sequence(seq, evolve(sequence, cells=cells))
        case Started(seq, num_tokens, limit):
            fresh = Sequence(allocated=num_tokens, limit=limit, length=num_tokens)
            return state.with_sequence(seq, fresh)
        case Grew(seq, num_tokens):
            old = state.sequences[seq]
            return state.with_sequence(seq, evolve(old, length=old.length + num_tokens))
        case Rewound(seq, length):
            old = state.sequences[seq]
            return state.with_sequence(seq, evolve(old, length=length, cells=old.cells[:length]))
        case Cloned(parent, child):
            state = state.with_sequence(child, state.sequences[parent])
            pairs = zip(state.homes(child), state.homes(parent), strict=True)
            held = {theirs: state.entries(ours) for theirs, ours in pairs}
            return state.having(holds={**state.holds, **held})
        case Ended(seq):
            left = {s: h for s, h in state.sequences.items() if s != seq}
            return _without_tables(state, seq).having(sequences=left)
        case Moved(seq, tier):
            moved_there = evolve(state.sequences[seq], tier=tier)
            return _without_tables(state, seq).with_sequence(seq, moved_there)
        case Resized(place, blocks):
            # What was in a block that has gone may still be copied to where its table is now.
            return state.having(pools={**state.pools, place: blocks})
        case _:
            return state


def _without_tables(state: State, seq: int) -> State:
    return state.releasing(h for h in state.holds if isinstance(h, TableOf) and h.seq == seq)


def _write(state: State, event: Written, geometry: Geometry) -> State:
    """The history grows by the cells, and they go where the believed tables say."""
    old = state.sequences[event.seq]
    cells = old.cells[: event.start] + event.cells
    contents = dict(state.contents)
    for table in state.homes(event.seq):
        size, entries = geometry.layout[table.group].block_size, state.entries(table)
        for position, cell in enumerate(event.cells, start=event.start):
            i = table_index(position, size)
            block = entries[i] if i < len(entries) else None
            if block is not None:
                held = list(contents.get((table.place, block), ()))
                held += [None] * (size - len(held))
                held[position % size] = cell
                contents[table.place, block] = tuple(held)
    sequences = {**state.sequences, event.seq: evolve(old, cells=cells)}
    return state.having(sequences=sequences, contents=contents)


def reading(
    state: State, table: TableOf, num_tokens: int, geometry: Geometry
) -> tuple[Cell | None, ...]:
    """What the believed contents have at the first `num_tokens` positions of a table."""
    size = geometry.layout[table.group].block_size
    cells: list[Cell | None] = []
    for block in state.entries(table):
        if len(cells) >= num_tokens:
            break
        held = () if block is None else state.contents.get((table.place, block), ())
        cells += (*held[:size], *[None] * (size - len(held)))
    cells += [None] * (num_tokens - len(cells))
    return tuple(cells[:num_tokens])
