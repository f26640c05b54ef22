"""The reference allocator: each capability by what it promises, and where two of them meet."""

import copy
import random
from collections import Counter

import numpy as np
import pytest

from kvimpls.reference import Lease, Reference
from kvimpls.unusual import Fifo, FirstBlockOne, NumpyIds, OtherSideCopies, RandomOrder
from kvspec import (
    Admission,
    AllocatorError,
    Copy,
    Geometry,
    Group,
    InjectedFault,
    InvalidLength,
    NotResident,
    OutOfBlocks,
    SequenceExists,
    UnknownLease,
    UnknownSequence,
    UnsupportedGeometry,
)


def frozen(value, seen=None):
    """All of a pool's state as a value, in which order counts in lists alone."""
    seen = seen or {}
    match value:
        case None | int() | float() | str() | range():
            return value
        case Counter():
            return frozenset((key, count) for key, count in value.items() if count)
        case dict():
            return frozenset((frozen(k, seen), frozen(v, seen)) for k, v in value.items())
        case list() | tuple():
            return tuple(frozen(item, seen) for item in value)
        case Lease() | type() | Geometry() | random.Random():
            return value
    if callable(value) or id(value) in seen:
        return "elsewhere"
    seen = {**seen, id(value): value}
    return type(value).__name__, frozen(vars(value), seen)


def unchanged(pool, error, call, *arguments, **keywords):
    """The call raises the error, and leaves everything as it was."""
    before = frozen(pool)
    with pytest.raises(error):
        getattr(pool, call)(*arguments, **keywords)
    assert frozen(pool) == before


def published(pool, seq, tokens, key=None):
    """Start `seq` with tokens that are all written; the length of the hit."""
    hit = pool.allocate_prompt(seq, tokens, key)
    pool.mark_written(seq, len(tokens))
    return hit


# ------------------------------------------------------------------------------ rollback


def test_truncate_keeps_the_blocks_that_the_length_needs():
    """The table becomes its prefix, and what is cut off is free."""
    pool = Reference(Geometry(4, 2))
    pool.allocate(0, 7)
    assert pool.truncate(0, 3) == []
    assert (pool.block_table(0), pool.num_free_blocks()) == ([0, 1], 2)
    pool.truncate(0, 0)
    assert (pool.block_table(0), pool.num_free_blocks()) == ([], 4)


def test_truncate_to_the_present_length_changes_nothing():
    """Not even what could be released."""
    pool = Reference(Geometry(4, 2, window=1))
    pool.allocate(0, 5)
    before = frozen(pool)
    assert pool.truncate(0, 5) == pool.append(0, 0) == pool.append_tokens(0, []) == []
    assert frozen(pool) == before


def test_truncate_beyond_the_length_is_refused_as_misuse():
    """A length that is longer, negative or no number."""
    pool = Reference(Geometry(4, 2))
    pool.allocate(0, 3)
    for length in (4, -1, 1.0, "1", None):
        unchanged(pool, InvalidLength, "truncate", 0, length)
    unchanged(pool, UnknownSequence, "truncate", 1, 0)


def test_growing_after_truncate_copies_a_shared_tail():
    """The block that the fork still has is not written into."""
    pool = Reference(Geometry(4, 4))
    pool.allocate(0, 4)
    pool.fork(0, 1)
    pool.truncate(1, 2)
    assert pool.append(1, 1) == [Copy(0, 1)]
    assert (pool.block_table(0), pool.block_table(1)) == ([0], [1])


# ------------------------------------------------------------------------------ prefix


def test_a_hit_is_whole_blocks_and_leaves_one_token():
    """A prompt that is cached in full still has its last token computed."""
    pool = Reference(Geometry(8, 2))
    published(pool, 0, [1, 2, 3, 4, 5])
    assert pool.lookup([1, 2, 3, 4]) == 4
    assert pool.allocate_prompt(1, [1, 2, 3, 4]) == 2
    assert pool.allocate_prompt(2, [1, 2, 3, 4, 9]) == 4
    assert pool.allocate_prompt(3, []) == pool.allocate_prompt(4, [1]) == 0
    assert pool.block_table(2)[:2] == pool.block_table(0)[:2]
    assert pool.block_table(1)[:1] == pool.block_table(0)[:1]


def test_allocating_a_prompt_publishes_nothing():
    """What is not written yet is not found, and only full blocks are."""
    pool = Reference(Geometry(8, 2))
    pool.allocate_prompt(0, [1, 2, 3, 4, 5])
    assert pool.lookup([1, 2]) == 0
    pool.mark_written(0, 3)
    assert pool.lookup([1, 2, 3, 4]) == 2
    pool.mark_written(0, 2)  # no way back
    pool.mark_written(0, 5)
    assert pool.lookup([1, 2, 3, 4, 5, 6]) == 4
    unchanged(pool, InvalidLength, "mark_written", 0, 6)
    unchanged(pool, InvalidLength, "mark_written", 0, -1)


def test_contents_are_the_whole_chain():
    """The same tokens after others, or a hole in the chain, are no hit."""
    pool = Reference(Geometry(8, 2))
    published(pool, 0, [1, 2, 3, 4, 5])
    assert pool.lookup([3, 4]) == 0
    assert pool.lookup([1, 9, 3, 4]) == 0
    assert pool.lookup(np.array([1, 2, 3, 4])) == 4


KEYS = (None, 0, 0.0, False, "0", "", (), (0,), (0.0,), (False,), ((0,),), (None,), 1, 1.0, True)


def test_keys_of_different_types_are_different():
    """1, 1.0, True, "1" and (1,) are five keys, also inside of tuples."""
    pool = Reference(Geometry(len(KEYS), 1))
    for number, key in enumerate(KEYS):
        assert [pool.lookup([7], k) for k in KEYS] == [1] * number + [0] * (len(KEYS) - number)
        published(pool, number, [7], key)


