"""The moves of the reducer: what may make a trace smaller, and what smaller means.

Each move takes a case and gives cases; none of them is run here. A move need not make sense
of what it leaves behind: the reducer drops the calls that no longer do.
"""

from collections.abc import Iterator
from typing import Any

from attrs import evolve, fields, frozen

from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.traces.trace import TraceStep


@frozen
class Case:
    """What a move changes: the geometry, and the steps."""

    geometry: Geometry
    steps: tuple[TraceStep, ...]


def size(case: Case) -> tuple[Any, ...]:
    """What the moves make smaller, the most important first."""
    geometry = case.geometry
    operations = [step.operation for step in case.steps]
    return (
        len(operations),
        sum(step.wrong for step in case.steps),
        sum(step.fault for step in case.steps),
        geometry.max_tokens is not None,
        sum(1 for op in operations for _ in _bounds(op)),
        geometry.num_blocks,
        geometry.block_size,
        geometry.max_tokens or 0,
        sum(value for op in operations for _, value in _lengths(op)),
        sum(value for op in operations for _, value in _bounds(op)),
        [[value for _, value in _ids(op)] for op in operations],
    )


_IDS = ("seq", "parent", "child", "lease")


def _ids(operation: Operation) -> list[tuple[str, int]]:
    """The sequences and leases that it names, by field."""
    names = [f.name for f in fields(type(operation)) if f.name in _IDS]
    return [(name, getattr(operation, name)) for name in names]


def _lengths(operation: Operation) -> Iterator[tuple[str, int]]:
    for f in fields(type(operation)):
        value = getattr(operation, f.name)
        if f.name in ("num_tokens", "start") and type(value) is int and value > 0:
            yield f.name, value


def _bounds(operation: Operation) -> Iterator[tuple[str, int]]:
    limit = getattr(operation, "limit", None)
    if type(limit) is int:
        yield "limit", limit


def _changed(case: Case, i: int, name: str, value: object) -> Case:
    """The case with one field of one operation changed."""
    operation = evolve(case.steps[i].operation, **{name: value})
    step = evolve(case.steps[i], operation=operation)
    return evolve(case, steps=(*case.steps[:i], step, *case.steps[i + 1 :]))


def _without(case: Case, start: int, stop: int) -> Case:
    return evolve(case, steps=case.steps[:start] + case.steps[stop:])


# ------------------------------------------------------------------------------ the moves


def moves(case: Case) -> Iterator[Case]:
    """The cases that one move away may be smaller, the boldest moves first."""
    yield from _drop(case)
    yield from _merge(case)
    yield from _join(case)
    yield from _drop_and_raise(case)
    yield from _lower_max_tokens(case)
    yield from _fewer_blocks(case)
    yield from _smaller_blocks(case)
    yield from _lower(case)
    yield from _lower_two(case)
    yield from _set_right(case)
    yield from _rename(case)
    yield from _exchange(case)


def _drop(case: Case) -> Iterator[Case]:
    """A run of steps is dropped: long ones side by side, short ones wherever they begin."""
    count = length = len(case.steps)
    while length >= 1:
        for stop in range(count, length - 1, -length if length > 4 else -1):
            yield _without(case, stop - length, stop)
        length = length // 2 if length > 4 else length - 1


def _merge(case: Case) -> Iterator[Case]:
    """A sequence grows once instead of twice, where it grew or started first."""
    for j, later in enumerate(case.steps):
        for i in range(j - 1, -1, -1):
            earlier = case.steps[i].operation
            if later.operation.method == "append" and earlier.touched == later.operation.touched:
                if earlier.method in ("allocate", "append"):
                    total = _tokens(earlier) + _tokens(later.operation)
                    yield _without(_changed(case, i, "num_tokens", total), j, j + 1)
                break


def _tokens(operation: Operation) -> int:
    return dict(_lengths(operation)).get("num_tokens", 0)


def _join(case: Case) -> Iterator[Case]:
    """A sequence is not started; another does what it did besides its own, and ends once."""
    for i, step in enumerate(case.steps):
        started = step.operation.touched
        if step.operation.subjects == started or not started:
            continue
        for other in dict.fromkeys(seq for s in case.steps for seq in s.operation.touched):
            names = {started[0]: other}
            later = (evolve(s, operation=s.operation.renamed(names)) for s in case.steps[i + 1 :])
            joined = evolve(case, steps=(*case.steps[:i], *later))
            yield joined
            for j, end in enumerate(joined.steps):
                if end.operation.method == "free" and end.operation.touched == (other,):
                    yield _without(joined, j, j + 1)
                    break


def _drop_and_raise(case: Case) -> Iterator[Case]:
    """A step is dropped, and a longer length takes what it took, or more than there is."""
    for i in range(len(case.steps)):
        fewer = _without(case, i, i + 1)
        for j, step in enumerate(fewer.steps):
            for name, value in _lengths(step.operation):
                yield _changed(fewer, j, name, value + case.geometry.block_size)
                yield _changed(fewer, j, name, case.geometry.capacity + 1)


