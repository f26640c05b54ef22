"""How sequences start and grow: what they need of each pool, and how it may be given to them.

One account for every operation that reserves slots, and for every group: so admission and
allocation cannot disagree, nor can a batch and the calls that it stands for.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from attrs import evolve

from kvspec.contract import History
from kvspec.geometry import Place, table_index
from kvspec.interface import Copy
from kvspec.kernel.operation import Need
from kvspec.kernel.outcome import DONE, Answer
from kvspec.kernel.state import Entries, State, TableOf

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification

Tables = dict[TableOf, Entries]


def reservation(state: State, spec: "Specification", past: History) -> tuple[Need, ...]:
    """What a new sequence with this history needs: all the blocks of its reservation."""
    return _by_place(
        [Need(spec.least(past, group), place=place) for group, place in enumerate(state.places)]
    )


def growth(state: State, spec: "Specification", seq: int, num_tokens: int) -> tuple[Need, ...]:
    """What `num_tokens` more tokens of `seq` need.

    The growth of the reservation, and one block for each shared entry that is written into. What
    the window lets go of counts for the same call.
    """
    if num_tokens == 0:
        return ()
    return _by_place([_growth(state, spec, table, num_tokens) for table in state.homes(seq)])


def _growth(state: State, spec: "Specification", table: TableOf, num_tokens: int) -> Need:
    entries, grown = state.entries(table), _grown(state, spec, table, num_tokens)
    copied = len(shared_and_written(state, spec, table, num_tokens))
    fresh = max(0, spec.least(grown, table.group) - len(entries)) + copied
    back = set(freed(state, spec, table, num_tokens))
    keeps = state.at(table.place).keeps if spec.evicts_explicitly else ()
    need = Need(fresh, copied, len(back), sum(b in keeps for b in back), place=table.place)
    if spec.contract.placement == "anywhere":
        return need
    return evolve(need, held=entries, target=spec.target(grown, table.group))


def _by_place(needs: Sequence[Need]) -> tuple[Need, ...]:
    """The needs of groups that share a pool, added up."""
    if len(needs) == 1:
        return tuple(needs)
    found: dict[Place, Need] = {}
    for need in needs:
        other = found.get(need.place)
        if other is not None:
            need = evolve(
                need,
                fresh=need.fresh + other.fresh,
                copied=need.copied + other.copied,
                freed=need.freed + other.freed,
                doubtful=need.doubtful + other.doubtful,
            )
        found[need.place] = need
    return tuple(found.values())


def _grown(state: State, spec: "Specification", table: TableOf, num_tokens: int) -> History:
    """The past of the sequence, with the length that it is to have."""
    sequence = state.sequences[table.seq]
    longer = sequence.length + num_tokens
    return spec.past(sequence, len(state.entries(table)), table.group, longer)


def freed(state: State, spec: "Specification", table: TableOf, num_tokens: int) -> Iterator[int]:
    """The blocks that an append releases before the window, and that it may then take."""
    gone = spec.released(state.sequences[table.seq].length, num_tokens, table.group)
    if not gone:
        return
    occupancy = state.at(table.place)
    for block in state.entries(table)[:gone]:
        if block is None or len(occupancy.users[block]) > 1 or block in occupancy.pins:
            continue
        if not (spec.evicts_explicitly and occupancy.keeps_surely(block)):
            yield block


def written_into(
    state: State, spec: "Specification", table: TableOf, num_tokens: int
) -> Iterator[tuple[int, int]]:
    """The entries that exist and into which new tokens are written, with their blocks.

    Those that the same append releases are not: an early window may leave even a partly filled
    block behind.
    """
    size, length = spec.block_size(table), state.sequences[table.seq].length
    entries = state.entries(table)
    if len(entries) * size <= length:
        return
    last = table_index(length + num_tokens - 1, size)
    first = max(table_index(length, size), spec.released(length, num_tokens, table.group))
    for i in range(first, min(len(entries), last + 1)):
        block = entries[i]
        if block is not None:
            yield i, block


def shared_and_written(
    state: State, spec: "Specification", table: TableOf, num_tokens: int
) -> list[tuple[int, int]]:
    """Those of them whose block another table has too."""
    users = state.at(table.place).users
    return [
        (i, block)
        for i, block in written_into(state, spec, table, num_tokens)
        if len(users.get(block, ())) > 1
    ]


# ------------------------------------------------------------------------------ choices


def beginnings(state: State, spec: "Specification", seq: int, past: History) -> Iterator[Tables]:
    """The tables that a new sequence may get: as many blocks as the reservation allows."""
    counts = [spec.holdings(state, past, g) if past.length else (0,) for g in spec.groups]
    for chosen in product(*counts):
        if len(chosen) == 1:
            for extent in spec.extents(state, chosen[0]):
                yield {state.home(seq): extent}
            continue
        free = {place: list(spec.free_blocks(state, place)) for place in state.places}
        tables: Tables = {}
        for group, count in enumerate(chosen):
            blocks = free[state.places[group]]
            tables[state.home(seq, group)] = tuple(blocks[:count])
            del blocks[:count]
        if all(len(t) == n for t, n in zip(tables.values(), chosen, strict=True)):
            yield tables


def growths(
    state: State, spec: "Specification", seq: int, num_tokens: int
) -> Iterator[tuple[Answer, Tables]]:
    """The answers and tables with which `seq` may grow, and those of others that change.

    Any free blocks, the ones that the window released last; for each entry that is written into,
    each way of getting it alone.
    """
    if num_tokens == 0:
        yield DONE, {}
        return
    homes = state.homes(seq)
    back: dict[Place, list[int]] = {}
    for table in homes:
        back.setdefault(table.place, []).extend(
            dict.fromkeys(freed(state, spec, table, num_tokens))
        )
    for copies, tables in _grow(state, spec, homes, num_tokens, back, frozenset()):
        yield Answer("done", copies=copies), tables


def _grow(
    state: State,
    spec: "Specification",
    homes: tuple[TableOf, ...],
    num_tokens: int,
    back: dict[Place, list[int]],
    taken: frozenset[int],
) -> Iterator[tuple[tuple[Copy, ...], Tables]]:
    """The ways of the first of the groups, each with those of the others.

    What the windows let go of comes `back` before any group takes a block.
    """
    if not homes:
        yield (), {}
        return
    table, *others = homes
    entries = state.entries(table)
    kept = spec.slid(state, table, num_tokens)
    holdings = spec.holdings(state, _grown(state, spec, table, num_tokens), table.group)
    written = list(written_into(state, spec, table, num_tokens))
    ways = list(product(*(_ways(state, spec, table, i, block) for i, block in written)))
    # Nothing that is cached is given up as long as the windows have let go of other blocks.
    keeps = state.at(table.place).keeps
    free_here = [*spec.free_blocks(state, table.place), *back[table.place]]
    free_here.sort(key=keeps.__contains__)
    for growth_ in sorted({max(0, n - len(entries)) for n in holdings}):
        for more in _more(state, spec, growth_, kept, [b for b in free_here if b not in taken]):
            for chosen in ways:
                used = taken.union(block for block in more if block is not None)
                free = [b for b in free_here if b not in used]
                if sum(bool(movers) for movers, _ in chosen) > len(free):
                    continue
                tables: dict[TableOf, list[int | None]] = {table: list(kept)}
                copies: list[Copy] = []
                for (_, block), (movers, copied) in zip(written, chosen, strict=True):
                    if not movers:
                        continue
                    fresh = free.pop(0)
                    used = used.union({fresh})
                    for mover in movers:
                        theirs = tables.setdefault(mover, list(state.entries(mover)))
                        theirs[theirs.index(block)] = fresh
                    if copied:
                        copies.append(Copy(block, fresh))
                tables[table] += more
                shown: Tables = {mover: tuple(theirs) for mover, theirs in tables.items()}
                for further, rest in _grow(state, spec, tuple(others), num_tokens, back, used):
                    yield (*copies, *further), {**shown, **rest}


def _more(
    state: State, spec: "Specification", size: int, kept: Entries, free: list[int]
) -> Iterator[Entries]:
    """The blocks by which the table may grow, of those that are free."""
    if spec.contract.placement != "anywhere":
        yield from spec.extents(state, size, kept)
    elif size <= len(free):
        yield tuple(free[:size])


def _ways(
    state: State, spec: "Specification", table: TableOf, index: int, block: int
) -> Iterator[tuple[tuple[TableOf, ...], bool]]:
    """Which tables get another block for that entry, and whether a copy is reported.

    It must be where they have written into the block, and else it may be.
    """
    occupancy, start = state.at(table.place), index * spec.block_size(table)
    others = tuple(user for user in occupancy.users[block] if user != table)
    if not others:
        yield (), False
    if others or block in occupancy.pins or block in occupancy.keeps:
        for movers in ((table,), others) if others else ((table,),):
            yield movers, True
            if all(state.sequences[mover.seq].written <= start for mover in movers):
                yield movers, False