def test_the_tokens_of_append_tokens_are_known():
    """Blocks that they fill are published; nothing is from the first unknown token on."""
    pool = Reference(Geometry(8, 2))
    pool.allocate_prompt(0, [1], "k")
    pool.append_tokens(0, [2, 3])
    pool.append(0, 1)
    pool.append_tokens(0, [5, 6])
    pool.mark_written(0, 6)
    assert pool.lookup([1, 2, 3, 4, 5, 6], "k") == 2
    pool.truncate(0, 3)  # the unknown one is no longer there
    pool.append_tokens(0, [4])
    pool.mark_written(0, 4)
    assert pool.lookup([1, 2, 3, 4, 5, 6], "k") == 4


def test_plain_tokens_are_never_published():
    """Neither those of allocate, nor any after them."""
    pool = Reference(Geometry(8, 2))
    pool.allocate(0, 1)
    pool.append_tokens(0, [1, 2, 3])
    pool.mark_written(0, 4)
    pool.free(0)
    assert pool._supply.idle == []


def test_cached_blocks_stay_and_count_as_free():
    """After the last user has gone, contents are found until their block is needed."""
    pool = Reference(Geometry(4, 2))
    published(pool, 0, [1, 2, 3, 4])
    pool.free(0)
    assert pool.num_free_blocks() == 4
    assert pool.free_blocks() == [0, 1, 2, 3]
    assert pool.ref_count(0) == 0
    assert pool.can_allocate(8) is Admission.OK
    pool.allocate(1, 4)  # uncached ones first
    assert pool.lookup([1, 2, 3, 4]) == 4
    pool.allocate(2, 1)
    assert pool.lookup([1, 2, 3, 4]) == 2


def test_eviction_is_in_order_of_release_and_tail_first():
    """Not in order of publication, and looking does not count as use."""
    pool = Reference(Geometry(4, 1))
    published(pool, 0, [1, 2])
    published(pool, 1, [3, 4])
    pool.free(1)
    pool.free(0)
    assert pool.lookup([3, 4]) == 2
    left = []
    for seq in range(2, 6):
        pool.allocate(seq, 1)
        left.append((pool.lookup([1, 2]), pool.lookup([3, 4])))
    assert left == [(2, 1), (2, 0), (1, 0), (0, 0)]


def test_a_hit_makes_recent():
    """Released again, it is the last to go."""
    pool = Reference(Geometry(3, 1))
    published(pool, 0, [1])
    published(pool, 1, [2])
    pool.free(0)
    pool.free(1)
    assert pool.allocate_prompt(2, [1, 9]) == 1
    pool.free(2)
    pool.allocate(3, 2)
    assert (pool.lookup([1]), pool.lookup([2])) == (1, 0)


def test_an_idle_hit_counts_once():
    """It was free, and is not any more: one hit and one fresh block are two."""
    pool = Reference(Geometry(3, 2))
    published(pool, 0, [1, 2])
    pool.free(0)
    pool.allocate(1, 4)
    assert pool.num_free_blocks() == 1
    unchanged(pool, OutOfBlocks, "allocate_prompt", 2, [1, 2, 3])
    pool.truncate(1, 2)
    assert pool.allocate_prompt(2, [1, 2, 3]) == 2
    assert pool.num_free_blocks() == 0


def test_a_hit_in_use_takes_nothing():
    """Only the rest of the prompt needs blocks."""
    pool = Reference(Geometry(3, 2))
    published(pool, 0, [1, 2, 3, 4])
    assert pool.allocate_prompt(1, [1, 2, 3, 4, 5]) == 4
    assert (pool.ref_count(0), pool.num_free_blocks()) == (2, 0)


def test_a_hit_is_never_evicted_for_the_rest_of_its_prompt():
    """The idle blocks of the hit are the oldest, and others go."""
    pool = Reference(Geometry(3, 1))
    published(pool, 0, [1])
    pool.free(0)
    published(pool, 1, [2, 3])
    pool.free(1)
    assert pool.allocate_prompt(2, [1, 8, 9]) == 1
    assert pool.lookup([1]) == 1
    assert len(set(pool.block_table(2))) == 3


def test_a_refusal_leaves_the_order_of_eviction():
    """A prompt that hits the oldest and does not fit has not used it."""
    pool = Reference(Geometry(3, 1))
    for seq, token in enumerate((1, 2, 3)):
        published(pool, seq, [token])
    for seq in range(3):
        pool.free(seq)
    unchanged(pool, OutOfBlocks, "allocate_prompt", 3, [1, 7, 8, 9])
    pool.allocate(3, 1)
    assert [pool.lookup([token]) for token in (1, 2, 3)] == [0, 1, 1]


def test_of_equal_contents_one_block_is_cached():
    """The second is a used block like any other, free when its users have gone."""
    pool = Reference(Geometry(4, 2))
    pool.allocate_prompt(0, [1, 2])
    published(pool, 1, [1, 2])
    pool.mark_written(0, 2)
    assert pool.block_table(0) != pool.block_table(1)
    pool.free(0)
    assert pool._supply.idle == []
    assert pool.lookup([1, 2]) == 2
    pool.free(1)
    assert pool._supply.idle == [1]


def test_a_later_mark_publishes_what_has_become_the_only_one():
    """Every full block up to there is published, also those marked before."""
    pool = Reference(Geometry(4, 2))
    published(pool, 0, [1, 2])
    published(pool, 1, [1, 2])  # leaves its last token: its own block
    pool.truncate(0, 1)
    pool.append_tokens(0, [9])
    assert pool.lookup([1, 2]) == 0
    pool.append_tokens(1, [3, 4])
    pool.mark_written(1, 4)
    assert pool.lookup([1, 2, 3, 4]) == 4


