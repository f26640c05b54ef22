"""The laws of swapping: where a sequence is, and which copies took it there."""

from collections.abc import Iterator

from kvspec.geometry import Geometry
from kvspec.kernel.law import Law
from kvspec.kernel.names import entries_text, plural, sequence_name, table_name
from kvspec.kernel.outcome import Outcome
from kvspec.kernel.perturb import other_copies, other_count, other_table, with_table
from kvspec.kernel.script import Call, call
from kvspec.kernel.state import TableOf
from kvspec.kernel.step import Step
from kvspec.rooms.swap.operations import Pair, Swap, copy_pairs, swapped_out


def _somewhere(step: Step) -> bool:
    return any(table.seq in step.after.sequences for table in step.seen.tables)


def _residence(step: Step) -> str | None:
    for table, entries in step.after.tables():
        tier = step.after.sequences[table.seq].tier
        if table.place.tier != tier and entries:
            return (
                f"{sequence_name(table.seq)} is on the {tier}, so its table on the "
                f"{table.place.tier} must be empty; it is {entries_text(entries)}."
            )
    for seq, was, now in _moved(step):
        before, after = step.before.entries(was), step.after.entries(now)
        moved = (
            f"{sequence_name(seq)} moved with {entries_text(before)} from the {was.place.tier}, "
            f"and has {entries_text(after)} on the {now.place.tier}"
        )
        if len(before) != len(after):
            return f"{moved}: it must have {plural(len(before), 'entry')} there, as here."
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            if (old is None) != (new is None):
                must = "was released, and stays so" if old is None else "must have a block there"
                return f"{moved}: entry {i} {must}."
    return None


def _moved(step: Step) -> Iterator[tuple[int, TableOf, TableOf]]:
    """The tables that went to another tier: where they were and where they are."""
    for seq, sequence in step.after.sequences.items():
        was = step.before.sequences.get(seq)
        if was is not None and was.tier != sequence.tier:
            for here, there in zip(step.before.homes(seq), step.after.homes(seq), strict=True):
                yield seq, here, there


def _in_both_tiers(step: Step) -> Iterator[Outcome]:
    """A sequence that is or was swapped out, or was to be, is shown in the other tier too."""
    away = {*swapped_out(step.before), *swapped_out(step.after)}
    if isinstance(step.operation, Swap):
        away.add(step.operation.seq)
    for table, entries in step.seen.tables.items():
        sequence = step.after.sequences.get(table.seq)
        blocks = step.after.blocks(table.place)
        if sequence and table.seq in away and table.place.tier != sequence.tier and blocks:
            yield with_table(step, table, (*entries, blocks[0]))


def _swaps(step: Step) -> bool:
    return isinstance(step.operation, Swap)


def _swap(step: Step) -> str | None:
    return _wrong_copies(step) if step.done else _half_done(step)


def _wrong_copies(step: Step) -> str | None:
    reported = [(copy.source, copy.destination) for copy in step.copies]
    explained: list[Pair] = []
    for _, was, now in _moved(step):
        before, after = step.before.entries(was), step.after.entries(now)
        needed, idle = copy_pairs(step.before, step.spec, was, before, after)
        explained += [*needed, *idle]
        for old, new in needed:
            # A store has done its copies itself; what it holds is read.
            if (old, new) not in reported and step.spec.shadowed:
                return (
                    f"block {old} of the {was.place.tier} went to block {new} of the "
                    f"{now.place.tier}, and no copy from the one to the other was reported: what "
                    f"{sequence_name(was.seq)} wrote there is lost."
                )
    source, to = step.operation.tiers
    for i, (old, new) in enumerate(reported):
        pair = f"a copy of block {old} of the {source} to block {new} of the {to}"
        if (old, new) not in explained:
            return f"{pair} was reported, but no entry went from the one to the other."
        if (old, new) in reported[:i]:
            return f"{pair} was reported twice."
    return None


def _half_done(step: Step) -> str | None:
    operation = step.operation
    assert isinstance(operation, Swap)  # `_swaps` has seen to it
    if operation.seq not in step.before.sequences:
        return None
    for table in step.before.homes(operation.seq):  # elsewhere there are none: `_residence`
        before, after = step.before.entries(table), step.after.entries(table)
        if before != after:
            return (
                f"the swap did not succeed, so the table of {table_name(table)} must still be "
                f"{entries_text(before)}; it is {entries_text(after)}."
            )
    for place, free in step.seen.free.items():
        expected = step.spec.free_counts(step.after, place)
        if free not in expected:
            return (
                f"the swap did not succeed, so {plural(expected[-1], 'block')} of the {place} "
                f"must still be free; the allocator says {free}."
            )
    return None


def _out_and_in(geometry: Geometry) -> tuple[Call, ...]:
    """A sequence of two blocks goes, another uses the device meanwhile, and it comes back."""
    tokens = min(geometry.block_size + 1, geometry.capacity)
    return (
        call("allocate", seq=0, num_tokens=tokens),
        call("swap_out", seq=0),
        call("allocate", seq=1, num_tokens=1),
        call("free", seq=1),
        call("swap_in", seq=0),
        call("append", seq=0, num_tokens=1),
    )


LAWS = (
    Law(
        "residence",
        "swap",
        "A sequence is in one tier: swapped out it has all its entries on the host and none on "
        "the device, else the other way round.",
        "Kwon et al., SOSP 2023, section 4.5; NVIDIA/TensorRT-LLM#12834",
        _somewhere,
        _residence,
        (_in_both_tiers,),
        _out_and_in,
    ),
    Law(
        "swap",
        "swap",
        "A swap is all or nothing, and one copy takes what was written in each block to the block "
        "that its entry has in the other tier.",
        "Kwon et al., SOSP 2023, section 4.5; sgl-project/sglang#27108, vllm-project/vllm#8824",
        _swaps,
        _swap,
        (other_copies, other_table, other_count),
        _out_and_in,
    ),
)
