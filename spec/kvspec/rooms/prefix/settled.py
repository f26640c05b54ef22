"""What a step as a whole did to cached blocks: which were lost, and who has no user since when."""

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

from attrs import evolve

from kvspec.geometry import DEVICE
from kvspec.kernel.events import Settled
from kvspec.kernel.state import Entries, Holder, State
from kvspec.rooms.prefix.facts import (
    CacheOf,
    DoubtfulCache,
    EqualCache,
    Facts,
    Stamp,
    facts_of,
    surely_kept,
)
from kvspec.rooms.prefix.identity import chain

if TYPE_CHECKING:
    from kvspec.kernel.specification import Specification


def settled(state: State, event: Settled, spec: "Specification") -> State:
    """What was handed out, written over or cut off is lost; and who has no user since when."""
    facts, before = facts_of(state), event.before
    same = state.sequences is before.sequences and state.holds is before.holds
    if same and facts is facts_of(before) and state.pools is before.pools:
        return state
    for block in _gone(facts, state, before, spec):
        facts = facts.losing(block)
    facts = evolve(facts, stamps=_stamps(facts, state, before))
    holds = {h: blocks for h, blocks in state.holds.items() if not isinstance(h, EqualCache)}
    kept: dict[Holder, Entries] = {CacheOf(): (), DoubtfulCache(): ()}
    many = Counter(facts.published.values())
    for block in sorted(facts.published, key=facts.evicted_first):
        contents = facts.published[block]
        holder: Holder = CacheOf() if many[contents] == 1 else EqualCache(contents)
        if not surely_kept(contents, facts, spec):
            holder = DoubtfulCache()
        kept[holder] = (*kept.get(holder, ()), block)
    return state.having(holds={**holds, **kept}).with_slice("prefix", facts)


def _stamps(facts: Facts, state: State, before: State) -> dict[int, Stamp]:
    """When each cached block without a user was let go of.

    In one step there may be several releases: the turns of a batch, or what a window lets go of
    and a copy after it. Which of them was first is not seen.
    """
    held, was = state.at().held, before.at()
    stamps: dict[int, Stamp] = {}
    releases: dict[Hashable, int] = {}
    for block in facts.published:
        if block in held:
            continue
        holders: tuple[Holder, ...] = (*was.users.get(block, ()), *was.pins.get(block, ()))
        release: Hashable = block
        if len(holders) == 1:
            [holder] = holders
            at = before.holds[holder].index(block)
            entry = state.holds.get(holder, ())[at : at + 1]
            release = holder, entry == (None,), bool(entry)
        known = facts.stamps.get(block)
        stamps[block] = known or (state.clock, releases.setdefault(release, len(releases)))
    return stamps


def _gone(facts: Facts, state: State, before: State, spec: "Specification") -> list[int]:
    """The blocks whose published contents this step ended."""
    size, blocks, stays = spec.geometry.block_size, state.blocks(), _staying(state, before)
    gone = {block for block in facts.published if block not in blocks}
    for seq, sequence in state.sequences.items():
        if not sequence.resident:
            continue
        table, was = state.table(seq), before.table(seq)
        author = facts.authors[seq]
        own = list(chain(author.tokens[: author.mark], author.key, size))
        for i, block in enumerate(table):
            if block not in facts.published or block is None or block in stays:
                continue
            # Handed out: it is where it was not, and not for the contents that it has.
            if facts.published[block] not in own[i : i + 1]:
                gone.add(block)
        old = before.sequences.get(seq)
        if old is not None and old.resident and sequence.length > old.length:
            # Written over: the sequence goes on in the middle of a block that it has published.
            last = (sequence.length - 1) // size
            for block, same in zip(
                table[old.length // size : last + 1], was[old.length // size :], strict=False
            ):
                if block is not None and block == same and block in facts.published:
                    gone.add(block)
    return sorted(gone)


def _staying(state: State, before: State) -> set[int]:
    """The blocks that some holder had before, and still has at the same entry."""
    return {
        block
        for holder, entries in state.holds.items()
        if holder.pins and holder.place == DEVICE
        for block, was in zip(entries, before.holds.get(holder, ()), strict=False)
        if block is not None and block == was
    }
