"""The broken twins: obligations with one clause exchanged, which CrossHair must refute.

A twin is its obligation's own source with `written` replaced by `instead`, so the two differ
in nothing else. Most exchange the kernel's function for one with a bug that allocators have
had; the others sharpen the claim or widen a precondition by one token.
"""

from typing import NamedTuple


class Twin(NamedTuple):
    """The obligation `of`, with `instead` where it has `written`."""

    of: str
    written: str
    instead: str


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
)
