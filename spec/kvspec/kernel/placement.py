"""Where the blocks of one sequence must lie, and whether there is a hole for more of them.

So fragmentation is specified, not excused: under each placement a refusal is allowed exactly
when no hole of its kind fits. Sizes are in blocks; `free` are the ids that nobody holds.
"""

from collections.abc import Collection, Iterator

from kvspec.contract import Placement, pow2ceil


def extent(placement: Placement, blocks: int) -> int:
    """How many blocks are taken where `blocks` are needed: a power of two where aligned."""
    return pow2ceil(blocks) if placement == "aligned" else blocks


def runs(free: Collection[int]) -> Iterator[range]:
    """The longest runs of consecutive free ids, in ascending order.

    >>> list(runs({4, 1, 2, 5, 9}))
    [range(1, 3), range(4, 6), range(9, 10)]
    """
    start = previous = None
    for block in sorted(free):
        if start is None or previous is None:
            start = block
        elif block != previous + 1:
            yield range(start, previous + 1)
            start = block
        previous = block
    if start is not None and previous is not None:
        yield range(start, previous + 1)


def holes(
    placement: Placement, size: int, free: Collection[int], pool: range, room: int
) -> Iterator[range]:
    """Every place where an extent of `size` blocks fits, in ascending order.

    `room` is the size of a slot, for that placement. An aligned extent lies in the largest
    power of two that the pool holds, as in a buddy system.
    """
    if size == 0:
        return
    for run in runs(free):
        for start in range(run.start, run.stop - size + 1):
            place = range(start, start + size)
            if well_placed(placement, place, pool, room):
                yield place


def well_placed(placement: Placement, blocks: Collection[int], pool: range, room: int) -> bool:
    """Whether one sequence's blocks, in the order of its table, lie as the placement says.

    >>> well_placed("contiguous", (3, 4), range(8), 0), well_placed("aligned", (3, 4), range(8), 0)
    (True, False)
    """
    if placement == "anywhere" or not blocks:
        return True
    table = list(blocks)
    if table != list(range(table[0], table[0] + len(table))):
        return False
    start, size = table[0] - pool.start, len(table)
    match placement:
        case "aligned":
            buddies = pow2ceil(len(pool) + 1) // 2
            return size == pow2ceil(size) and start % size == 0 and start + size <= buddies
        case "slots":
            return room > 0 and size <= room and start % room == 0
        case _:
            return True


def extends(
    placement: Placement,
    table: Collection[int],
    size: int,
    free: Collection[int],
    pool: range,
    room: int,
) -> bool:
    """Whether the extent `table` can become `size` blocks where it is."""
    blocks = list(table)
    grown = range(blocks[0], blocks[0] + size)
    return well_placed(placement, grown, pool, room) and all(
        block in free for block in grown[len(blocks) :]
    )
