"""What CrossHair confirms of the arithmetic kernel, one function an obligation.

Each is confirmed over all paths for all integers that meet the leading asserts: the sizes,
the block size among them, are symbolic and have no upper bound. The leading asserts are the
preconditions, the last statement is the claim, and at least one other statement stands
between: CrossHair skips a function that does not begin with an assert, and takes a claim
that follows a precondition directly for one more precondition.

Python's integers are unbounded, so nothing is said here of fixed-width ones.
"""

# ruff: noqa: PT018  an obligation's preconditions read as one; nobody debugs them one by one

from kvspec.geometry import (
    Geometry,
    block_of,
    blocks_for,
    first_in_window,
    growth,
    internal_waste,
    slot_of,
    table_index,
    whole_blocks,
)


def blocks_hold_the_tokens(tokens: int, block_size: int) -> None:
    """`blocks_for` is enough: so many blocks hold the tokens."""
    assert tokens >= 0 and block_size >= 1
    blocks = blocks_for(tokens, block_size)
    assert blocks * block_size >= tokens


def blocks_are_the_fewest(tokens: int, block_size: int, others: int) -> None:
    """`blocks_for` is not too many: any number of blocks that holds the tokens is at least it."""
    assert tokens >= 0 and block_size >= 1
    assert others >= 0 and others * block_size >= tokens
    blocks = blocks_for(tokens, block_size)
    assert 0 <= blocks <= others


def waste_is_less_than_a_block(tokens: int, block_size: int) -> None:
    """`internal_waste` lies in `[0, block_size)`."""
    assert tokens >= 0 and block_size >= 1
    waste = internal_waste(tokens, block_size)
    assert 0 <= waste < block_size


def waste_is_what_the_blocks_have_over(tokens: int, block_size: int) -> None:
    """The tokens and `internal_waste` together fill the blocks of `blocks_for` exactly."""
    assert tokens >= 0 and block_size >= 1
    waste = internal_waste(tokens, block_size)
    assert tokens + waste == blocks_for(tokens, block_size) * block_size


def slot_lies_in_its_block(block: int, position: int, block_size: int) -> None:
    """`block_of` undoes `slot_of`."""
    assert block >= 0 and position >= 0 and block_size >= 1
    slot = slot_of(block, position, block_size)
    assert block_of(slot, block_size) == block


def slot_keeps_the_offset(block: int, position: int, block_size: int) -> None:
    """A slot has the same offset in its block as the position has in its own."""
    assert block >= 0 and position >= 0 and block_size >= 1
    slot = slot_of(block, position, block_size)
    assert slot % block_size == position % block_size


def every_slot_is_reached(slot: int, block_size: int) -> None:
    """The slot mapping is onto: a slot is the slot of its own block and offset."""
    assert slot >= 0 and block_size >= 1
    block = block_of(slot, block_size)
    assert slot_of(block, slot % block_size, block_size) == slot


def different_places_have_different_slots(
    block: int, position: int, other_block: int, other_position: int, block_size: int
) -> None:
    """The slot mapping is one to one: two pairs of block and offset never share a slot."""
    assert block >= 0 and position >= 0 and block_size >= 1
    assert other_block >= 0 and other_position >= 0
    assert block != other_block or position % block_size != other_position % block_size
    slot = slot_of(block, position, block_size)
    assert slot != slot_of(other_block, other_position, block_size)


def slot_lies_in_the_pool(num_blocks: int, block: int, position: int, block_size: int) -> None:
    """The slots of a pool's blocks lie in `[0, capacity)`."""
    assert num_blocks >= 1 and position >= 0 and block_size >= 1
    assert 0 <= block < num_blocks
    slot = slot_of(block, position, block_size)
    assert 0 <= slot < Geometry(num_blocks, block_size).capacity


def growth_is_never_negative(length: int, added: int, block_size: int) -> None:
    """An append takes blocks and never gives any back."""
    assert length >= 0 and added >= 0 and block_size >= 1
    more = growth(length, added, block_size)
    assert more >= 0


