"""The law of batches: what the loop could leave is what the batch leaves."""

from collections.abc import Iterable, Iterator

from kvspec.geometry import Geometry, Place
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, table_name
from kvspec.kernel.perturb import other_table, table_kept
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import TableOf
from kvspec.kernel.step import Step
from kvspec.rooms.batch.operations import AppendBatch


def _grew(step: Step) -> bool:
    operation = step.operation
    return isinstance(operation, AppendBatch) and step.done and bool(step.reserved)


def _batch(step: Step) -> str | None:
    return _not_alone(step) or _not_kept(step) or _too_early(step)


def _not_alone(step: Step) -> str | None:
    """Whether a sequence does not have what it writes into alone, and why that is wrong."""
    for table, indices in step.reserved.items():
        entries = step.after.entries(table)
        for i in indices:
            users = step.after.users(table, entries[i]) if i < len(entries) else ()
            if len(users) > 1:
                others = [user for user in users if user != table]
                whose = f"{table_name(others[0])} has too" if others else "it has twice"
                return (
                    f"after the batch entry {i} of {table_name(table)} is block {entries[i]}, "
                    f"which {whose}: a sequence that grew has what it writes into alone."
                )
    return None


def _turns(step: Step) -> dict[int, int]:
    """When in the loop each sequence of the batch has its turn, of those that grow."""
    seqs = [seq for seq in step.operation.touched if step.operation.added(seq)]
    return {seq: turn for turn, seq in enumerate(seqs)}


def _written(step: Step) -> Iterator[tuple[Place, int]]:
    """The blocks that there were and into which some sequence of the batch writes."""
    found: dict[tuple[Place, int], None] = {}
    for table, indices in step.reserved.items():
        entries = step.before.entries(table)
        for i in indices:
            block = entries[i] if i < len(entries) else None
            if block is not None:
                found[table.place, block] = None
    yield from found


def _not_kept(step: Step) -> str | None:
    """Whether a block that was written into is not where the loop could leave it, and why.

    At the turn of a writer it leaves the block or all the others do. So the bystanders stay
    together; and somebody keeps the block, unless the last to have a turn was alone with it and
    let go of it before its window, or was free to get another as something else holds the block.
    """
    turns = _turns(step)
    for place, block in _written(step):
        before, bystanders, last = step.before.at(place), dict[TableOf, int | None](), (-1, False)
        kept = False
        for table in dict.fromkeys(before.users[block]):
            index, entries = step.before.entries(table).index(block), step.after.entries(table)
            now = entries[index] if index < len(entries) else None
            kept = kept or now == block
            writes = index in step.reserved.get(table, ())
            if table.seq in turns and (writes or now is None):
                last = max(last, (turns[table.seq], now is None))
            else:
                bystanders[table] = now
        names = " and ".join(table_name(table) for table in dict.fromkeys(before.users[block]))
        if len(set(bystanders.values())) > 1:
            return (
                f"block {block} was in the table of {names}; those of them that wrote nothing into "
                f"it must still have one block, and have {_blocks(bystanders.values())}."
            )
        held = block in before.pins or block in before.keeps
        free_to_go = not bystanders and (last[1] or held)
        if not kept and not free_to_go and not step.spec.contract.relocates:
            return (
                f"block {block} was in the table of {names}, and in the loop of appends one of "
                "them would keep it; after the batch none has it there."
            )
    return None


def _blocks(entries: Iterable[int | None]) -> str:
    return entries_text(dict.fromkeys(entries))


def _too_early(step: Step) -> str | None:
    """Whether a sequence got a block that another lets go of only later in the loop, and why."""
    turns = _turns(step)
    if step.spec.contract.relocates:
        return None
    for table, i, block in step.taken:
        had = step.before.entries(table)
        if table.seq not in turns or (i < len(had) and had[i] == block):
            continue
        for user in step.before.users(table, block):
            if turns.get(user.seq, len(turns)) > turns[table.seq]:
                return (
                    f"block {block} was handed to {table_name(table)} (entry {i}), and in the loop "
                    f"of appends {table_name(user)} would still have it then."
                )
    return None


def _append_two(geometry: Geometry) -> tuple[Call, ...]:
    """Two sequences grow in one call, within a block and into another; and none does."""
    size = geometry.block_size
    return (
        call("allocate", seq=0, num_tokens=1),
        call("allocate", seq=1, num_tokens=size),
        call("append_batch", seqs=(0, 1), num_tokens=(1, 1)),
        call("append_batch", seqs=(), num_tokens=()),
        call("append_batch", seqs=(1, 0), num_tokens=1),
    )


LAWS = (
    Law(
        "batch",
        "batch",
        "A batch of appends leaves what the loop over them could leave: each writer has its block "
        "alone, one of those that shared a block keeps it, and the others stay together.",
        "LMCache/LMCache#3130, ggml-org/llama.cpp#18720",
        _grew,
        _batch,
        (other_table, table_kept),
        _append_two,
    ),
)
