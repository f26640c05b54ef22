"""The moves of the reducer: what may make a trace smaller, and what smaller means.

Each move takes a case and gives cases; none of them is run here. A move need not make sense
of what it leaves behind: the reducer drops the calls that no longer do.
"""

from collections.abc import Iterator
from typing import Any

from attrs import evolve, fields, frozen

from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.rooms import OPERATIONS
from kvspec.rooms.resize import MOST_TIMES
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
    tokens = [_tuple(op, "tokens") for op in operations]
    return (
        len(operations),
        sum(step.wrong for step in case.steps),
        sum(step.fault for step in case.steps),
        sum(len(_tuple(op, "seqs") or ()) for op in operations),
        sum(known is not None for known in tokens),
        sum(getattr(op, "key", None) is not None for op in operations),
        len(geometry.groups or ()),
        geometry.max_tokens is not None,
        geometry.window is not None,
        geometry.num_host_blocks,
        sum(1 for op in operations for _ in _bounds(op)),
        geometry.num_blocks,
        geometry.block_size,
        geometry.max_tokens or 0,
        geometry.window or 0,
        [(g.block_size, g.window or 0, g.num_blocks or 0) for g in geometry.groups or ()],
        sum(value for op in operations for _, value in _lengths(op)),
        sum(value for op in operations for _, value in _sizes(op)),
        sum(value for op in operations for _, value in _bounds(op)),
        sum(_tuple(op, "num_tokens") is not None for op in operations),
        sum(sum(known or ()) for known in tokens),
        [[value for _, value in _ids(op)] for op in operations],
    )


At = tuple[str, int | None]
"""A field of an operation, or an entry of one that has several."""


def _values(operation: Operation, *names: str) -> Iterator[tuple[At, Any]]:
    """What an operation has in the fields of these names, entry by entry."""
    for f in fields(type(operation)):
        if f.name in names:
            value = getattr(operation, f.name)
            if isinstance(value, tuple):
                yield from (((f.name, k), entry) for k, entry in enumerate(value))
            else:
                yield (f.name, None), value


def _ids(operation: Operation) -> list[tuple[At, int]]:
    """The sequences and leases that it names."""
    return list(_values(operation, "seq", "parent", "child", "lease", "seqs"))


def _lengths(operation: Operation) -> Iterator[tuple[At, int]]:
    """Lengths in tokens; that of the tokens themselves is one of them."""
    for at, value in _values(operation, "num_tokens", "start"):
        if type(value) is int and value > 0:
            yield at, value
    if tokens := _tuple(operation, "tokens"):
        yield ("tokens", None), len(tokens)


def _bounds(operation: Operation) -> Iterator[tuple[At, int]]:
    return (pair for pair in _values(operation, "limit") if type(pair[1]) is int)


def _sizes(operation: Operation) -> Iterator[tuple[At, int]]:
    """Sizes of the pool in blocks."""
    return (pair for pair in _values(operation, "num_blocks") if type(pair[1]) is int)


def _tuple(operation: Operation, name: str) -> tuple[Any, ...] | None:
    """What a field holds, if that is several."""
    value = getattr(operation, name, None)
    return value if isinstance(value, tuple) else None


def _with(operation: Operation, **changes: Any) -> Operation:
    """The operation with some fields changed, which it has."""
    return evolve(operation, **changes)


def _operation(method: str, **its: Any) -> Operation:
    return OPERATIONS[method](**its)


def _changed(case: Case, i: int, at: At, value: object) -> Case:
    """The case with one field of one operation changed; tokens have another length then."""
    operation, (name, entry) = case.steps[i].operation, at
    old = _tuple(operation, name)
    if old is not None and entry is not None:
        value = (*old[:entry], value, *old[entry + 1 :])
    elif old is not None and type(value) is int:
        value = (*old[:value], *[0] * (value - len(old)))
    return _made(case, i, evolve(operation, **{name: value}))


def _made(case: Case, i: int, operation: Operation) -> Case:
    """The case with another operation."""
    return _stepped(case, i, evolve(case.steps[i], operation=operation))


def _stepped(case: Case, i: int, *steps: TraceStep) -> Case:
    """The case with other steps for one."""
    return evolve(case, steps=(*case.steps[:i], *steps, *case.steps[i + 1 :]))


def _without(case: Case, start: int, stop: int) -> Case:
    return evolve(case, steps=case.steps[:start] + case.steps[stop:])


# ------------------------------------------------------------------------------ the moves


def moves(case: Case) -> Iterator[Case]:
    """The cases that one move away may be smaller, the boldest moves first."""
    for move in _moves(case):
        most = MOST_TIMES * move.geometry.num_blocks
        if all(value <= most for s in move.steps for _, value in _sizes(s.operation)):
            yield move


