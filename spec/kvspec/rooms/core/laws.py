"""The laws of the core, most specific first.

Each is a predicate over one step. `relevant` is cheap; `broken` explains with the numbers.
"""

from kvspec.contract import Contract, History
from kvspec.kernel.law import Law, callers_duty
from kvspec.kernel.names import are, blocks_text, entries_text, plural, sequence_name
from kvspec.kernel.perturb import (
    aliased,
    oddity,
    other_answer,
    other_copies,
    other_count,
    other_reading,
    other_table,
)
from kvspec.kernel.placement import runs
from kvspec.kernel.state import Cell
from kvspec.kernel.step import Step
from kvspec.rooms.core import witnesses

# ------------------------------------------------------------------------------ the answer


def _wrong_call(step: Step) -> bool:
    return bool(step.expected.errors)


def _misuse(step: Step) -> str | None:
    if step.expected.allows(step.answer):
        return None
    wanted = " or ".join(sorted(step.expected.errors))
    return f"the call is wrong and must fail with {wanted}, but {_said(step)}."


def _said(step: Step) -> str:
    match step.answer.kind:
        case "done":
            return "it succeeded"
        case "refused":
            return "it was refused"
        case "error":
            return f"it failed with {step.answer.value}"
        case "raised":
            return f"it raised {step.answer.value}"
        case "hang":
            return "it did not come back"
        case "nonsense":
            return f"it gave no answer ({step.answer.value})"


def _always(step: Step) -> bool:
    return True


def _well_formed(step: Step) -> str | None:
    answer = step.answer
    match answer.kind:
        case "raised":
            return f"the call raised {answer.value}, which is no answer of the interface."
        case "nonsense":
            return f"the call gave no answer of the interface: {answer.value}."
        case "hang":
            return "the call did not come back within the time that a call may take."
    if step.seen.oddities:
        return "; ".join(step.seen.oddities) + "."
    return None


def _tables_seen_again(step: Step) -> bool:
    return any(seq in step.before.sequences for seq in step.seen.tables)


def _snapshot(step: Step) -> str | None:
    if not step.seen.aliased:
        return None
    names = " and ".join(sequence_name(seq) for seq in step.seen.aliased)
    return (
        f"the table of {names} that the caller got earlier and the allocator's own are one "
        "object: a change on one side shows on the other, so it is no snapshot."
    )


# ------------------------------------------------------------------------------ the tables


def _taken(step: Step) -> bool:
    return bool(step.taken)


def _no_overlap(step: Step) -> str | None:
    taken = {(seq, i) for seq, i, _ in step.taken}
    where: dict[int, list[tuple[int, int]]] = {}
    for seq in step.after.sequences:
        for i, block in enumerate(step.after.table(seq)):
            if block is not None:
                where.setdefault(block, []).append((seq, i))
    for block, entries in where.items():
        if len(entries) > 1 and not taken.isdisjoint(entries):
            seq, i = next(entry for entry in entries if entry in taken)
            other, j = next(entry for entry in entries if entry != (seq, i))
            return (
                f"block {block} was handed to {sequence_name(seq)} (entry {i}), and it is "
                f"entry {j} of {sequence_name(other)} too."
            )
    return None


def _succeeded(step: Step) -> bool:
    return step.done


def _needless_copy(step: Step) -> str | None:
    for change in step.unjustified:
        if change.seq in step.operation.touched:
            return (
                f"entry {change.index} of {sequence_name(change.seq)} was block "
                f"{change.before} and is block {change.after} now, though nobody else had "
                "the block or nothing was written into it."
            )
    if step.spec.contract.relocates:
        return None
    explained = {(c.before, c.after) for c in step.changes} | step.inherited
    reported: set[tuple[int, int]] = set()
    for copy in step.copies:
        pair = (copy.source, copy.destination)
        if pair not in explained or pair in reported:
            return (
                f"a copy of block {copy.source} to block {copy.destination} was reported, "
                "but no table entry went from the one to the other."
            )
        reported.add(pair)
    return None


def _placed_somewhere(step: Step) -> bool:
    return step.spec.contract.placement != "anywhere" and _succeeded(step)