def growth_is_enough(length: int, added: int, block_size: int) -> None:
    """With `growth` blocks more, the blocks hold the tokens before and the added ones."""
    assert length >= 0 and added >= 0 and block_size >= 1
    more = growth(length, added, block_size)
    assert (blocks_for(length, block_size) + more) * block_size >= length + added


def growth_is_not_one_too_many(length: int, added: int, block_size: int) -> None:
    """If `growth` is not 0, then one block less does not hold the tokens."""
    assert length >= 0 and added >= 0 and block_size >= 1
    more = growth(length, added, block_size)
    fewer = blocks_for(length, block_size) + more - 1
    assert more == 0 or fewer * block_size < length + added


def growth_adds_up(length: int, first: int, second: int, block_size: int) -> None:
    """Two appends take together what one append of all their tokens takes."""
    assert length >= 0 and first >= 0 and second >= 0 and block_size >= 1
    more = growth(length, first, block_size) + growth(length + first, second, block_size)
    assert more == growth(length, first + second, block_size)


def entry_covers_the_position(position: int, block_size: int) -> None:
    """A position lies in `[i * block_size, (i + 1) * block_size)` where `i` is `table_index`."""
    assert position >= 0 and block_size >= 1
    index = table_index(position, block_size)
    assert index * block_size <= position < (index + 1) * block_size


def entry_lies_in_the_table(position: int, length: int, block_size: int) -> None:
    """The `table_index` of a position before the length lies in a table of `blocks_for` entries."""
    assert 0 <= position < length and block_size >= 1
    index = table_index(position, block_size)
    assert 0 <= index < blocks_for(length, block_size)


def whole_blocks_lie_before_the_position(tokens: int, block_size: int) -> None:
    """The last of `whole_blocks` ends at or before the position; a negative one has none."""
    assert block_size >= 1
    blocks = whole_blocks(tokens, block_size)
    assert blocks >= 0 and blocks * block_size <= max(0, tokens)


def whole_blocks_are_the_most(tokens: int, block_size: int) -> None:
    """The block after `whole_blocks` ends behind the position."""
    assert block_size >= 1
    blocks = whole_blocks(tokens, block_size)
    assert (blocks + 1) * block_size > tokens


def what_is_released_is_not_seen(length: int, window: int, block_size: int, entry: int) -> None:
    """A block lies wholly before `first_in_window` exactly if it is one of `whole_blocks`."""
    assert length >= 0 and window >= 1 and block_size >= 1 and entry >= 0
    first = first_in_window(length, window)
    released = entry < whole_blocks(length - window, block_size)
    assert released == ((entry + 1) * block_size <= first)


def a_window_sees_so_many_tokens(length: int, window: int) -> None:
    """From `first_in_window` on there are `window` tokens, or all where there are fewer."""
    assert length >= 0 and window >= 1
    first = first_in_window(length, window)
    assert length - first == min(length, window)


def a_window_never_moves_back(length: int, added: int, window: int) -> None:
    """An append does not bring back what the window has left."""
    assert length >= 0 and added >= 0 and window >= 1
    first = first_in_window(length, window)
    assert 0 <= first <= first_in_window(length + added, window)


def last_entry_is_not_empty(length: int, block_size: int) -> None:
    """The last entry of a table of `blocks_for` entries holds the last position."""
    assert length >= 1 and block_size >= 1
    index = table_index(length - 1, block_size)
    assert index == blocks_for(length, block_size) - 1


def blocks_and_spare_say_the_length(blocks: int, spare: int, block_size: int) -> None:
    """A length is the same as its blocks and the slots spare in the last: the proofs' own units."""
    assert blocks >= 0 and block_size >= 1 and 0 <= spare < block_size
    tokens = blocks * block_size - spare
    assert (blocks_for(tokens, block_size), internal_waste(tokens, block_size)) == (blocks, spare)