def _moves(case: Case) -> Iterator[Case]:
    yield from _drop(case)
    yield from _lower_fault(case)
    yield from _fewer_members(case)
    yield from _merge(case)
    yield from _join(case)
    yield from _drop_and_raise(case)
    yield from _plainer_calls(case)
    yield from _fork_instead(case)
    yield from _plainer_geometry(case)
    yield from _lower_max_tokens(case)
    yield from _fewer_blocks(case)
    yield from _smaller_blocks(case)
    yield from _lower(case)
    yield from _lower_two(case)
    yield from _set_right(case)
    yield from _plainer_tokens(case)
    yield from _rename(case)
    yield from _exchange(case)


def _drop(case: Case) -> Iterator[Case]:
    """A run of steps is dropped: long ones side by side, short ones wherever they begin."""
    count = length = len(case.steps)
    while length >= 1:
        for stop in range(count, length - 1, -length if length > 4 else -1):
            yield _without(case, stop - length, stop)
        length = length // 2 if length > 4 else length - 1


def _lower_fault(case: Case) -> Iterator[Case]:
    """A call is not made to fail, or at an earlier checkpoint: perhaps as it has less to do."""
    for i, step in enumerate(case.steps):
        for fault in range(step.fault):
            earlier = _stepped(case, i, evolve(step, fault=fault))
            yield earlier
            for at, value in _lengths(step.operation):
                for by in range(1, min(value, case.geometry.block_size) + 1):
                    yield _changed(earlier, i, at, value - by)


def _fewer_members(case: Case) -> Iterator[Case]:
    """A batch has a sequence less, one number for all, or is the call that it stands for."""
    for i, step in enumerate(case.steps):
        operation, seqs = step.operation, _tuple(step.operation, "seqs")
        if seqs is None:
            continue
        numbers = _tuple(operation, "num_tokens")
        for k in range(max(len(seqs), len(numbers or ()))):
            fewer = _with(operation, seqs=seqs[:k] + seqs[k + 1 :])
            if numbers is not None:
                fewer = _with(fewer, num_tokens=numbers[:k] + numbers[k + 1 :])
            yield _made(case, i, fewer)
        for number in dict.fromkeys(numbers or ()):
            yield _made(case, i, _with(operation, num_tokens=number))
        if len(seqs) == 1 and not step.wrong:
            number = next((value for _, value in _values(operation, "num_tokens")), 0)
            yield _made(case, i, _operation("append", seq=seqs[0], num_tokens=number))


def _merge(case: Case) -> Iterator[Case]:
    """Sequences grow once instead of twice, where they grew or started first."""
    for j, later in enumerate(case.steps):
        for i in range(j - 1, -1, -1):
            earlier = case.steps[i].operation
            if earlier.touched == later.operation.touched:
                merged = _merged(earlier, later.operation)
                if merged is not None:
                    once = evolve(case.steps[i], operation=merged)
                    for fault in dict.fromkeys((once.fault, later.fault)):
                        yield _without(_stepped(case, i, evolve(once, fault=fault)), j, j + 1)
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
            tokens = _tuple(later, "tokens") or ()
            prompt = _operation("allocate_prompt", seq=later.touched[0], tokens=tokens)
            return prompt if _number(earlier) == 0 else None
        tokens = (*(_tuple(earlier, "tokens") or ()), *(_tuple(later, "tokens") or ()))
        return _with(earlier, tokens=tokens)
    if later.method == "append":
        return _with(earlier, num_tokens=_number(earlier) + _number(later))
    seqs = _tuple(earlier, "seqs") or ()
    return _with(earlier, num_tokens=tuple(earlier.added(s) + later.added(s) for s in seqs))


def _number(operation: Operation) -> int:
    return dict(_lengths(operation)).get(("num_tokens", None), 0)


_LEAVING = ("free", "swap_out")
"""What takes a sequence off the device."""


def _join(case: Case) -> Iterator[Case]:
    """A sequence is not started; another does what it did besides its own, and leaves once."""
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
                if end.operation.method in _LEAVING and end.operation.touched == (other,):
                    yield _without(joined, j, j + 1)
                    break


def _drop_and_raise(case: Case) -> Iterator[Case]:
    """A step is dropped, and a longer length takes what it took, or more than there is."""
    for i in range(len(case.steps)):
        fewer = _without(case, i, i + 1)
        for j, step in enumerate(fewer.steps):
            for at, value in _lengths(step.operation):
                yield _changed(fewer, j, at, value + case.geometry.block_size)
                yield _changed(fewer, j, at, case.geometry.capacity + 1)