def _placement(step: Step) -> str | None:
    for seq in step.after.sequences:
        table = step.after.table(seq)
        if not step.spec.well_placed(table):
            return (
                f"{sequence_name(seq)} has {entries_text(table)}, and the contract promises "
                f"placement: {step.spec.contract.placement}."
            )
    return None


def _has_no_placement(contract: Contract) -> bool:
    return contract.placement == "anywhere"


def _nothing_may_change(step: Step) -> bool:
    return (not step.done or step.operation.queries) and bool(step.before.sequences)


def _atomicity(step: Step) -> str | None:
    for seq, before, after in step.survivors:
        if before != after:
            why = "the call only asks" if step.operation.queries else _said(step)
            return (
                f"{why}, so the table of {sequence_name(seq)} must still be "
                f"{entries_text(before)}; it is {entries_text(after)}."
            )
    return None


def _touches_live(step: Step) -> bool:
    if step.answer.kind == "done" and not step.done:
        return False
    return any(seq in step.after.sequences for seq in step.operation.touched)


def _bounded_waste(step: Step) -> str | None:
    size = step.spec.geometry.block_size
    for seq in step.operation.touched:
        sequence = step.after.sequences.get(seq)
        if sequence is None:
            continue
        table, held = step.after.table(seq), len(step.before.table(seq))
        reserved, length = len(table) * size, sequence.length
        past: History = step.spec.past(sequence, held)
        least, bound = step.spec.least(past), step.spec.most_waste(past)
        holds = f"{sequence_name(seq)} has {plural(length, 'token')} and holds"
        was = step.before.sequences.get(seq)
        if step.done and length == (was.length if was else 0) and len(table) != held:
            return (
                f"{holds} {plural(len(table), 'block')}; it had {held} and got no tokens, and "
                "zero tokens take and release no block."
            )
        if reserved < length:
            return (
                f"{holds} {plural(len(table), 'block')} of {size}: room for {reserved}, so "
                f"{plural(length - reserved, 'token')} too few."
            )
        if len(table) < least:
            return (
                f"{holds} {plural(len(table), 'block')} of {size}, where the contract's "
                f"reservation is {least} at least."
            )
        if bound is not None and reserved - length > bound:
            return (
                f"{holds} {plural(len(table), 'block')} of {size}: "
                f"{plural(reserved - length, 'slot')} spare, where at most {bound} may be."
            )
    return None


def _bystanders_seen(step: Step) -> bool:
    touched = step.operation.touched
    return any(seq in step.before.sequences for seq in step.seen.tables if seq not in touched)


def _frame(step: Step) -> str | None:
    touched = step.operation.touched
    moved = {(c.seq, c.index) for c in step.changes} - {(c.seq, c.index) for c in step.unjustified}
    for seq, before, after in step.survivors:
        if seq in touched or before == after:
            continue
        same = len(before) == len(after) and all(
            old == new or (seq, i) in moved
            for i, (old, new) in enumerate(zip(before, after, strict=True))
        )
        if not same:
            return (
                f"the call is not about {sequence_name(seq)}, whose table was "
                f"{entries_text(before)} and is {entries_text(after)} now."
            )
    return None


# ------------------------------------------------------------------------------ the blocks


def _was_just_refused(step: Step) -> bool:
    return step.before.refused == step.operation and step.answer.kind in ("done", "refused")


def _retry(step: Step) -> str | None:
    if step.done:
        return "the same call was refused just before, nothing happened since, and now it succeeds."
    return None


def _asks_for_blocks(step: Step) -> bool:
    return not step.expected.errors and step.answer.kind in ("done", "refused", "error")


def _admission(step: Step) -> str | None:
    expected = step.expected
    if expected.allows(step.answer):
        return None
    balance = f"it needs {plural(expected.fresh, 'block')}{_copies_needed(step)} and "
    balance += f"{are(expected.available, 'block')} free"
    placement = step.spec.contract.placement
    if placement != "anywhere":
        sizes = ", ".join(str(len(run)) for run in runs(step.spec.free_blocks(step.before)))
        balance += f", placed {placement}, in holes of {sizes or 0}"
    must = "succeed" if expected.done else "be refused"
    return f"{balance}, so it must {must}, but {_said(step)}."