def test_writing_into_a_published_block_gives_up_its_contents():
    """When the next token comes, and not before: until then they are still there."""
    pool = Reference(Geometry(2, 2))
    published(pool, 0, [1, 2, 3, 4])
    pool.truncate(0, 3)
    assert pool.lookup([1, 2, 3, 4]) == 4
    assert pool.append_tokens(0, [9]) == []
    assert pool.lookup([1, 2, 3, 4]) == 2
    pool.mark_written(0, 4)
    assert pool.lookup([1, 2, 3, 9]) == 4


def test_plain_append_into_a_published_block_gives_up_its_contents():
    """The same, with a token that nobody knows."""
    pool = Reference(Geometry(2, 2))
    published(pool, 0, [1, 2])
    pool.truncate(0, 1)
    pool.append(0, 1)
    pool.mark_written(0, 2)
    assert pool.lookup([1, 2]) == 0


def test_writing_into_a_published_block_that_is_shared_copies_it():
    """The other user keeps the block, and its contents stay cached."""
    pool = Reference(Geometry(3, 2))
    published(pool, 0, [1, 2])
    assert pool.allocate_prompt(1, [1, 2, 3]) == 2
    pool.truncate(0, 1)
    assert pool.append_tokens(0, [9]) == [Copy(0, 2)]
    assert pool.lookup([1, 2]) == 2
    pool.mark_written(0, 2)
    assert pool.lookup([1, 9]) == 2


def test_a_refused_append_gives_up_nothing():
    """The cached contents are still there."""
    pool = Reference(Geometry(1, 2))
    published(pool, 0, [1, 2])
    pool.truncate(0, 1)
    unchanged(pool, OutOfBlocks, "append", 0, 2)
    assert pool.lookup([1, 2]) == 2


def test_a_fork_has_tokens_key_and_mark():
    """It publishes what it adds, under the key of its parent."""
    pool = Reference(Geometry(4, 2))
    published(pool, 0, [1, 2, 3], "k")
    pool.fork(0, 1)
    assert pool.append_tokens(1, [4]) == [Copy(1, 2)]
    pool.mark_written(1, 4)
    assert pool.lookup([1, 2, 3, 4], "k") == 4


def test_after_a_reset_only_new_sequences_publish():
    """Those from before, and their forks, do not; idle blocks are plain free ones."""
    pool = Reference(Geometry(6, 2))
    published(pool, 0, [1, 2])
    pool.free(0)
    pool.allocate_prompt(1, [3, 4, 5])
    pool.reset_prefix_cache()
    assert (pool.lookup([1, 2]), pool._supply.idle) == (0, [])
    pool.fork(1, 2)
    pool.append_tokens(2, [6])
    pool.mark_written(1, 3)
    pool.mark_written(2, 4)
    assert pool.lookup([3, 4]) == 0
    published(pool, 3, [3, 4])
    assert pool.lookup([3, 4]) == 2
    assert pool.num_free_blocks() == 2


def test_prompts_keep_to_max_tokens():
    """And to the rules about sequence ids."""
    pool = Reference(Geometry(4, 2, max_tokens=3))
    unchanged(pool, InvalidLength, "allocate_prompt", 0, [1, 2, 3, 4])
    pool.allocate_prompt(0, [1, 2])
    unchanged(pool, SequenceExists, "allocate_prompt", 0, [1])
    unchanged(pool, InvalidLength, "append_tokens", 0, [1, 2])
    unchanged(pool, UnknownSequence, "append_tokens", 1, [1])
    unchanged(pool, UnknownSequence, "mark_written", 1, 0)


# ------------------------------------------------------------------------------ swap


def test_a_sequence_goes_to_the_host_and_comes_back():
    """The copies name source and destination, and both tiers count right."""
    pool = Reference(Geometry(4, 2, num_host_blocks=3))
    pool.allocate(0, 3)
    assert pool.swap_out(0) == [Copy(0, 0), Copy(1, 1)]
    assert (pool.block_table(0), pool.host_block_table(0)) == ([], [0, 1])
    assert (pool.num_free_blocks(), pool.num_free_host_blocks()) == (4, 1)
    pool.allocate(1, 1)
    assert pool.swap_in(0) == [Copy(0, 1), Copy(1, 2)]
    assert (pool.block_table(0), pool.host_block_table(0)) == ([1, 2], [])
    assert (pool.num_free_blocks(), pool.num_free_host_blocks()) == (1, 3)
    assert pool.append(0, 1) == []


def test_swapping_is_all_or_nothing():
    """A tier that lacks a block refuses, and nothing has moved."""
    pool = Reference(Geometry(3, 2, num_host_blocks=2))
    pool.allocate(0, 5)
    unchanged(pool, OutOfBlocks, "swap_out", 0)
    pool.truncate(0, 4)
    pool.swap_out(0)
    pool.allocate(1, 4)
    unchanged(pool, OutOfBlocks, "swap_in", 0)
    unchanged(pool, AllocatorError, "swap_in", 1)
    unchanged(pool, UnknownSequence, "swap_in", 2)
    unchanged(pool, UnknownSequence, "swap_out", 2)
    unchanged(pool, UnknownSequence, "host_block_table", 2)


def test_what_is_swapped_out_can_only_be_freed_or_swapped_in():
    """Everything else is NotResident."""
    pool = Reference(Geometry(3, 2, num_host_blocks=2))
    pool.allocate_prompt(0, [1, 2, 3])
    pool.swap_out(0)
    for call, *arguments in (
        ("append", 0, 0),
        ("append_tokens", 0, []),
        ("append_batch", [0], 1),
        ("truncate", 0, 0),
        ("fork", 0, 1),
        ("begin_transfer", 0),
        ("mark_written", 0, 1),
        ("swap_out", 0),
    ):
        unchanged(pool, NotResident, call, *arguments)
    pool.free(0)
    assert pool.num_free_host_blocks() == 2
    unchanged(pool, UnknownSequence, "free", 0)