_PLAIN = {"allocate_prompt": "allocate", "append_tokens": "append"}
"""The calls of the core that do the same with tokens of which nothing is known."""


def _plain(operation: Operation) -> Operation | None:
    """The same call with tokens of which nothing is known; none where they are not told anyway."""
    tokens, method = _tuple(operation, "tokens"), _PLAIN.get(operation.method)
    if tokens is None or method is None:
        return None
    return _operation(method, seq=operation.touched[0], num_tokens=len(tokens))


def _plainer_calls(case: Case) -> Iterator[Case]:
    """Tokens are not told, or under no key."""
    keyed = [i for i, step in enumerate(case.steps) if _key(step.operation) is not None]
    for some in (keyed, *([i] for i in keyed)):
        plain = case
        for i in some:
            plain = _changed(plain, i, ("key", None), None)
        yield plain
    for i, step in enumerate(case.steps):
        untold = _plain(step.operation)
        if untold is not None:
            yield _made(case, i, untold)


def _fork_instead(case: Case) -> Iterator[Case]:
    """A sequence that another shares blocks with is its fork, and no hit in a cache."""
    plain = _untold(case)
    yield plain
    for base in (plain, case):
        started: list[int] = []
        for i, step in enumerate(base.steps):
            if step.operation.method in ("allocate", *_PLAIN) and not step.operation.subjects:
                child = step.operation.touched[0]
                for parent in dict.fromkeys(started):
                    yield _made(base, i, _operation("fork", parent=parent, child=child))
                started.append(child)


def _untold(case: Case) -> Case:
    """The case without a prefix cache: nothing is told, published or looked up."""
    steps = []
    for step in case.steps:
        plain = _plain(step.operation)
        if plain is not None:
            steps.append(evolve(step, operation=plain))
        elif step.operation.capability != "prefix":
            steps.append(step)
    return evolve(case, steps=tuple(steps))


def _key(operation: Operation) -> object:
    return getattr(operation, "key", None)


def _plainer_geometry(case: Case) -> Iterator[Case]:
    """Fewer groups, or plainer ones; a smaller window, or none; fewer host blocks."""
    geometry = case.geometry
    groups = geometry.groups or ()
    plainer = [None, groups[:-1]] if len(groups) > 1 else [None] if groups else []
    for k, group in enumerate(groups):
        others = [
            *(evolve(group, window=w) for w in (None, *range(1, group.window or 0))),
            *(evolve(group, num_blocks=n) for n in (None, *range(1, group.num_blocks or 0))),
            *(evolve(group, block_size=n) for n in range(1, group.block_size) if k),
        ]
        plainer += [(*groups[:k], other, *groups[k + 1 :]) for other in others]
    for fewer in plainer:
        smaller = evolve(case, geometry=evolve(geometry, groups=fewer))
        yield smaller
        if fewer is None:  # what was short in another pool must be short in this one
            for count in range(1, geometry.num_blocks):
                yield evolve(case, geometry=evolve(geometry, groups=None, num_blocks=count))
            for i, step in enumerate(case.steps):
                for at, _ in _lengths(step.operation):
                    yield _changed(smaller, i, at, geometry.capacity + 1)
    if geometry.window is not None:
        for window in (None, *range(1, geometry.window)):
            yield evolve(case, geometry=evolve(geometry, window=window))
    swaps = any(step.operation.capability == "swap" for step in case.steps)
    for host in range(int(swaps), geometry.num_host_blocks):
        yield evolve(case, geometry=evolve(geometry, num_host_blocks=host))


def _lower_max_tokens(case: Case) -> Iterator[Case]:
    most = case.geometry.max_tokens
    for lower in (None, *range(1, most or 0)):
        smaller = evolve(case, geometry=evolve(case.geometry, max_tokens=lower))
        yield smaller
        # What reached the limit must reach the lower one.
        for i, step in enumerate(case.steps):
            for at, value in _lengths(step.operation):
                if lower is not None and most is not None and value > most - lower:
                    yield _changed(smaller, i, at, value - most + lower)


def _fewer_blocks(case: Case) -> Iterator[Case]:
    """What filled the pool must fill the smaller one: a step goes with it, or a length."""
    geometry = case.geometry
    for fewer in range(1, geometry.num_blocks):
        smaller = evolve(case, geometry=evolve(geometry, num_blocks=fewer))
        yield smaller
        less = geometry.num_blocks - fewer
        shifted = smaller
        for i, step in enumerate(case.steps):
            for at, value in _sizes(step.operation):
                if value > less:
                    shifted = _changed(shifted, i, at, min(value - less, MOST_TIMES * fewer))
        if shifted is not smaller:
            yield shifted
        lost = less * geometry.block_size
        for i, step in enumerate(case.steps):
            yield _without(shifted, i, i + 1)
            for at, value in _lengths(step.operation):
                if value >= lost:
                    yield _changed(shifted, i, at, value - lost)