def _lower_max_tokens(case: Case) -> Iterator[Case]:
    most = case.geometry.max_tokens
    for lower in (None, *range(1, most or 0)):
        smaller = evolve(case, geometry=evolve(case.geometry, max_tokens=lower))
        yield smaller
        # What reached the limit must reach the lower one.
        for i, step in enumerate(case.steps):
            for name, value in _lengths(step.operation):
                if lower is not None and most is not None and value > most - lower:
                    yield _changed(smaller, i, name, value - most + lower)


def _fewer_blocks(case: Case) -> Iterator[Case]:
    """What filled the pool must fill the smaller one: a step goes with it, or a length."""
    geometry = case.geometry
    for fewer in range(1, geometry.num_blocks):
        smaller = evolve(case, geometry=evolve(geometry, num_blocks=fewer))
        yield smaller
        lost = (geometry.num_blocks - fewer) * geometry.block_size
        for i, step in enumerate(case.steps):
            yield _without(smaller, i, i + 1)
            for name, value in _lengths(step.operation):
                if value >= lost:
                    yield _changed(smaller, i, name, value - lost)


def _smaller_blocks(case: Case) -> Iterator[Case]:
    """Lengths stay, or are as many whole blocks, with a rest where there was one."""
    for less in range(1, case.geometry.block_size):
        yield evolve(case, geometry=evolve(case.geometry, block_size=less))
        for rest in (less, less - 1):
            yield _scaled(case, less, rest)


def _scaled(case: Case, less: int, rest: int) -> Case:
    old, most = case.geometry.block_size, case.geometry.max_tokens

    def scaled(tokens: int) -> int:
        return tokens // old * less + min(tokens % old, rest)

    bound = None if most is None else max(1, scaled(most))
    for i, step in enumerate(case.steps):
        for name, value in [*_lengths(step.operation), *_bounds(step.operation)]:
            case = _changed(case, i, name, scaled(value))
    return evolve(case, geometry=evolve(case.geometry, block_size=less, max_tokens=bound))


def _lower(case: Case) -> Iterator[Case]:
    """One length or bound is lowered, or the bound goes."""
    for i, step in enumerate(case.steps):
        for name, _ in _bounds(step.operation):
            yield _changed(case, i, name, None)
        for name, value in [*_lengths(step.operation), *_bounds(step.operation)]:
            yield from (_changed(case, i, name, lower) for lower in _lower_values(value))


def _set_right(case: Case) -> Iterator[Case]:
    """A wrong call becomes a right one of another length: a wrong one may distract."""
    for i, step in enumerate(case.steps):
        if step.wrong and hasattr(step.operation, "num_tokens"):
            for value in (0, 1):
                right = evolve(_changed(case, i, "num_tokens", value).steps[i], wrong=False)
                yield evolve(case, steps=(*case.steps[:i], right, *case.steps[i + 1 :]))


def _lower_values(value: int) -> Iterator[int]:
    """All smaller values, or for a large one those near zero and near the halves."""
    if value <= 40:
        yield from range(value)
        return
    yield from range(20)
    step = value // 2
    while step:
        yield value - step
        step //= 2


def _lower_two(case: Case) -> Iterator[Case]:
    """Two lengths are lowered together, where the one only made room for the other."""
    lengths = [(i, *at) for i, step in enumerate(case.steps) for at in _lengths(step.operation)]
    for i, name, value in lengths:
        for j, other, more in lengths:
            for by in range(1, min(value, more, case.geometry.block_size) + 1):
                if j < i:
                    yield _changed(_changed(case, i, name, value - by), j, other, more - by)


def _rename(case: Case) -> Iterator[Case]:
    """Sequences and leases are named 0, 1, 2 ... in the order of their first appearance."""
    seqs: dict[int, int] = {}
    leases: dict[int, int] = {}
    renamed = case
    for i, step in enumerate(case.steps):
        for name, value in _ids(step.operation):
            names = leases if name == "lease" else seqs
            renamed = _changed(renamed, i, name, names.setdefault(value, len(names)))
    yield renamed


def _exchange(case: Case) -> Iterator[Case]:
    """From some step on, two sequences or two leases have changed places."""
    ids = [(i, *named) for i, step in enumerate(case.steps) for named in _ids(step.operation)]
    for start, kind, later in ids:
        alike = [(i, name, id_) for i, name, id_ in ids if (name == "lease") == (kind == "lease")]
        for earlier in sorted({id_ for _, _, id_ in alike if id_ < later}):
            names, exchanged = {earlier: later, later: earlier}, case
            for i, name, id_ in alike:
                if i >= start:
                    exchanged = _changed(exchanged, i, name, names.get(id_, id_))
            yield exchanged