def test_an_empty_sequence_can_be_swapped_out():
    """It has no blocks, and is not resident all the same."""
    pool = Reference(Geometry(1, 1))
    pool.allocate(0, 0)
    assert pool.swap_out(0) == []
    unchanged(pool, NotResident, "append", 0, 1)
    assert pool.swap_in(0) == []
    pool.append(0, 1)


def test_swapping_out_leaves_shared_and_published_blocks():
    """Others keep theirs, the cache keeps its contents, and what comes back is not published."""
    pool = Reference(Geometry(4, 2, num_host_blocks=4))
    published(pool, 0, [1, 2, 3, 4])
    pool.fork(0, 1)
    pool.truncate(1, 2)
    pool.swap_out(0)
    assert (pool.ref_count(0), pool.ref_count(1)) == (1, 0)
    assert pool.lookup([1, 2, 3, 4]) == 4
    pool.swap_in(0)
    assert not set(pool.block_table(0)) & {0, 1}
    pool.reset_prefix_cache()
    published(pool, 2, [1, 2])
    assert pool.lookup([1, 2, 3, 4]) == 2


def test_marking_again_publishes_what_was_swapped_in():
    """The mark fell to 0, so that a mark is not too low to be heard."""
    pool = Reference(Geometry(2, 2, num_host_blocks=2))
    published(pool, 0, [1, 2, 3, 4])
    pool.swap_out(0)
    pool.allocate(1, 4)
    pool.free(1)
    assert pool.lookup([1, 2]) == 0
    pool.swap_in(0)
    assert pool.lookup([1, 2]) == 0
    pool.mark_written(0, 4)
    assert pool.lookup([1, 2, 3, 4]) == 4


# ------------------------------------------------------------------------------ window


