"""Moves that leave a story with fewer steps, or with fewer members of a batch."""

from collections.abc import Iterator

from attrs import evolve

from kvspec.kernel.operation import Operation
from kvspec.rooms.resize import MOST_TIMES
from kvspec.traces.cases import (
    Case,
    changed,
    having,
    lengths,
    lower_values,
    made,
    number_of,
    operation_of,
    renamed_after,
    several,
    sizes,
    stepped,
    values,
    without,
)


def drop(case: Case) -> Iterator[Case]:
    """A run of steps is dropped: long ones side by side, short ones wherever they begin."""
    count = length = len(case.steps)
    while length >= 1:
        for stop in range(count, length - 1, -length if length > 4 else -1):
            yield without(case, stop - length, stop)
        length = length // 2 if length > 4 else length - 1


def lower_fault(case: Case) -> Iterator[Case]:
    """A call is not made to fail, or at an earlier checkpoint: perhaps as it has less to do."""
    for i, step in enumerate(case.steps):
        for fault in range(step.fault):
            earlier = stepped(case, i, evolve(step, fault=fault))
            yield earlier
            for at, value in lengths(step.operation):
                for by in range(1, min(value, case.geometry.block_size) + 1):
                    yield changed(earlier, i, at, value - by)


def fail_earlier(case: Case) -> Iterator[Case]:
    """An earlier call fails instead, at a checkpoint as late, if need be with a block more to take.

    What follows is of no interest then.
    """
    more = case.geometry.block_size
    for i, step in enumerate(case.steps):
        for j in range(i if step.fault else 0):
            story = evolve(case, steps=case.steps[: j + 1])
            for fault in range(1, step.fault + 2):
                failing = stepped(story, j, evolve(case.steps[j], fault=fault))
                yield failing
                geometry = evolve(case.geometry, num_blocks=case.geometry.num_blocks + 1)
                for at, value in lengths(case.steps[j].operation):
                    yield evolve(changed(failing, j, at, value + more), geometry=geometry)


def fewer_members(case: Case) -> Iterator[Case]:
    """A batch has a sequence less, one number for all, or is the call that it stands for."""
    for i, step in enumerate(case.steps):
        operation, seqs = step.operation, several(step.operation, "seqs")
        if seqs is None:
            continue
        numbers = several(operation, "num_tokens")
        for k in range(max(len(seqs), len(numbers or ()))):
            fewer = having(operation, seqs=seqs[:k] + seqs[k + 1 :])
            if numbers is not None:
                fewer = having(fewer, num_tokens=numbers[:k] + numbers[k + 1 :])
            yield made(case, i, fewer)
        for number in dict.fromkeys(numbers or ()):
            yield made(case, i, having(operation, num_tokens=number))
        if len(seqs) == 1 and not step.wrong:
            number = next((value for _, value in values(operation, "num_tokens")), 0)
            yield made(case, i, operation_of("append", seq=seqs[0], num_tokens=number))


def member_alone(case: Case) -> Iterator[Case]:
    """One sequence of a batch grows alone, without the others and in a pool as much smaller."""
    for i, step in enumerate(case.steps):
        seqs = several(step.operation, "seqs") or ()
        for seq in seqs if len(seqs) > 1 and not step.wrong else ():
            others = set(seqs) - {seq}
            number = step.operation.added(seq)
            alone = made(case, i, operation_of("append", seq=seq, num_tokens=number))
            left = (s for s in alone.steps if not others.issuperset(s.operation.touched or (seq,)))
            alone = evolve(alone, steps=tuple(left))
            for count in range(1, case.geometry.num_blocks + 1):
                yield evolve(alone, geometry=evolve(case.geometry, num_blocks=count))


def size_from_the_start(case: Case) -> Iterator[Case]:
    """The pool has from the start the size to which it is changed."""
    for i, step in enumerate(case.steps):
        for _, count in sizes(step.operation):
            if 0 < count <= MOST_TIMES * case.geometry.num_blocks:
                geometry = evolve(case.geometry, num_blocks=count)
                fewer = evolve(without(case, i, i + 1), geometry=geometry)
                yield fewer
                # Which blocks are handed out first may be another then.
                for j, later in enumerate(fewer.steps):
                    for at, value in lengths(later.operation):
                        yield changed(fewer, j, at, value + case.geometry.block_size)


def start_later(case: Case) -> Iterator[Case]:
    """A sequence starts with what it grows by, in each of several calls that try it."""
    for i, step in enumerate(case.steps):
        later = case
        for j in range(i + 1, len(case.steps)):
            if later.steps[j].operation.touched != step.operation.touched:
                continue
            merged = _merged(step.operation, later.steps[j].operation)
            if merged is None or merged.subjects:
                break
            later = made(later, j, merged)
            yield without(later, i, i + 1)


