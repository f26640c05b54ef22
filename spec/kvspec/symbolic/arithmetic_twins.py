"""The broken twins of the arithmetic obligations, which CrossHair must refute.

Most exchange the kernel's function for one with a bug that allocators have had; the others
sharpen the claim or widen a precondition by one token.
"""

from kvspec.symbolic.twins import Twin

TWINS = (
    # The floor, not the ceiling.
    Twin("blocks_hold_the_tokens", "blocks_for(tokens, block_size)", "tokens // block_size"),
    # A 64-bit count that wraps around: wrong only where no sample looks.
    Twin("blocks_hold_the_tokens", "blocks_for(tokens,", "blocks_for(tokens % 2**64,"),
    Twin("blocks_hold_the_tokens", ">= tokens", "> tokens"),
    # One block more when the last one is exactly full.
    Twin("blocks_are_the_fewest", "blocks_for(tokens, block_size)", "tokens // block_size + 1"),
    Twin("blocks_are_the_fewest", "<= others", "< others"),
    # A whole block of waste when the last one is exactly full.
    Twin(
        "waste_is_less_than_a_block",
        "internal_waste(tokens, block_size)",
        "block_size - tokens % block_size",
    ),
    Twin("waste_is_less_than_a_block", "< block_size", "< block_size - 1"),
    Twin("waste_is_less_than_a_block", "0 <= waste", "0 < waste"),
    # The tokens in the last block, not the slots left free in it.
    Twin(
        "waste_is_what_the_blocks_have_over",
        "internal_waste(tokens, block_size)",
        "tokens % block_size",
    ),
    # The position in the sequence, not the offset in the block.
    Twin(
        "slot_lies_in_its_block",
        "slot_of(block, position, block_size)",
        "block * block_size + position",
    ),
    Twin("slot_lies_in_its_block", "block_of(slot, block_size)", "slot // (block_size + 1)"),
    # A block's id for its first slot.
    Twin(
        "slot_keeps_the_offset",
        "slot_of(block, position, block_size)",
        "block + position % block_size",
    ),
    Twin("every_slot_is_reached", "block_of(slot, block_size)", "blocks_for(slot, block_size)"),
    Twin(
        "different_places_have_different_slots",
        "slot = slot_of(block, position, block_size)",
        "slot = block * block_size + position",
    ),
    # Positions may differ where offsets do not.
    Twin(
        "different_places_have_different_slots",
        "position % block_size != other_position % block_size",
        "position != other_position",
    ),
    Twin("slot_lies_in_the_pool", "block < num_blocks", "block <= num_blocks"),
    Twin("slot_lies_in_the_pool", "slot < Geometry", "slot < -1 + Geometry"),
    Twin(
        "growth_is_never_negative",
        "growth(length, added, block_size)",
        "growth(length, added - 1, block_size)",
    ),
    # One block at a full tail: right for one token at a time only.
    Twin(
        "growth_is_enough",
        "growth(length, added, block_size)",
        "int(length % block_size == 0)",
    ),
    # The blocks of the added tokens alone: the room in the tail is forgotten.
    Twin(
        "growth_is_not_one_too_many",
        "growth(length, added, block_size)",
        "blocks_for(added, block_size)",
    ),
    Twin("growth_is_not_one_too_many", "more - 1", "more"),
    # The second append starts from the length before the first.
    Twin("growth_adds_up", "growth(length + first, second,", "growth(length, second,"),
    # The ceiling, not the floor.
    Twin(
        "entry_covers_the_position",
        "table_index(position, block_size)",
        "blocks_for(position, block_size)",
    ),
    Twin("entry_covers_the_position", "<= position", "< position"),
    # A table one entry short when the last block is not full.
    Twin("entry_lies_in_the_table", "blocks_for(length, block_size)", "length // block_size"),
    Twin("entry_lies_in_the_table", "position < length", "position <= length"),
    # The ceiling: the block in which the window begins goes too.
    Twin(
        "whole_blocks_lie_before_the_position",
        "whole_blocks(tokens, block_size)",
        "blocks_for(max(0, tokens), block_size)",
    ),
    # No look at the sign: before the window is full, entries are released from the other end.
    Twin(
        "whole_blocks_lie_before_the_position",
        "whole_blocks(tokens, block_size)",
        "tokens // block_size",
    ),
    Twin("whole_blocks_are_the_most", "blocks + 1", "blocks"),
    # A block is kept for one token longer than it is seen.
    Twin(
        "whole_blocks_are_the_most",
        "whole_blocks(tokens, block_size)",
        "whole_blocks(tokens - 1, block_size)",
    ),
    # The next token's window, not this one's.
    Twin("what_is_released_is_not_seen", "length - window", "length + 1 - window"),
    Twin("what_is_released_is_not_seen", "<= first", "< first"),
    # The window counted without the last token itself.
    Twin(
        "a_window_sees_so_many_tokens",
        "first_in_window(length, window)",
        "first_in_window(length - 1, window)",
    ),
    Twin("a_window_never_moves_back", "0 <= first", "0 < first"),
    Twin("a_window_never_moves_back", "length + added", "length - added"),
    Twin("last_entry_is_not_empty", "table_index(length - 1,", "table_index(length,"),
    Twin("blocks_and_spare_say_the_length", "spare < block_size", "spare <= block_size"),
    Twin("blocks_and_spare_say_the_length", "block_size - spare", "block_size + spare"),
    Twin("blocks_and_spare_order_the_lengths", "spare > other_spare", "spare < other_spare"),
    Twin("blocks_and_spare_order_the_lengths", "block_size - spare", "block_size + spare"),
    Twin("whole_blocks_are_at_most_the_blocks", "<= whole + 1", "<= whole"),
    Twin("whole_blocks_are_at_most_the_blocks", "whole <= blocks", "whole < blocks"),
    Twin("no_window_sees_everything", "first_in_window(length, None)", "length"),
    # Judged by the token after the first new one: a block too many at an edge.
    Twin("released_are_not_seen", "whole_blocks(length + 1 -", "whole_blocks(length + 2 -"),
    # Rounded up: the block in which the window begins goes too.
    Twin("released_are_not_seen", "whole_blocks(length", "blocks_for(length"),
    # Judged by the last token before the append: a block stays for nothing.
    Twin("released_are_all_that_can_be", "whole_blocks(length + 1 -", "whole_blocks(length -"),
    Twin("released_are_in_the_table", "whole_blocks(length + 1 -", "whole_blocks(length + 2 -"),
    Twin("released_are_in_the_table", "window >= 1", "window >= 0"),
    Twin("releases_add_up", "added >= 0", "added >= -1"),
    Twin("releases_add_up", "released <=", "released <"),
    # As tight as one would like it, and wrong where the window straddles a block.
    Twin("kept_for_the_window_is_bounded", "(window, block_size) + 1", "(window, block_size)"),
    Twin("truncate_keeps_a_prefix", "blocks_for(kept, block_size)", "kept // block_size + 1"),
    # The floor, not the ceiling: the tail that stays is given back.
    Twin(
        "truncate_gives_back_whole_blocks_only",
        "blocks_for(kept, block_size)",
        "kept // block_size",
    ),
    # The blocks of the dropped tokens, as if they began at a boundary.
    Twin(
        "truncate_is_undone_by_append",
        "blocks_for(length, block_size) - blocks_for(kept, block_size)",
        "blocks_for(length - kept, block_size)",
    ),
    Twin("truncated_window_is_in_the_table", "table_index(kept - 1,", "table_index(kept,"),
)
