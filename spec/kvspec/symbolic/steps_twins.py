"""The broken twins of the steps: allocators with one fault, which CrossHair must refute."""

from kvspec.symbolic.twins import Twin

TWINS = (
    # Hands out what is not free.
    Twin("allocate", "blocks_for(tokens, pool.size), fresh, theirs)", "0, fresh, theirs)"),
    # The free count forgets the last block, which is not full.
    Twin("allocate", "taking(blocks_for(tokens, pool.size)", "taking(tokens // pool.size"),
    # In place, whoever else has the tail.
    Twin(
        "append",
        "assert written_alone(pool.size, mine.length, mine.padded(pool.size), theirs)",
        "assert written_alone(pool.size, mine.length, mine, theirs)",
    ),
    # The new block goes before the old ones.
    Twin("append", "*mine.blocks[:held], *fresh", "*fresh, *mine.blocks[:held]"),
    # The room in the tail is forgotten in the count.
    Twin(
        "append",
        "taking(growth(mine.length, added, pool.size)",
        "taking(blocks_for(added, pool.size)",
    ),
    # No copy: the writer keeps the shared block.
    Twin("copy_on_write", "mine.blocks[:index], *fresh", "mine.blocks[: index + 1], *fresh"),
    # The copy's block is not counted.
    Twin("copy_on_write", "taking(1 + growth", "taking(growth"),
    # No room is asked for the copy: it may be anybody's block.
    Twin("copy_on_write", "may_take(pool, 1 + growth", "may_take(pool, growth"),
    # The copy comes at the end of the table: the entry after the one that is written into.
    Twin("copy_on_write", "table_index(mine.length,", "blocks_for(mine.length,"),
    # The child is not counted.
    Twin("fork", "theirs) + 1", "theirs) + 0"),
    # The child shares all but the last block.
    Twin("fork", "Table(mine.length,", "Table(mine.length - 1,"),
    # Shared blocks are given back with the others.
    Twin("free", "let_go(pool.size, 0, mine, theirs)", "let_go(pool.size, 0, mine)"),
    # The first block leaks.
    Twin("free", "let_go(pool.size, 0,", "let_go(pool.size, 1,"),
    # The floor: the tail that stays is given back too.
    Twin("truncate", "blocks_for(tokens, pool.size)", "tokens // pool.size"),
    # What is given back is shared with somebody.
    Twin("truncate", "kept, mine, theirs)", "kept, mine)"),
    # Swapping out gives back what others still have.
    Twin("swap_out", "let_go(pool.size, 0, mine, theirs)", "let_go(pool.size, 0, mine)"),
    # The host blocks of others are taken for free ones.
    Twin("swap_out", "fresh, away)", "fresh)"),
    # The host's count forgets them.
    Twin("swap_out", "lawful(on_host,", "lawful(host,"),
    # The host blocks are never free again.
    Twin("swap_in", "host.given(back)", "host"),
    # It comes back into blocks that are in use.
    Twin("swap_in", "fresh, theirs)", "fresh)"),
    # A block that is not full is a hit: what is beyond their tokens was never written.
    Twin("prefix_share", "whole_blocks(theirs.length", "blocks_for(theirs.length"),
    # The hits are counted as taken.
    Twin(
        "prefix_share",
        "taking(blocks_for(tokens, pool.size) - hit)",
        "taking(blocks_for(tokens, pool.size))",
    ),
    # The new blocks come first.
    Twin("prefix_share", "*theirs.blocks[:hit], *fresh", "*fresh, *theirs.blocks[:hit]"),
)