def _copies_needed(step: Step) -> str:
    """That some of the blocks are for copies, which the call does not say."""
    copied = step.operation.need(step.before, step.spec).copied
    return f" ({copied} for a copy of what is shared)" if copied else ""


def _counted(step: Step) -> bool:
    return step.seen.free is not None


def _conservation(step: Step) -> str | None:
    free, expected = step.seen.free, step.spec.available(step.after)
    if free is None or free == expected:
        return None
    occupancy, total = step.after.at(), step.spec.geometry.num_blocks
    holders = f"tables have {blocks_text(occupancy.users)}"
    if occupancy.pinned_only:
        holders += f", and in flight: {blocks_text(occupancy.pinned_only)}"
    sign = "leaked" if free < expected else "in excess"
    return (
        f"{holders}, so {expected} of {total} must be free; the allocator says {free}: "
        f"{plural(abs(free - expected), 'block')} {sign}."
    )


# ------------------------------------------------------------------------------ the contents


def _something_written(step: Step) -> bool:
    return any(sequence.cells for sequence in step.after.sequences.values())


def _read_back(step: Step) -> str | None:
    for seq, sequence in step.after.sequences.items():
        if step.spec.shadowed:
            read = step.spec.reading(step.after, seq)
        elif seq in step.seen.readings:
            read = step.seen.readings[seq]
        else:
            continue
        for position, wrote in enumerate(sequence.cells):
            got = read[position] if position < len(read) else None
            if got != wrote:
                return (
                    f"position {position} of {sequence_name(seq)} must read what "
                    f"{_deed(wrote)}; it reads {_contents(got)}."
                )
    return None


def _deed(cell: Cell) -> str:
    return (
        f"{sequence_name(cell.writer)} wrote at position {cell.position} in step {cell.operation}"
    )


def _contents(cell: Cell | None) -> str:
    if cell is None or cell.writer < 0:
        return "what nobody wrote"
    return f"what {_deed(cell)}"


MISUSE = Law(
    "misuse",
    "core",
    "A wrong call (unknown id, id in use, negative, absurd or too great length) is an error.",
    "LMCache/LMCache#5005, turboderp-org/exllamav3#320",
    _wrong_call,
    _misuse,
    (other_answer,),
    witnesses.misuse,
    idle=callers_duty,
)
WELL_FORMED = Law(
    "well-formed",
    "core",
    "Every call comes back, with an answer and of a type that the interface has.",
    "the interface",
    _always,
    _well_formed,
    (oddity,),
    witnesses.one_sequence,
)
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
RETRY = Law(
    "retry",
    "core",
    "A call that was refused is refused again when it is repeated at once.",
    "pytorch/pytorch#189504",
    _was_just_refused,
    _retry,
    (other_answer,),
    witnesses.refusal,
)
ADMISSION = Law(
    "admission",
    "core",
    "A right call succeeds exactly when the blocks that it needs are free.",
    "microsoft/onnxruntime-genai#2333, Wenyueh/MinivLLM#85, ggml-org/llama.cpp#13194",
    _asks_for_blocks,
    _admission,
    (other_answer,),
    witnesses.refusal,
)
CONSERVATION = Law(
    "conservation",
    "core",
    "Free, referenced and in-flight blocks are all there are, and the allocator's count agrees.",
    "Wenyueh/MinivLLM#84, kekzl/imp#1115",
    _counted,
    _conservation,
    (other_count,),
    witnesses.two_sequences,
)
READ_BACK = Law(
    "read-back",
    "core",
    "A live sequence reads at each position what was written there.",
    "the purpose of a cache; Avarok-Cybersecurity/atlas#1193",
    _something_written,
    _read_back,
    (other_reading, other_table),
    witnesses.two_sequences,
)

LAWS = (
    MISUSE,
    WELL_FORMED,
    SNAPSHOT,
    NO_OVERLAP,
    NEEDLESS_COPY,
    PLACEMENT,
    ATOMICITY,
    BOUNDED_WASTE,
    FRAME,
    RETRY,
    ADMISSION,
    CONSERVATION,
    READ_BACK,
)
