"""The fold of events into the facts: what each word means for histories, tables and contents."""

from attrs import evolve

from kvspec.geometry import Group, table_index
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
    Settled,
    Started,
    TableSeen,
    Written,
)
from kvspec.kernel.state import Cell, Sequence, State, TableOf

Layout = tuple[Group, ...]


def fold(state: State, event: Event, layout: Layout) -> State:
    """The state after one event of the kernel; what rooms add for themselves changes nothing."""
    match event:
        case TableSeen(table, entries):
            if table.seq in state.sequences and state.entries(table) != entries:
                return state.holding(table, entries)
            return state
        case Settled():
            return state
        case Written():
            return _write(state, event, layout)
        case Copied(source, destination, place, to):
            moved = state.contents.get((place, source), ())
            return state.having(contents={**state.contents, (to, destination): moved})
        case Inherited(seq, num_tokens):
            sequence = state.sequences[seq]
            cells = reading(state, state.home(seq), num_tokens, layout)
            cells += sequence.cells[num_tokens:]
            return state.with_sequence(seq, evolve(sequence, cells=cells))
        case Started(seq, num_tokens, limit):
            fresh = Sequence(allocated=num_tokens, limit=limit, length=num_tokens)
            return state.with_sequence(seq, fresh)
        case Grew(seq, num_tokens):
            old = state.sequences[seq]
            grown = old.grown(num_tokens)
            return state.with_sequence(seq, grown)
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


def _write(state: State, event: Written, layout: Layout) -> State:
    """The history grows by the cells, and they go where the believed tables say."""
    old = state.sequences[event.seq]
    start, written = event.start, event.cells
    if not written and start >= len(old.cells):
        return state
    stop = start + len(written)
    contents = dict(state.contents)
    for table in state.homes(event.seq):
        size, entries = layout[table.group].block_size, state.entries(table)
        for i in range(
            table_index(start, size), min(len(entries), table_index(stop - 1, size) + 1)
        ):
            block, first = entries[i], i * size
            if block is not None:
                held = contents.get((table.place, block), ())
                held += (None,) * (size - len(held))
                low, high = max(start, first), min(stop, first + size)
                new = written[low - start : high - start]
                contents[table.place, block] = held[: low - first] + new + held[high - first :]
    grown = _with_cells(old, old.cells[:start] + written)
    sequences = {**state.sequences, event.seq: grown}
    return state.having(sequences=sequences, contents=contents)


def _with_cells(old: Sequence, cells: tuple[Cell | None, ...]) -> Sequence:
    """The history with other cells; `evolve` takes longer than all else in a write."""
    return Sequence(old.allocated, old.limit, old.length, cells, old.tier)


def reading(
    state: State, table: TableOf, num_tokens: int, layout: Layout
) -> tuple[Cell | None, ...]:
    """What the believed contents have at the first `num_tokens` positions of a table."""
    size, place, contents = layout[table.group].block_size, table.place, state.contents
    cells: list[Cell | None] = []
    for block in state.entries(table):
        if len(cells) >= num_tokens:
            break
        held = () if block is None else contents.get((place, block), ())
        if len(held) == size:
            cells += held
        else:
            cells += (*held[:size], *[None] * (size - len(held)))
    cells += [None] * (num_tokens - len(cells))
    return tuple(cells[:num_tokens])
