"""Moves that leave a story as long as it is, with plainer calls, in a smaller pool, and renamed."""

from collections.abc import Iterator

from attrs import evolve

from kvspec.geometry import Geometry
from kvspec.kernel.operation import Operation
from kvspec.rooms.resize import MOST_TIMES
from kvspec.traces.cases import (
    Case,
    bounds,
    changed,
    ids,
    key_of,
    lengths,
    lower_values,
    made,
    operation_of,
    several,
    sizes,
    stepped,
    values,
    without,
)

_PLAIN = {"allocate_prompt": "allocate", "append_tokens": "append"}
"""The calls of the core that do the same with tokens of which nothing is known."""


def _plain(operation: Operation) -> Operation | None:
    """The same call with tokens of which nothing is known; none where they are not told anyway."""
    tokens, method = several(operation, "tokens"), _PLAIN.get(operation.method)
    if tokens is None or method is None:
        return None
    return operation_of(method, seq=operation.touched[0], num_tokens=len(tokens))


def plainer_calls(case: Case) -> Iterator[Case]:
    """Tokens are not told, or under no key."""
    keyed = [i for i, step in enumerate(case.steps) if key_of(step.operation) is not None]
    for some in (keyed, *([i] for i in keyed)):
        plain = case
        for i in some:
            plain = changed(plain, i, ("key", None), None)
        yield plain
    for i, step in enumerate(case.steps):
        untold = _plain(step.operation)
        if untold is not None:
            yield made(case, i, untold)


def fork_instead(case: Case) -> Iterator[Case]:
    """A sequence that another shares blocks with is its fork, and no hit in a cache."""
    plain = _untold(case)
    yield plain
    for base in (plain, case):
        started: list[int] = []
        for i, step in enumerate(base.steps):
            if step.operation.method in ("allocate", *_PLAIN) and not step.operation.subjects:
                child = step.operation.touched[0]
                for parent in dict.fromkeys(started):
                    yield made(base, i, operation_of("fork", parent=parent, child=child))
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


def plainer_geometry(case: Case) -> Iterator[Case]:
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
                for at, _ in lengths(step.operation):
                    yield changed(smaller, i, at, geometry.capacity + 1)
    if geometry.window is not None:
        for window in (None, *range(1, geometry.window)):
            yield evolve(case, geometry=evolve(geometry, window=window))
    swaps = any(step.operation.capability == "swap" for step in case.steps)
    for host in range(int(swaps), geometry.num_host_blocks):
        yield evolve(case, geometry=evolve(geometry, num_host_blocks=host))


def lower_max_tokens(case: Case) -> Iterator[Case]:
    """A lower limit of all sequences, or none."""
    most = case.geometry.max_tokens
    for lower in (None, *range(1, most or 0)):
        smaller = evolve(case, geometry=evolve(case.geometry, max_tokens=lower))
        yield smaller
        # What reached the limit must reach the lower one.
        for i, step in enumerate(case.steps):
            for at, value in lengths(step.operation):
                if lower is not None and most is not None and value > most - lower:
                    yield changed(smaller, i, at, value - most + lower)


def fewer_blocks(case: Case) -> Iterator[Case]:
    """What filled the pool must fill the smaller one: a step goes with it, or a length."""
    geometry = case.geometry
    for fewer in range(1, geometry.num_blocks):
        smaller = evolve(case, geometry=evolve(geometry, num_blocks=fewer))
        yield smaller
        less = geometry.num_blocks - fewer
        shifted = smaller
        for i, step in enumerate(case.steps):
            for at, value in sizes(step.operation):
                if value > less:
                    shifted = changed(shifted, i, at, min(value - less, MOST_TIMES * fewer))
        if shifted is not smaller:
            yield shifted
        lost = less * geometry.block_size
        for i, step in enumerate(case.steps):
            yield without(shifted, i, i + 1)
            for at, value in lengths(step.operation):
                if value >= lost:
                    yield changed(shifted, i, at, value - lost)


