"""The laws about tables: who has which block, how many, and what may change in a step."""

from kvspec.contract import Contract, History
from kvspec.geometry import Place
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, plural, table_name
from kvspec.kernel.perturb import (
    aliased,
    other_copies,
    other_table,
)
from kvspec.kernel.state import TableOf
from kvspec.kernel.step import Step
from kvspec.rooms.core import witnesses
from kvspec.rooms.core.answers import said


def _tables_seen_again(step: Step) -> bool:
    return bool(step.seen_again)


def _snapshot(step: Step) -> str | None:
    if not step.seen.aliased:
        return None
    names = " and ".join(table_name(table) for table in step.seen.aliased)
    return (
        f"the table of {names} that the caller got earlier and the allocator's own are one "
        "object: a change on one side shows on the other, so it is no snapshot."
    )


def _taken(step: Step) -> bool:
    return bool(step.taken)


def _no_overlap(step: Step) -> str | None:
    if all(len(step.after.users(table, block)) == 1 for table, _, block in step.taken):
        return None
    taken = {(table, i) for table, i, _ in step.taken}
    where: dict[tuple[Place, int], list[tuple[TableOf, int]]] = {}
    for table, entries in step.after.tables():
        for i, block in enumerate(entries):
            if block is not None:
                where.setdefault((table.place, block), []).append((table, i))
    for (_, block), users in where.items():
        if len(users) > 1 and not taken.isdisjoint(users):
            table, i = next(entry for entry in users if entry in taken)
            other, j = next(entry for entry in users if entry != (table, i))
            return (
                f"block {block} was handed to {table_name(table)} (entry {i}), and it is "
                f"entry {j} of {table_name(other)} too."
            )
    return None


def _succeeded(step: Step) -> bool:
    return step.done


def _needless_copy(step: Step) -> str | None:
    for change in step.unjustified:
        if change.seq in step.operation.touched:
            return (
                f"entry {change.index} of {table_name(change.table)} was block "
                f"{change.before} and is block {change.after} now, though nobody else had "
                "the block or nothing was written into it."
            )
    if step.spec.contract.relocates or step.operation.tiers != ("device", "device"):
        return None
    for copy in step.needless:
        return (
            f"a copy of block {copy.source} to block {copy.destination} was reported, "
            "but no table entry went from the one to the other."
        )
    return None


def _placed_somewhere(step: Step) -> bool:
    return step.spec.contract.placement != "anywhere" and _succeeded(step)


def _placement(step: Step) -> str | None:
    for table, entries in step.after.tables():
        if not step.spec.well_placed(entries, step.after.blocks(table.place)):
            return (
                f"{table_name(table)} has {entries_text(entries)}, and the contract promises "
                f"placement: {step.spec.contract.placement}."
            )
    return None


def _has_no_placement(contract: Contract) -> bool:
    return contract.placement == "anywhere"


def _nothing_may_change(step: Step) -> bool:
    return (not step.done or step.operation.queries) and bool(step.before.sequences)


def _atomicity(step: Step) -> str | None:
    for table, before, after in step.altered:
        if not step.released_anyway(table, after):
            why = "the call only asks" if step.operation.queries else said(step)
            return (
                f"{why}, so the table of {table_name(table)} must still be "
                f"{entries_text(before)}; it is {entries_text(after)}."
            )
    return None


def _touches_live(step: Step) -> bool:
    if step.answer.kind == "done" and not step.done:
        return False
    return not step.after.sequences.keys().isdisjoint(step.operation.touched)


def _bounded_waste(step: Step) -> str | None:
    if step.still:
        return None
    for seq in step.operation.touched:
        if seq in step.after.sequences:
            for table in step.after.homes(seq):
                why = _wasteful(step, table)
                if why:
                    return why
    return None


