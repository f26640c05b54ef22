"""Where blocks may move, `judge` against an oracle of its own: tables as a partition, and contents.

A relocating contract has no list of choices. What may come out of a call is said here once
more, in other words than the laws': who shares with whom, and what everybody reads.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import product

import pytest
from scopes import allocate, append, begin, end, fork, free, reached, scope, tables, tables_of, told

from kvspec.interface import Copy
from kvspec.kernel.operation import Operation
from kvspec.kernel.outcome import DONE, Answer, Observation, Outcome
from kvspec.kernel.script import Call
from kvspec.kernel.state import State
from kvspec.rooms.lease import LeaseOf
from kvspec.rooms.sharing import Fork

SIZE = 2
STRICT, MOVING = scope(3, SIZE), scope(3, SIZE, relocates=True)
Tables = Mapping[int, tuple[int, ...]]
"""By sequence, in the one group at the one place that there is."""


def written_entries(operation: Operation, state: State) -> set[tuple[int, int]]:
    """The entries (sequence, index) into which the caller writes after the call."""
    writes = operation.writes(state, MOVING)
    if writes is None:
        return set()
    return {(writes.seq, (writes.start + k) // SIZE) for k in range(len(writes.cells))}


def table_before(operation: Operation, state: State, seq: int) -> tuple[int | None, ...]:
    """The table that `seq` had before the call; a child had its parent's."""
    forked = isinstance(operation, Fork) and seq == operation.child
    return state.table(operation.parent if forked else seq)


def kept_together(operation: Operation, state: State, shown: Tables) -> bool:
    """Whether entries have one block exactly if they had one and none writes into it alone."""
    written = written_entries(operation, state)
    users = Counter(block for table in tables_of(state).values() for block in table)
    kinds: dict[tuple[int, int], object] = {}
    for seq, table in shown.items():
        old = table_before(operation, state, seq)
        for i in range(len(table)):
            parts = i >= len(old) or ((seq, i) in written and users[old[i]] > 1)
            kinds[seq, i] = (seq, i) if parts else old[i]
    blocks = {(seq, i): block for seq, table in shown.items() for i, block in enumerate(table)}
    return all((blocks[a] == blocks[b]) == (kinds[a] == kinds[b]) for a in blocks for b in blocks)


def in_flight(operation: Operation, state: State) -> set[int | None]:
    """The blocks of the leases that are open before and after a success."""
    after = MOVING.foreseen(state, operation, DONE)
    open_leases = (h for h in state.holds if isinstance(h, LeaseOf) and h in after.holds)
    return {block for lease in open_leases for block in state.holds[lease]}


def right(operation: Operation, state: State, shown: Tables, copies: tuple[Copy, ...]) -> bool:
    """Whether a success may show these tables and report these copies, where blocks may move."""
    after = MOVING.foreseen(state, operation, DONE)
    if any(len(shown[s]) != -(-past.length // SIZE) for s, past in after.sequences.items()):
        return False
    if not kept_together(operation, state, shown):
        return False
    entered = {
        block
        for seq, table in shown.items()
        for i, block in enumerate(table)
        if table_before(operation, state, seq)[i : i + 1] != (block,)
    }
    if in_flight(operation, state) & (entered | {copy.destination for copy in copies}):
        return False
    memory = {block: list(cells) for (_, block), cells in state.contents.items()}
    for source, destination in copies:
        memory[destination] = list(memory.get(source, [None] * SIZE))
    writes = operation.writes(state, MOVING)
    reads = {seq: list(past.cells) for seq, past in after.sequences.items()}
    for position, cell in enumerate(writes.cells, start=writes.start) if writes else ():
        block = shown[writes.seq][position // SIZE]
        memory.setdefault(block, [None] * SIZE)[position % SIZE] = cell
        reads[writes.seq].append(cell)
    return all(
        memory.get(shown[seq][position // SIZE], [None] * SIZE)[position % SIZE] == cell
        for seq, cells in reads.items()
        for position, cell in enumerate(cells)
    )


ONE, SHARED = (allocate(0, 1),), (allocate(0, 1), fork(0, 1))
LEASED = (allocate(0, 1), begin(0, 0))
CASES: list[tuple[tuple[Call, ...], Call, int]] = [
    (ONE, append(0, 3), 2),
    (ONE, fork(0, 1), 1),
    (SHARED, append(0, 0), 1),
    (SHARED, append(0, 1), 2),
    (SHARED, free(0), 2),
    ((allocate(0, 2), fork(0, 1)), append(0, 1), 1),
    ((allocate(0, 1), allocate(1, 2)), append(0, 1), 2),
    ((allocate(0, 1), allocate(1, 2)), free(1), 2),
    (LEASED, append(0, 3), 2),
    (LEASED, fork(0, 1), 1),
    ((*LEASED, free(0), allocate(1, 1)), append(1, 1), 2),
    ((*SHARED, begin(0, 0)), append(0, 1), 1),
    ((*SHARED, begin(1, 0)), end(0), 1),
]


@pytest.mark.parametrize(
    ("script", "call", "most"), CASES, ids=[" ".join(map(told, [*s, c])) for s, c, _ in CASES]
)
def test_a_relocating_success_is_accepted_if_it_keeps_sharing_and_contents(script, call, most):
    """In 3 blocks of 2, over all tables of 2 entries and up to 1 or 2 copies, judge is the oracle.

    Copies that change nothing that is read are accepted: under this contract none is needless.
    """
    state, operation = reached(STRICT, *script), MOVING.operation(call)
    assert MOVING.expect(state, operation).done
    live = tuple(MOVING.foreseen(state, operation, DONE).sequences)
    ids = state.blocks()
    every_table = [t for n in range(3) for t in product(ids, repeat=n)]
    pairs = [Copy(source, to) for source in ids for to in ids]
    accepted = 0
    for copies in (c for n in range(most + 1) for c in product(pairs, repeat=n)):
        answer = Answer("done", copies=copies)
        for shown in product(every_table, repeat=len(live)):
            seen = dict(zip(live, shown, strict=True))
            outcome = Outcome(answer, Observation(tables=tables(seen)))
            step = MOVING.believe(state, operation, outcome)
            holds = all(law.judge(step) is None for law in MOVING.laws)
            assert holds == right(operation, state, seen, copies), step.outcome
            accepted += holds
    assert accepted > 1