def blocks_and_spare_order_the_lengths(
    blocks: int, spare: int, others: int, other_spare: int, block_size: int
) -> None:
    """A length is the shorter if it has fewer blocks, or as many and more to spare."""
    assert 0 <= spare < block_size and 0 <= other_spare < block_size
    assert blocks < others or (blocks == others and spare > other_spare)
    tokens = blocks * block_size - spare
    assert tokens < others * block_size - other_spare


def whole_blocks_are_at_most_the_blocks(tokens: int, block_size: int) -> None:
    """All blocks of a length are whole, or all but the last."""
    assert tokens >= 0 and block_size >= 1
    whole = whole_blocks(tokens, block_size)
    assert whole <= blocks_for(tokens, block_size) <= whole + 1


def no_window_sees_everything(length: int) -> None:
    """Without a window the first position that is seen is 0."""
    assert length >= 0
    first = first_in_window(length, None)
    assert first == 0


def released_are_not_seen(length: int, window: int, block_size: int, position: int) -> None:
    """What an append lets go of lies before all that its first new token attends to."""
    assert length >= 0 and window >= 1 and block_size >= 1
    assert first_in_window(length + 1, window) <= position <= length
    released = whole_blocks(length + 1 - window, block_size)
    assert table_index(position, block_size) >= released


def released_are_all_that_can_be(length: int, window: int, block_size: int) -> None:
    """The first entry that an append keeps holds a position that its first new token sees."""
    assert length >= 0 and window >= 1 and block_size >= 1
    released = whole_blocks(length + 1 - window, block_size)
    assert (released + 1) * block_size > first_in_window(length + 1, window)


def released_are_in_the_table(length: int, window: int, block_size: int) -> None:
    """An append lets go of entries that are there, and of whole ones."""
    assert length >= 0 and window >= 1 and block_size >= 1
    released = whole_blocks(length + 1 - window, block_size)
    assert 0 <= released * block_size <= length


def releases_add_up(length: int, added: int, window: int, block_size: int) -> None:
    """What one append has let go of, a later one lets go of too."""
    assert length >= 0 and added >= 0 and window >= 1 and block_size >= 1
    released = whole_blocks(length + 1 - window, block_size)
    assert released <= whole_blocks(length + added + 1 - window, block_size)


def kept_for_the_window_is_bounded(length: int, window: int, block_size: int) -> None:
    """After an append of one token at most one block more is kept than a window fills."""
    assert length >= 0 and window >= 1 and block_size >= 1
    released = whole_blocks(length + 1 - window, block_size)
    assert blocks_for(length + 1, block_size) - released <= blocks_for(window, block_size) + 1


def truncate_keeps_a_prefix(length: int, kept: int, block_size: int) -> None:
    """A shorter length needs no entry that the table lacks."""
    assert 0 <= kept <= length and block_size >= 1
    entries = blocks_for(kept, block_size)
    assert 0 <= entries <= blocks_for(length, block_size)


def truncate_gives_back_whole_blocks_only(length: int, kept: int, block_size: int) -> None:
    """The first entry that a truncate gives back holds no token that stays."""
    assert 0 <= kept <= length and block_size >= 1
    entries = blocks_for(kept, block_size)
    assert kept <= entries * block_size


def truncate_is_undone_by_append(length: int, kept: int, block_size: int) -> None:
    """What a truncate gives back is what an append to the former length takes."""
    assert 0 <= kept <= length and block_size >= 1
    back = blocks_for(length, block_size) - blocks_for(kept, block_size)
    assert back == growth(kept, length - kept, block_size)


def truncated_window_is_in_the_table(kept: int, window: int, block_size: int) -> None:
    """All that the window of a truncated sequence needs lies in its table."""
    assert kept >= 1 and window >= 1 and block_size >= 1
    first = table_index(first_in_window(kept, window), block_size)
    assert 0 <= first <= table_index(kept - 1, block_size) < blocks_for(kept, block_size)