def merge(case: Case) -> Iterator[Case]:
    """Sequences grow once instead of twice, where they grew or started first."""
    for j, later in enumerate(case.steps):
        for i in range(j - 1, -1, -1):
            earlier = case.steps[i].operation
            if earlier.touched == later.operation.touched:
                merged = _merged(earlier, later.operation)
                if merged is not None:
                    once = evolve(case.steps[i], operation=merged)
                    for fault in dict.fromkeys((once.fault, later.fault)):
                        yield without(stepped(case, i, evolve(once, fault=fault)), j, j + 1)
                    yield without(made(case, j, merged), i, i + 1)
                if later.operation.method in _GROWING:
                    break


_GROWING = {
    "append": ("allocate", "append"),
    "append_tokens": ("allocate_prompt", "append_tokens", "allocate"),
    "append_batch": ("append_batch",),
}
"""What makes sequences longer, and what that can be one call with."""


def _merged(earlier: Operation, later: Operation) -> Operation | None:
    """One call instead of two, if there is one."""
    if earlier.method not in _GROWING.get(later.method, ()):
        return None
    if later.method == "append_tokens":
        if earlier.method == "allocate":  # of nothing, and what is nothing is known
            tokens = several(later, "tokens") or ()
            prompt = operation_of("allocate_prompt", seq=later.touched[0], tokens=tokens)
            return prompt if number_of(earlier) == 0 else None
        tokens = (*(several(earlier, "tokens") or ()), *(several(later, "tokens") or ()))
        return having(earlier, tokens=tokens)
    if later.method == "append":
        return having(earlier, num_tokens=number_of(earlier) + number_of(later))
    seqs = several(earlier, "seqs") or ()
    return having(earlier, num_tokens=tuple(earlier.added(s) + later.added(s) for s in seqs))


_LEAVING = ("free", "swap_out")
"""What takes a sequence off the device."""


def join(case: Case) -> Iterator[Case]:
    """A sequence is not started; another does what it did besides its own, and leaves once."""
    for i, step in enumerate(case.steps):
        started = step.operation.touched
        if step.operation.subjects == started or not started:
            continue
        for other in dict.fromkeys(seq for s in case.steps for seq in s.operation.touched):
            joined = renamed_after(case, i, {started[0]: other})
            yield joined
            for j, end in enumerate(joined.steps):
                if end.operation.method in _LEAVING and end.operation.touched == (other,):
                    yield without(joined, j, j + 1)
                    break


def go_on(case: Case) -> Iterator[Case]:
    """A sequence does not end; what starts under its id later is another."""
    unused = 1 + max((seq for s in case.steps for seq in s.operation.touched), default=-1)
    for i, step in enumerate(case.steps):
        if step.operation.method == "free" and not step.wrong:
            yield renamed_after(case, i, dict.fromkeys(step.operation.touched, unused))


def stay(case: Case) -> Iterator[Case]:
    """A sequence does not end to start again, but grows: by as much, or by less."""
    for i, step in enumerate(case.steps):
        ended = step.operation.touched
        if step.operation.method != "free" or step.wrong:
            continue
        for j in range(i + 1, len(case.steps)):
            start = case.steps[j].operation
            if start.touched != ended:
                continue
            if start.method in _STARTING:
                most = dict(lengths(start)).get(_STARTING[start.method], 0)
                for number in sorted({most, *lower_values(most)} - {0}, reverse=True):
                    yield without(made(case, j, _growing(start, number)), i, i + 1)
            break


_STARTING = {"allocate": ("num_tokens", None), "allocate_prompt": ("tokens", None)}
"""What starts a sequence, and where it says with how many tokens."""


def _growing(start: Operation, number: int) -> Operation:
    """The call by which a sequence grows by the last so many of the tokens that it started with."""
    seq, tokens = start.touched[0], several(start, "tokens")
    if tokens is None:
        return operation_of("append", seq=seq, num_tokens=number)
    return operation_of("append_tokens", seq=seq, tokens=tokens[len(tokens) - number :])


def drop_and_raise(case: Case) -> Iterator[Case]:
    """A step is dropped, and a longer length takes what it took, or more than there is."""
    for i in range(len(case.steps)):
        fewer = without(case, i, i + 1)
        for j, step in enumerate(fewer.steps):
            for at, value in lengths(step.operation):
                yield changed(fewer, j, at, value + case.geometry.block_size)
                yield changed(fewer, j, at, case.geometry.capacity + 1)


def drop_and_lower(case: Case) -> Iterator[Case]:
    """A step is dropped, and all that are longer than some whole blocks are as much shorter."""
    size = case.geometry.block_size
    for i in range(len(case.steps)):
        for less in range(size, case.geometry.capacity, size):
            fewer = without(case, i, i + 1)
            for j, step in enumerate(fewer.steps):
                for at, value in lengths(step.operation):
                    if value > less:
                        fewer = changed(fewer, j, at, value - less)
            yield fewer