def _wasteful(step: Step, table: TableOf) -> str | None:
    spec, size, group = step.spec, step.spec.block_size(table), table.group
    sequence, was = step.after.sequences[table.seq], step.before.sequences.get(table.seq)
    entries, held = step.after.entries(table), len(step.began_with(table))
    reserved, length = len(entries) * size, sequence.length
    past: History = spec.past(sequence, held, group)
    least = spec.least(past, group)
    bound = spec.most_waste(past, group, least)
    idle = step.done and length == (was.length if was else 0) and len(entries) != held
    enough = reserved >= length and len(entries) >= least
    if enough and not idle and (bound is None or reserved - length <= bound):
        return None
    holds = f"{table_name(table)} has {plural(length, 'token')} and holds"
    if idle:
        return (
            f"{holds} {plural(len(entries), 'block')}; it had {held} and got no tokens, and "
            "zero tokens take and release no block."
        )
    if reserved < length:
        return (
            f"{holds} {plural(len(entries), 'block')} of {size}: room for {reserved}, so "
            f"{plural(length - reserved, 'token')} too few."
        )
    if len(entries) < least:
        return (
            f"{holds} {plural(len(entries), 'block')} of {size}, where the contract's "
            f"reservation is {least} at least."
        )
    if bound is not None and reserved - length > bound:
        return (
            f"{holds} {plural(len(entries), 'block')} of {size}: "
            f"{plural(reserved - length, 'slot')} spare, where at most {bound} may be."
        )
    return None


def _bystanders_seen(step: Step) -> bool:
    return any(seq not in step.operation.touched for seq in step.seen_again)


def _frame(step: Step) -> str | None:
    touched = step.operation.touched
    altered = [changed for changed in step.altered if changed[0].seq not in touched]
    if not altered:
        return None
    moved = {(c.table, c.index) for c in step.changes}
    moved -= {(c.table, c.index) for c in step.unjustified}
    for table, before, after in altered:
        same = len(before) == len(after) and all(
            old == new or (table, i) in moved
            for i, (old, new) in enumerate(zip(before, after, strict=True))
        )
        if not same:
            return (
                f"the call is not about {table_name(table)}, whose table was "
                f"{entries_text(before)} and is {entries_text(after)} now."
            )
    return None


SNAPSHOT = Law(
    "snapshot",
    "core",
    "A block table is a snapshot: later changes on either side do not show in the other.",
    "NVIDIA/TensorRT-LLM#15546",
    _tables_seen_again,
    _snapshot,
    (aliased,),
    witnesses.one_sequence,
)


NO_OVERLAP = Law(
    "no-overlap",
    "core",
    "A block that is handed out was in no table, and goes to one entry only.",
    "Kwon et al., SOSP 2023, section 4.2; LMCache/LMCache#5005",
    _taken,
    _no_overlap,
    (other_table,),
    witnesses.two_sequences,
)


NEEDLESS_COPY = Law(
    "needless-copy",
    "core",
    "An entry keeps its block, and no copy is reported, unless the block was written into while "
    "shared or leased, or the contract relocates.",
    "Kwon et al., SOSP 2023, section 4.4",
    _succeeded,
    _needless_copy,
    (other_copies, other_table),
    witnesses.two_sequences,
)


PLACEMENT = Law(
    "placement",
    "core",
    "The blocks of a sequence lie where the contract's placement says.",
    "Knowlton, CACM 1965, for buddies; jemalloc/jemalloc#241",
    _placed_somewhere,
    _placement,
    (other_table,),
    witnesses.two_sequences,
    idle=_has_no_placement,
)


ATOMICITY = Law(
    "atomicity",
    "core",
    "What was refused or failed, and what only asks, leaves every table as it was.",
    "ovg-project/kvcached#364, vllm-project/vllm#11565",
    _nothing_may_change,
    _atomicity,
    (other_table,),
    witnesses.refusal,
)


BOUNDED_WASTE = Law(
    "bounded-waste",
    "core",
    "A sequence holds what its length needs under the contract, and at most the bound beyond it; "
    "zero tokens take and release no block.",
    "Kwon et al., SOSP 2023, section 3.1; Wenyueh/MinivLLM#85, vllm-project/vllm#10730",
    _touches_live,
    _bounded_waste,
    (other_table,),
    witnesses.two_sequences,
)


FRAME = Law(
    "frame",
    "core",
    "A call on one sequence changes the table of no other.",
    "vllm-project/vllm#7018",
    _bystanders_seen,
    _frame,
    (other_table,),
    witnesses.two_sequences,
)