def smaller_blocks(case: Case) -> Iterator[Case]:
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
        for at, value in [*lengths(step.operation), *bounds(step.operation)]:
            case = changed(case, i, at, scaled(value))
    smaller = evolve(
        _with_blocks(geometry, less),
        max_tokens=None if most is None else max(1, scaled(most)),
        window=None if window is None else max(1, scaled(window)),
    )
    return evolve(case, geometry=smaller)


def lower(case: Case) -> Iterator[Case]:
    """One length, size or bound is lowered, or the bound goes."""
    for i, step in enumerate(case.steps):
        for at, _ in bounds(step.operation):
            yield changed(case, i, at, None)
        operation = step.operation
        for at, value in [*lengths(operation), *sizes(operation), *bounds(operation)]:
            yield from (changed(case, i, at, lower) for lower in lower_values(value))


def set_right(case: Case) -> Iterator[Case]:
    """A wrong call becomes a right one of another length: a wrong one may distract."""
    for i, step in enumerate(case.steps):
        for name in ("num_tokens", "num_blocks"):
            if step.wrong and hasattr(step.operation, name):
                for value in (0, 1):
                    right = evolve(step.operation, **{name: value})
                    yield stepped(case, i, evolve(step, operation=right, wrong=False))


def lower_two(case: Case) -> Iterator[Case]:
    """Two lengths are lowered together, where the one only made room for the other."""
    found = [(i, *at) for i, step in enumerate(case.steps) for at in lengths(step.operation)]
    for k, (i, at, value) in enumerate(found):
        for j, other, more in found[:k]:
            for by in range(1, min(value, more, case.geometry.block_size) + 1):
                yield changed(changed(case, i, at, value - by), j, other, more - by)


def lower_repeated(case: Case) -> Iterator[Case]:
    """A call and its repetition are lowered together, perhaps in a pool as much smaller."""
    geometry = case.geometry
    for i, step in enumerate(case.steps[:-1]):
        if step.operation != case.steps[i + 1].operation:
            continue
        for at, value in lengths(step.operation):
            for number in lower_values(value):
                lowered = changed(changed(case, i, at, number), i + 1, at, number)
                yield lowered
                fewer = geometry.num_blocks - (value - number) // geometry.block_size
                if 0 < fewer < geometry.num_blocks:
                    yield evolve(lowered, geometry=evolve(geometry, num_blocks=fewer))


def plainer_tokens(case: Case) -> Iterator[Case]:
    """All tokens are one and the same, those of one call, or one; or they are 0, 1, 2 ..."""
    known = [i for i, step in enumerate(case.steps) if several(step.operation, "tokens")]
    for some in (known, *([i] for i in known)):
        plain = case
        for i in some:
            tokens = several(case.steps[i].operation, "tokens") or ()
            plain = changed(plain, i, ("tokens", None), (0,) * len(tokens))
        yield plain
    names: dict[int, int] = {}
    renamed = case
    for i in known:
        for at, token in values(case.steps[i].operation, "tokens"):
            if token:
                yield changed(case, i, at, 0)
            renamed = changed(renamed, i, at, names.setdefault(token, len(names)))
    yield renamed


def rename(case: Case) -> Iterator[Case]:
    """Sequences and leases are named 0, 1, 2 ... in the order of their first appearance."""
    seqs: dict[int, int] = {}
    leases: dict[int, int] = {}
    renamed = case
    for i, step in enumerate(case.steps):
        for at, value in ids(step.operation):
            names = leases if at[0] == "lease" else seqs
            renamed = changed(renamed, i, at, names.setdefault(value, len(names)))
    yield renamed


def exchange(case: Case) -> Iterator[Case]:
    """From some step on, two sequences or two leases have changed places."""
    every = [(i, *named) for i, step in enumerate(case.steps) for named in ids(step.operation)]
    for start, kind, later in every:
        leases = kind[0] == "lease"
        alike = [(i, at, id_) for i, at, id_ in every if (at[0] == "lease") == leases]
        for earlier in sorted({id_ for _, _, id_ in alike if id_ < later}):
            names, exchanged = {earlier: later, later: earlier}, case
            for i, at, id_ in alike:
                if i >= start:
                    exchanged = changed(exchanged, i, at, names.get(id_, id_))
            yield exchanged