@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_entries_are_released_exactly_when_the_first_new_token_does_not_see_them(
    block_size, window, step
):
    """For every step size: entry i goes when (i + 1) * block_size <= length + 1 - window."""
    pool = Reference(Geometry(24, block_size, window=window))
    pool.allocate(0, 5)
    length = 5
    assert None not in pool.block_table(0)
    while length < 20:
        pool.append(0, step)
        table = pool.block_table(0)
        gone = [(i + 1) * block_size <= length + 1 - window for i in range(len(table))]
        assert [entry is None for entry in table] == gone
        length += step
        assert len(table) == -(-length // block_size)
        assert pool.num_free_blocks() == 24 - gone.count(False)


def test_what_the_window_releases_counts_for_the_same_append():
    """A full pool can go on for ever, one block out and one in."""
    pool = Reference(Geometry(2, 2, window=2))
    pool.allocate(0, 4)
    for _ in range(10):
        pool.append(0, 2)
        assert pool.num_free_blocks() == 0
        assert len([b for b in pool.block_table(0) if b is not None]) == 2


def test_a_refused_append_releases_nothing():
    """The entries that would have gone are still there."""
    pool = Reference(Geometry(3, 2, window=2))
    pool.allocate(0, 6)
    unchanged(pool, OutOfBlocks, "append", 0, 5)
    pool.append(0, 4)
    assert pool.block_table(0)[:2] == [None, None]


def test_a_shared_block_that_the_window_releases_is_not_free():
    """The fork, whose window has not left it, keeps it."""
    pool = Reference(Geometry(4, 2, window=2))
    pool.allocate(0, 4)
    pool.fork(0, 1)
    pool.append(0, 1)
    assert (pool.block_table(0), pool.block_table(1)) == ([None, 1, 2], [0, 1])
    assert (pool.ref_count(0), pool.ref_count(1), pool.num_free_blocks()) == (1, 2, 1)
    pool.fork(0, 2)
    assert pool.block_table(2) == [None, 1, 2]


def test_truncate_needs_all_that_the_window_sees():
    """InvalidLength where some of it has been released; to zero always works."""
    pool = Reference(Geometry(8, 2, window=3))
    pool.allocate(0, 8)
    pool.append(0, 1)
    assert pool.block_table(0) == [None, None, None, 3, 0]
    for length in range(1, 9):
        unchanged(pool, InvalidLength, "truncate", 0, length)
    pool.truncate(0, 9)
    pool.truncate(0, 0)
    assert pool.num_free_blocks() == 8


def test_truncate_back_to_where_the_window_is_still_whole():
    """A token may go again as long as what it uncovers is there."""
    pool = Reference(Geometry(8, 2, window=3))
    pool.allocate(0, 6)
    pool.append(0, 2)
    assert pool.block_table(0) == [None, None, 2, 0]
    pool.truncate(0, 7)
    unchanged(pool, InvalidLength, "truncate", 0, 6)


def test_with_a_window_a_hit_needs_only_what_the_window_sees():
    """The entries before it are None, cached or not, and cost nothing."""
    pool = Reference(Geometry(6, 2, window=2))
    published(pool, 0, [1, 2, 3, 4, 5, 6])
    pool.free(0)
    pool.allocate(1, 10)  # takes the three others, and the last two of the chain
    pool.free(1)
    assert pool.lookup([1, 2, 3, 4, 5, 6]) == 2
    pool.reset_prefix_cache()
    published(pool, 0, [1, 2, 3, 4, 5, 6])
    pool.truncate(0, 6)
    assert pool.allocate_prompt(1, [1, 2, 3, 4, 5, 6, 7]) == 6
    assert pool.block_table(1)[:3] == [None, None, pool.block_table(0)[2]]
    assert pool.num_free_blocks() == 2
    assert pool.lookup([1, 2, 3, 4, 9, 9]) == 4


def test_with_a_window_a_chain_without_its_beginning_is_found():
    """The first block has been given up, and the window of the hit does not need it."""
    pool = Reference(Geometry(5, 2, window=2))
    pool.allocate_prompt(0, [1, 2, 3, 4])
    pool.append_tokens(0, [5])
    assert pool.block_table(0)[0] is None
    pool.mark_written(0, 5)
    assert pool.lookup([1, 2]) == 0
    assert pool.lookup([1, 2, 3, 4]) == 4


def test_blocks_that_the_window_releases_stay_cached():
    """Published ones are idle, as if their sequence had been freed."""
    pool = Reference(Geometry(4, 2, window=2))
    published(pool, 0, [1, 2, 3, 4])
    pool.append_tokens(0, [5])
    assert pool.block_table(0)[0] is None
    assert pool.lookup([1, 2]) == 2
    assert pool._supply.idle == [0]


def test_released_entries_have_no_part_in_swapping():
    """They are None in the host's table, and when it comes back."""
    pool = Reference(Geometry(4, 2, num_host_blocks=2, window=2))
    pool.allocate(0, 4)
    pool.append(0, 1)
    assert pool.swap_out(0) == [Copy(1, 0), Copy(0, 1)]
    assert pool.host_block_table(0) == [None, 0, 1]
    pool.swap_in(0)
    assert pool.block_table(0)[0] is None
    assert pool.num_free_blocks() == 2


# ------------------------------------------------------------------------------ lease

LET_GO = {
    "free": lambda pool: pool.free(0),
    "truncate": lambda pool: pool.truncate(0, 0),
    "swap_out": lambda pool: pool.swap_out(0),
    "window": lambda pool: pool.append(0, 4),
}


@pytest.mark.parametrize("let_go", LET_GO)
@pytest.mark.parametrize("cached", [False, True])
def test_leased_blocks_are_not_reused_whatever_becomes_of_the_sequence(let_go, cached):
    """Freed, truncated, swapped out, outside the window: not free, and not given up."""
    window = 1 if let_go == "window" else None
    pool = Reference(Geometry(4, 2, num_host_blocks=2, window=window))
    pool.allocate_prompt(0, [1, 2, 3, 4])
    if cached:
        pool.mark_written(0, 4)
    first, second = pool.begin_transfer(0), pool.begin_transfer(0)
    leased = set(pool.block_table(0))
    LET_GO[let_go](pool)
    assert not leased & set(pool.free_blocks())
    pool.allocate(1, 2 * pool.num_free_blocks())
    assert not leased & set(pool.block_table(1))
    pool.end_transfer(first)
    assert pool.num_free_blocks() == 0
    pool.end_transfer(second)
    assert set(pool.free_blocks()) == leased
    assert pool.lookup([1, 2, 3, 4]) == (4 if cached else 0)
    for lease in (first, second, object(), None, [], Lease()):
        unchanged(pool, UnknownLease, "end_transfer", lease)


def test_a_lease_ends_before_the_table_does():
    """The blocks are the table's until it lets go."""
    pool = Reference(Geometry(2, 2))
    pool.allocate(0, 2)
    lease = pool.begin_transfer(0)
    assert pool.append(0, 1) == []  # and in place
    pool.end_transfer(lease)
    assert pool.num_free_blocks() == 0
    pool.free(0)
    assert pool.num_free_blocks() == 2


def test_the_end_of_the_lease_is_the_release():
    """In the order of eviction a leased block stands where its lease ended."""
    pool = Reference(Geometry(3, 1))
    for seq, token in enumerate((1, 2, 3)):
        published(pool, seq, [token])
    lease = pool.begin_transfer(0)
    for seq in range(3):
        pool.free(seq)
    pool.end_transfer(lease)
    pool.allocate(3, 2)
    assert [pool.lookup([token]) for token in (1, 2, 3)] == [1, 0, 0]


def test_a_hit_may_be_under_a_lease():
    """Nobody uses it, but it is not free either, and is found all the same."""
    pool = Reference(Geometry(2, 1))
    published(pool, 0, [1])
    lease = pool.begin_transfer(0)
    pool.free(0)
    assert pool.num_free_blocks() == 1
    assert pool.allocate_prompt(1, [1, 2]) == 1
    pool.end_transfer(lease)
    assert pool.num_free_blocks() == 0
    pool.free(1)
    assert pool.num_free_blocks() == 2


# ------------------------------------------------------------------------------ batch


def test_a_batch_takes_arrays_lists_and_one_number():
    """Whatever holds the ids, and one number of tokens or as many."""
    pool = Reference(Geometry(12, 1))
    for seq in range(3):
        pool.allocate(seq, 0)
    assert pool.append_batch(np.array([0, 1]), np.array([1, 2])) == []
    assert pool.append_batch((2, 0), 1) == pool.append_batch([1], (0,)) == []
    assert pool.append_batch(np.array([2]), np.int64(1)) == pool.append_batch([], []) == []
    assert pool.append_batch([], 3) == pool.append_batch(np.array([], int), np.array(3)) == []
    assert [len(pool.block_table(seq)) for seq in range(3)] == [2, 2, 2]


def test_a_batch_that_makes_no_sense_changes_nothing():
    """Duplicates, unknown ids, unequal lengths and invalid lengths."""
    pool = Reference(Geometry(10, 1, max_tokens=4))
    for seq in range(3):
        pool.allocate(seq, 1)
    for seqs, numbers in (
        ([0, 0], 1),
        ([0, 7], 1),
        ([0, 1], [1]),
        ([0], [1, 1]),
        ([0, 1], [1, -1]),
        ([0, 1], [1, 4]),
        ([0, 1], [1, 1.0]),
        ([0, 1], 1.5),
        ([0, 1], "11"),
        ([], 0.5),
        (0, 1),
        ([[0], [1]], 1),
        (["a"], 1),
        (np.array([[0, 1]]), 1),
    ):
        unchanged(pool, AllocatorError, "append_batch", seqs, numbers)


def test_the_last_sharer_of_a_batch_needs_no_copy():
    """Of three that all write into one block, two get copies, as in the loop."""
    pool = Reference(Geometry(3, 2))
    pool.allocate(0, 1)
    pool.fork(0, 1)
    pool.fork(0, 2)
    assert pool.append_batch([1, 0, 2], 1) == [Copy(0, 1), Copy(0, 2)]
    assert pool.num_free_blocks() == 0


def test_what_one_of_a_batch_releases_is_there_for_the_next():
    """Later ones use what the window of an earlier one has left; the other way is refused."""
    pool = Reference(Geometry(2, 2, window=1))
    pool.allocate(0, 3)
    pool.allocate(1, 0)
    unchanged(pool, OutOfBlocks, "append_batch", [1, 0], 1)
    pool.append_batch([0, 1], 1)
    assert (pool.block_table(0), pool.block_table(1)) == ([None, 1], [0])


# ------------------------------------------------------------------------------ resize


def test_resize_grows_and_shrinks():
    """Down to the highest block in use, and up without a bound."""
    pool = Reference(Geometry(4, 1))
    pool.allocate(0, 2)
    unchanged(pool, OutOfBlocks, "resize", 1)
    pool.resize(2)
    assert (pool.num_free_blocks(), pool.can_allocate(3)) == (0, Admission.NEVER)
    pool.resize(5)
    assert pool.free_blocks() == [2, 3, 4]
    assert (pool.can_allocate(3), pool.can_allocate(5)) == (Admission.OK, Admission.LATER)
    for size in (0, -1, 2.0, None):
        unchanged(pool, InvalidLength, "resize", size)


def test_resize_gives_up_cached_blocks_but_not_leased_ones():
    """What nobody has can go, with its contents."""
    pool = Reference(Geometry(3, 1))
    published(pool, 0, [1, 2, 3])
    lease = pool.begin_transfer(0)
    pool.free(0)
    unchanged(pool, OutOfBlocks, "resize", 1)
    pool.end_transfer(lease)
    pool.resize(2)
    assert (pool.lookup([1, 2, 3]), pool.free_blocks()) == (2, [0, 1])


# ------------------------------------------------------------------------------ groups

HYBRID = Geometry(4, 4, groups=[Group(4), Group(2, window=2), Group(4, num_blocks=3)])


def test_each_group_has_a_table_over_its_pool():
    """The first two share a pool, the third has one whose ids follow."""
    pool = Reference(HYBRID)
    pool.allocate(0, 4)
    assert [pool.block_table(0, group) for group in range(3)] == [[0], [1, 2], [4]]
    assert (pool.num_free_blocks(), pool.num_free_blocks(1)) == (1, 2)
    assert pool.free_blocks() == [3, 5, 6]


def test_groups_grow_together_or_not_at_all():
    """Whichever pool lacks a block, no group has grown."""
    pool = Reference(HYBRID)
    unchanged(pool, OutOfBlocks, "allocate", 0, 8)
    assert pool.can_allocate(8) is Admission.NEVER
    pool.allocate(0, 4)
    assert pool.can_allocate(4) is Admission.LATER
    pool.allocate(1, 0)
    unchanged(pool, OutOfBlocks, "append", 1, 1)
    pool = Reference(Geometry(9, 4, groups=[Group(4), Group(1, num_blocks=2)]))
    pool.allocate(0, 2)
    unchanged(pool, OutOfBlocks, "append", 0, 3)
    assert (pool.can_allocate(1), pool.can_allocate(3)) == (Admission.LATER, Admission.NEVER)
    unchanged(pool, OutOfBlocks, "allocate", 1, 1)


def test_each_group_has_its_window():
    """The second releases, the others do not, and what it releases is for both in its pool."""
    pool = Reference(HYBRID)
    pool.allocate(0, 4)
    pool.append(0, 2)
    tables = [pool.block_table(0, group) for group in range(3)]
    assert tables[0][0] == 0
    assert tables[1][0] is None
    assert tables[2] == [4, 5]
    assert pool.num_free_blocks() == 0
    pool.truncate(0, 5)
    unchanged(pool, InvalidLength, "truncate", 0, 3)
    pool.truncate(0, 0)
    assert (pool.num_free_blocks(), pool.num_free_blocks(1)) == (4, 3)


def test_what_one_group_releases_is_there_for_another_of_its_pool():
    """Also where the group that needs it comes first."""
    pool = Reference(Geometry(3, 4, groups=[Group(4), Group(2, window=1)]))
    pool.allocate(0, 4)
    assert pool.num_free_blocks() == 0
    unchanged(pool, OutOfBlocks, "append", 0, 3)  # two are released, and three are needed
    pool.append(0, 2)
    assert pool.block_table(0, 1)[:2] == [None, None]
    assert pool.num_free_blocks() == 0


def test_the_copies_of_a_fork_come_group_by_group():
    """Each group copies its own tail."""
    pool = Reference(Geometry(8, 4, groups=[Group(4), Group(2), Group(8, num_blocks=2)]))
    pool.allocate(0, 5)
    pool.fork(0, 1)
    copies = pool.append(1, 1)
    tails = [pool.block_table(0, group)[-1] for group in range(3)]
    assert [copy.source for copy in copies] == tails
    assert [copy.destination for copy in copies] == [
        pool.block_table(1, group)[-1] for group in range(3)
    ]


def test_a_lease_holds_in_every_pool():
    """And ends in every pool."""
    pool = Reference(HYBRID)
    pool.allocate(0, 4)
    lease = pool.begin_transfer(0)
    pool.free(0)
    assert (pool.num_free_blocks(), pool.num_free_blocks(1)) == (1, 2)
    pool.end_transfer(lease)
    assert (pool.num_free_blocks(), pool.num_free_blocks(1)) == (4, 3)
    unchanged(pool, UnknownLease, "end_transfer", lease)


def test_what_is_not_there_with_groups_says_so():
    """The prefix cache, swapping and resizing."""
    pool = Reference(HYBRID)
    pool.allocate(0, 1)
    for call, *arguments in (
        ("allocate_prompt", 1, [1]),
        ("append_tokens", 0, [1]),
        ("mark_written", 0, 1),
        ("lookup", [1]),
        ("reset_prefix_cache",),
        ("swap_out", 0),
        ("swap_in", 0),
        ("resize", 3),
    ):
        unchanged(pool, UnsupportedGeometry, call, *arguments)


# ------------------------------------------------------------------------------ random stories


class Story:
    """Calls drawn at random that make sense more often than not, for any geometry."""

    def __init__(self, seed, grouped=False):
        self.random = random.Random(seed)
        self.grouped = grouped
        self.calls = self._calls()

    def _calls(self):
        plain = ["allocate", "append", "append", "append_batch", "append_batch", "free", "free"]
        plain += ["fork", "truncate", "begin_transfer", "end_transfer", "end_transfer"]
        more = ["allocate_prompt"] * 3 + ["append_tokens", "append_tokens", "mark_written"]
        more += ["mark_written", "swap_out", "swap_in", "resize", "reset_prefix_cache"]
        return plain if self.grouped else plain + more

    def next(self, pool, leases):
        """The next call, and its arguments."""
        draw = self.random
        call = draw.choice(self.calls)
        live = sorted(pool._sequences)
        seq = draw.choice(live) if live else 0
        new = draw.choice([s for s in range(6) if s not in live] or [0])
        length = pool._sequences[seq].length if live else 0
        tokens = [draw.randrange(2) for _ in range(draw.randrange(8))]
        here = [s for s in live if pool._sequences[s].host is None or draw.random() < 0.1]
        away = [s for s in live if pool._sequences[s].host is not None]
        some = draw.sample(here, draw.randrange(min(3, len(here)) + 1))
        if call == "resize" or (call == "reset_prefix_cache" and draw.random() < 0.8):
            call = draw.choice(["resize", "append"])
        return {
            "allocate": ("allocate", new, draw.randrange(7)),
            "append": ("append", seq, draw.randrange(5)),
            "free": ("free", seq),
            "fork": ("fork", seq, new),
            "truncate": ("truncate", seq, draw.randrange(length + 1)),
            "append_batch": ("append_batch", some, [draw.randrange(4) for _ in some]),
            "begin_transfer": ("begin_transfer", seq),
            "end_transfer": ("end_transfer", draw.choice(leases) if leases else None),
            "allocate_prompt": ("allocate_prompt", new, tokens, draw.choice([1, 1.0])),
            "append_tokens": ("append_tokens", seq, tokens),
            "mark_written": (
                "mark_written",
                seq,
                draw.choice([length, draw.randrange(length + 1)]),
            ),
            "swap_out": ("swap_out", seq),
            "swap_in": ("swap_in", draw.choice(away) if away else seq),
            "resize": ("resize", draw.randrange(7, 12)),
            "reset_prefix_cache": ("reset_prefix_cache",),
        }[call]


GEOMETRIES = {
    "plain": Geometry(10, 2, num_host_blocks=6),
    "window": Geometry(10, 2, num_host_blocks=6, window=3),
    "small blocks": Geometry(10, 1, num_host_blocks=6, window=2, max_tokens=12),
    "groups": Geometry(14, 2, groups=[Group(2), Group(3, window=4), Group(1, 2, num_blocks=14)]),
}


def told(pool, call, leases):
    """The answer of one call, or the error; keeps the list of open leases."""
    method, *arguments = call
    try:
        answer = getattr(pool, method)(*arguments)
    except AllocatorError as error:
        return type(error)
    if method == "begin_transfer":
        leases.append(answer)
        return None
    if method == "end_transfer":
        leases.remove(arguments[0])
    return list(answer) if isinstance(answer, list) else answer


def assert_sound(pool):
    """What no story may break: all blocks are accounted for, once."""
    for number, part in enumerate(pool._pools):
        tables = [
            entry
            for group in pool._groups
            if group._supply is part
            for sequence in group._sequences.values()
            for entry in sequence.held()
        ]
        used = {*tables, *(block for blocks in part.leases.values() for block in blocks)}
        free = [*part.free, *part.idle]
        assert sorted([*used, *free]) == list(part.ids)
        assert +part.references == Counter(tables)
        assert pool.num_free_blocks(number) == len(free)
        assert set(part.idle) <= set(part.cache.contents)
        assert not set(part.free) & set(part.cache.contents)
        assert {b: c for c, b in part.cache.blocks.items()} == part.cache.contents
    hosts = [b for s in pool._sequences.values() for b in (s.host or []) if b is not None]
    assert sorted([*hosts, *pool._host._supply.free]) == list(pool._host._supply.ids)
    for group in pool._groups:
        for seq, sequence in group._sequences.items():
            assert sequence.length == pool._sequences[seq].length
            table = sequence.blocks if sequence.host is None else sequence.host
            assert len(table) == group._need(sequence.length)


KINDS = [Reference, Fifo, RandomOrder, OtherSideCopies, FirstBlockOne]


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_blocks_are_accounted_for_in_every_story(kind, name):
    """Free, idle, in tables or under leases: exactly one, and every count agrees."""
    answers = Counter()
    for seed in range(4):
        story, pool, leases = Story(seed, name == "groups"), kind(GEOMETRIES[name]), []
        for _ in range(150):
            call = story.next(pool, leases)
            before = frozen(pool)
            answer = told(pool, call, leases)
            failed = isinstance(answer, type)
            answers[answer if failed else "done"] += 1
            # Those two may keep plain free blocks in another order.
            if failed and kind not in (Fifo, RandomOrder):
                assert frozen(pool) == before
            assert_sound(pool)
    assert answers["done"] > 300
    assert answers[OutOfBlocks] > 5


def shown(pool):
    """All that can be seen of the tables, and what will be handed out or given up next."""
    return [
        [(seq, s.length, s.blocks, s.host) for seq, s in sorted(group._sequences.items())]
        for group in pool._groups
    ], [(part.free, part.idle, frozen(part.cache)) for part in pool._pools]


def loop(pool, seqs, numbers):
    """The batch as the loop that it stands for: the copies, or the first error."""
    copies = []
    try:
        for seq, number in zip(seqs, numbers, strict=True):
            copies += pool.append(seq, number)
    except AllocatorError as error:
        return type(error)
    return copies


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_batch_is_its_loop_or_nothing(name):
    """A twin that is told each batch as a loop agrees, and is refused where the batch is."""
    batches, refusals = 0, 0
    for seed in range(20):
        story, pool, leases = Story(seed, name == "groups"), Reference(GEOMETRIES[name]), []
        for _ in range(120):
            call = story.next(pool, leases)
            twin = copy.deepcopy(pool) if call[0] == "append_batch" else None
            answer = told(pool, call, leases)
            if twin is not None:
                # Of misuse a batch speaks before there is a refusal, and the loop does not.
                if answer is OutOfBlocks or not isinstance(answer, type):
                    assert loop(twin, *call[1:]) == answer
                if not isinstance(answer, type):
                    assert shown(twin) == shown(pool)
                    batches += len(call[1]) > 1
                refusals += answer is OutOfBlocks
    assert batches > 30
    assert refusals > 5


class Faults:
    """A checkpoint that raises when it is reached for the k-th time, and counts the points."""

    def __init__(self):
        self.left = None
        self.points = Counter()

    def __call__(self, point):
        self.points[point] += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise InjectedFault(point)


def failing(pool, faults, call, leases):
    """Let the call fail at its first checkpoint, at its second and so on, and then let it be.

    How often it failed, after something of it was done, and its answer.
    """
    for failures in range(100):
        before = frozen(pool)
        faults.left = failures
        try:
            answer = told(pool, call, leases)
        except InjectedFault:
            assert frozen(pool) == before, (call, failures)
        else:
            faults.left = None
            return failures, answer
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("kind", [Reference, OtherSideCopies], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_fault_at_any_checkpoint_leaves_everything_as_it_was(kind, name):
    """For every call of random stories and every k: all internal state is equal to what it was."""
    failed, faults = Counter(), Faults()
    for seed in range(8):
        story, leases = Story(seed, name == "groups"), []
        pool = kind(GEOMETRIES[name], checkpoint=faults)
        for _ in range(100):
            call = story.next(pool, leases)
            failures, _ = failing(pool, faults, call, leases)
            failed[call[0]] = max(failed[call[0]], failures)
            assert_sound(pool)
    some = {"allocate", "append", "append_batch", "fork", "begin_transfer"}
    more = {"allocate_prompt", "append_tokens", "mark_written", "swap_out", "swap_in", "resize"}
    for method in some if name == "groups" else some | more:
        # The second fault of a call comes when something has been done already.
        assert failed[method] > 1, method


def test_a_checkpoint_that_lets_pass_changes_nothing():
    """With one and without, the same tables, and the same blocks come next."""
    pools = [Reference(Geometry(4, 2)), Reference(Geometry(4, 2), checkpoint=Faults())]
    for pool in pools:
        pool.allocate(0, 3)
    assert shown(pools[0]) == shown(pools[1])


def test_even_a_failing_answer_undoes_the_call():
    """A store carries its copies out at the end; when that fails, nothing has happened."""

    class Store(Reference):
        broken = False

        def _answer(self, copies):
            if self.broken:
                raise MemoryError
            return copies

    pool = Store(Geometry(8, 2, num_host_blocks=4, window=2))
    published(pool, 0, [1, 2, 3, 4])
    pool.fork(0, 1)
    lease = pool.begin_transfer(0)
    pool.allocate(2, 3)
    pool.swap_out(2)
    pool.broken = True
    for call, *arguments in (
        ("allocate", 3, 1),
        ("append", 0, 1),
        ("append_tokens", 1, [5]),
        ("append_batch", [0, 1], 1),
        ("truncate", 0, 3),
        ("fork", 0, 3),
        ("free", 0),
        ("free", 2),
        ("allocate_prompt", 3, [1, 2, 5]),
        ("swap_out", 0),
        ("swap_in", 2),
        ("end_transfer", lease),
        ("reset_prefix_cache",),
        ("resize", 9),
    ):
        unchanged(pool, MemoryError, call, *arguments)


# ------------------------------------------------------------------------------ introspection


def test_counts_are_of_live_tables():
    """Neither leases nor the cache count, nor a sequence on the host."""
    pool = Reference(Geometry(3, 2, num_host_blocks=2))
    published(pool, 0, [1, 2])
    pool.begin_transfer(0)
    pool.fork(0, 1)
    assert [pool.ref_count(block) for block in range(3)] == [2, 0, 0]
    pool.swap_out(0)
    assert pool.ref_count(0) == 1
    pool.free(1)
    assert pool.ref_count(0) == 0
    assert pool.free_blocks() == [1, 2]


def test_other_types_say_the_same():
    """Arrays where all entries are blocks, a tuple where some are not."""
    pool = NumpyIds(Geometry(4, 2, window=2))
    pool.allocate(0, 4)
    assert pool.block_table(0).tolist() == [0, 1]
    pool.append(0, 1)
    assert pool.block_table(0) == (None, 1, 0)
    assert pool.free_blocks() == {2, 3}
