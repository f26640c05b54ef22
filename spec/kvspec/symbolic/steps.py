"""What CrossHair confirms of one operation: the laws hold before, so they hold after.

Each function is an inductive step in the flat encoding of `flat`. `mine` is the subject of the
call and `theirs` a bystander, which may share its blocks. `fresh` are the blocks that the
allocator chose to hand out, one after the other: any that it may take. As in `arithmetic`, the
leading asserts are what is known before, and the last one is the claim.
"""

# ruff: noqa: PT018  an obligation's preconditions read as one; nobody debugs them one by one

from kvspec.geometry import blocks_for, growth, table_index, whole_blocks
from kvspec.symbolic.flat import (
    ENTRIES,
    Blocks,
    Pool,
    Table,
    lawful,
    let_go,
    may_take,
    references,
    written_alone,
)


def allocate(pool: Pool, theirs: Table, tokens: int, fresh: Blocks) -> None:
    """A new sequence has what its tokens fill, in blocks that nobody else has."""
    assert pool.size >= 1 and 0 <= tokens <= ENTRIES * pool.size
    assert lawful(pool, theirs)
    assert may_take(pool, blocks_for(tokens, pool.size), fresh, theirs)
    table = Table(tokens, fresh)
    after = pool.taking(blocks_for(tokens, pool.size))
    assert lawful(after, table, theirs) & written_alone(pool.size, 0, table, theirs)


def append(pool: Pool, mine: Table, theirs: Table, added: int, fresh: Blocks) -> None:
    """An append in place, where nobody else has the tail, writes into no block of another."""
    assert pool.size >= 1 and 1 <= added <= ENTRIES * pool.size - mine.length
    assert lawful(pool, mine, theirs)
    assert written_alone(pool.size, mine.length, mine.padded(pool.size), theirs)
    assert may_take(pool, growth(mine.length, added, pool.size), fresh, mine, theirs)
    held = blocks_for(mine.length, pool.size)
    table = Table.of(mine.length + added, *mine.blocks[:held], *fresh)
    after = pool.taking(growth(mine.length, added, pool.size))
    claim = lawful(after, table, theirs)
    assert claim & written_alone(pool.size, mine.length, table, theirs)


def copy_on_write(pool: Pool, mine: Table, theirs: Table, added: int, fresh: Blocks) -> None:
    """An append into a shared tail puts another block in its place, and leaves theirs alone."""
    assert pool.size >= 1 and 1 <= added <= ENTRIES * pool.size - mine.length
    assert mine.length % pool.size != 0
    assert lawful(pool, mine, theirs)
    assert references(pool.size, mine.last(pool.size), mine, theirs) == 2
    assert may_take(pool, 1 + growth(mine.length, added, pool.size), fresh, mine, theirs)
    index = table_index(mine.length, pool.size)
    table = Table.of(mine.length + added, *mine.blocks[:index], *fresh)
    after = pool.taking(1 + growth(mine.length, added, pool.size))
    claim = lawful(after, table, theirs)
    assert claim & written_alone(pool.size, mine.length, table, theirs)


def fork(pool: Pool, mine: Table, theirs: Table, index: int) -> None:
    """A child takes no block, and each of its parent's has one reference more."""
    assert pool.size >= 1 and 0 <= index < blocks_for(mine.length, pool.size)
    assert lawful(pool, mine, theirs)
    block = mine.blocks[index]
    child = Table(mine.length, mine.blocks)
    once_more = references(pool.size, block, mine, theirs) + 1
    exact = references(pool.size, block, mine, theirs, child) == once_more
    assert lawful(pool, mine, theirs, child) & exact


def free(pool: Pool, mine: Table, theirs: Table) -> None:
    """A sequence that ends gives back exactly the blocks that nobody else has."""
    assert pool.size >= 1
    assert lawful(pool, mine, theirs)
    back = let_go(pool.size, 0, mine, theirs)
    assert lawful(pool.given(back), theirs)


def truncate(pool: Pool, mine: Table, theirs: Table, tokens: int) -> None:
    """What the shorter length does not need is given back, unless somebody else has it."""
    assert pool.size >= 1 and 0 <= tokens <= mine.length
    assert lawful(pool, mine, theirs)
    kept = blocks_for(tokens, pool.size)
    back = let_go(pool.size, kept, mine, theirs)
    assert lawful(pool.given(back), mine._replace(length=tokens), theirs)


def swap_out(
    pool: Pool, host: Pool, mine: Table, theirs: Table, away: Table, fresh: Blocks
) -> None:
    """A sequence that goes to the host gets blocks of its own there; both pools stay lawful."""
    assert pool.size >= 1 and host.size == pool.size
    assert lawful(pool, mine, theirs) and lawful(host, away)
    assert may_take(host, blocks_for(mine.length, pool.size), fresh, away)
    moved = Table(mine.length, fresh)
    on_host = host.taking(blocks_for(mine.length, pool.size))
    back = let_go(pool.size, 0, mine, theirs)
    assert lawful(pool.given(back), theirs) & lawful(on_host, moved, away)


def swap_in(pool: Pool, host: Pool, mine: Table, theirs: Table, away: Table, fresh: Blocks) -> None:
    """A sequence that comes back gets device blocks of its own, and the host's are free again."""
    assert pool.size >= 1 and host.size == pool.size
    assert lawful(pool, theirs) and lawful(host, mine, away)
    assert may_take(pool, blocks_for(mine.length, pool.size), fresh, theirs)
    moved = Table(mine.length, fresh)
    on_device = pool.taking(blocks_for(mine.length, pool.size))
    back = let_go(pool.size, 0, mine, away)
    assert lawful(on_device, moved, theirs) & lawful(host.given(back), away)


def prefix_share(pool: Pool, theirs: Table, tokens: int, hit: int, fresh: Blocks) -> None:
    """A prompt whose first whole blocks somebody else has takes new ones for the rest."""
    assert pool.size >= 1 and 1 <= tokens <= ENTRIES * pool.size
    assert lawful(pool, theirs)
    assert 0 <= hit <= whole_blocks(theirs.length, pool.size) and hit * pool.size < tokens
    assert may_take(pool, blocks_for(tokens, pool.size) - hit, fresh, theirs)
    table = Table.of(tokens, *theirs.blocks[:hit], *fresh)
    after = pool.taking(blocks_for(tokens, pool.size) - hit)
    claim = lawful(after, table, theirs) & (hit * pool.size <= theirs.length)
    assert claim & written_alone(pool.size, hit * pool.size, table, theirs)