def _smaller_blocks(case: Case) -> Iterator[Case]:
    """Lengths stay, or are as many whole blocks, with a rest where there was one."""
    for less in range(1, case.geometry.block_size):
        yield evolve(case, geometry=_with_blocks(case.geometry, less))
        for rest in (less, less - 1):
            yield _scaled(case, less, rest)


def _with_blocks(geometry: Geometry, block_size: int) -> Geometry:
    """The geometry with blocks of another size, in the first group."""
    groups = geometry.groups
    if groups is not None:
        groups = (evolve(groups[0], block_size=block_size), *groups[1:])
    return evolve(geometry, block_size=block_size, groups=groups)


def _scaled(case: Case, less: int, rest: int) -> Case:
    geometry = case.geometry
    old, most, window = geometry.block_size, geometry.max_tokens, geometry.window

    def scaled(tokens: int) -> int:
        return tokens // old * less + min(tokens % old, rest)

    for i, step in enumerate(case.steps):
        for at, value in [*_lengths(step.operation), *_bounds(step.operation)]:
            case = _changed(case, i, at, scaled(value))
    smaller = evolve(
        _with_blocks(geometry, less),
        max_tokens=None if most is None else max(1, scaled(most)),
        window=None if window is None else max(1, scaled(window)),
    )
    return evolve(case, geometry=smaller)


def _lower(case: Case) -> Iterator[Case]:
    """One length, size or bound is lowered, or the bound goes."""
    for i, step in enumerate(case.steps):
        for at, _ in _bounds(step.operation):
            yield _changed(case, i, at, None)
        operation = step.operation
        for at, value in [*_lengths(operation), *_sizes(operation), *_bounds(operation)]:
            yield from (_changed(case, i, at, lower) for lower in _lower_values(value))


def _set_right(case: Case) -> Iterator[Case]:
    """A wrong call becomes a right one of another length: a wrong one may distract."""
    for i, step in enumerate(case.steps):
        for name in ("num_tokens", "num_blocks"):
            if step.wrong and hasattr(step.operation, name):
                for value in (0, 1):
                    right = evolve(step.operation, **{name: value})
                    yield _stepped(case, i, evolve(step, operation=right, wrong=False))


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
    for k, (i, at, value) in enumerate(lengths):
        for j, other, more in lengths[:k]:
            for by in range(1, min(value, more, case.geometry.block_size) + 1):
                yield _changed(_changed(case, i, at, value - by), j, other, more - by)


def _plainer_tokens(case: Case) -> Iterator[Case]:
    """All tokens are one and the same, those of one call, or one; or they are 0, 1, 2 ..."""
    known = [i for i, step in enumerate(case.steps) if _tuple(step.operation, "tokens")]
    for some in (known, *([i] for i in known)):
        plain = case
        for i in some:
            tokens = _tuple(case.steps[i].operation, "tokens") or ()
            plain = _changed(plain, i, ("tokens", None), (0,) * len(tokens))
        yield plain
    names: dict[int, int] = {}
    renamed = case
    for i in known:
        for at, token in _values(case.steps[i].operation, "tokens"):
            if token:
                yield _changed(case, i, at, 0)
            renamed = _changed(renamed, i, at, names.setdefault(token, len(names)))
    yield renamed


def _rename(case: Case) -> Iterator[Case]:
    """Sequences and leases are named 0, 1, 2 ... in the order of their first appearance."""
    seqs: dict[int, int] = {}
    leases: dict[int, int] = {}
    renamed = case
    for i, step in enumerate(case.steps):
        for at, value in _ids(step.operation):
            names = leases if at[0] == "lease" else seqs
            renamed = _changed(renamed, i, at, names.setdefault(value, len(names)))
    yield renamed


def _exchange(case: Case) -> Iterator[Case]:
    """From some step on, two sequences or two leases have changed places."""
    ids = [(i, *named) for i, step in enumerate(case.steps) for named in _ids(step.operation)]
    for start, kind, later in ids:
        leases = kind[0] == "lease"
        alike = [(i, at, id_) for i, at, id_ in ids if (at[0] == "lease") == leases]
        for earlier in sorted({id_ for _, _, id_ in alike if id_ < later}):
            names, exchanged = {earlier: later, later: earlier}, case
            for i, at, id_ in alike:
                if i >= start:
                    exchanged = _changed(exchanged, i, at, names.get(id_, id_))
            yield exchanged
