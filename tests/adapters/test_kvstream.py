"""The adapter of kvstream's block manager and prefix cache: what it translates."""

import pytest

from kvimpls.adapters.engines import folder
from kvspec import Geometry, OutOfBlocks, UnsupportedGeometry

try:
    folder("kvstream", "0.1.0")
except ModuleNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

from kvimpls.adapters.kvstream_blocks.pages import (
    CopyingPages,
    Pages,
    PagesAskingBeforeSwap,
    PagesFromFirstToken,
)
from kvimpls.adapters.kvstream_blocks.prefix import (
    ExpiringPrefixPages,
    FilledPrefixPages,
    PrefixPages,
)

GEOMETRY = Geometry(4, 4, num_host_blocks=3)
PLAIN = [Pages, PagesFromFirstToken, CopyingPages, PagesAskingBeforeSwap]
PREFIX = [PrefixPages, FilledPrefixPages, ExpiringPrefixPages]


@pytest.mark.parametrize("make", PLAIN + PREFIX)
def test_all_pages_can_be_used_and_lie_in_range(make: type[Pages]) -> None:
    """One sequence can fill the pool."""
    pages = make(GEOMETRY)
    pages.allocate(0, GEOMETRY.capacity)
    assert sorted(pages.block_table(0)) == [0, 1, 2, 3]
    assert pages.num_free_blocks() == 0


@pytest.mark.parametrize("make", PLAIN + PREFIX)
@pytest.mark.parametrize("tokens", [1, 4, 10**12])
def test_a_refusal_is_out_of_blocks_and_changes_nothing(make: type[Pages], tokens: int) -> None:
    """The engine's False and its MemoryError are one refusal, for many tokens as for one."""
    pages = make(GEOMETRY)
    pages.allocate(0, GEOMETRY.capacity)
    before = repr(pages)
    with pytest.raises(OutOfBlocks):
        pages.allocate(1, tokens)
    with pytest.raises(OutOfBlocks):
        pages.append(0, tokens)
    assert repr(pages) == before


def test_a_write_into_a_shared_page_is_in_place_as_in_the_engine() -> None:
    """`generate` calls `append_slot` and nothing else."""
    pages = Pages(GEOMETRY)
    pages.allocate(0, 5)
    pages.fork(0, 1)
    assert pages.append(1, 1) == []
    assert pages.block_table(0) == pages.block_table(1)


def test_a_careful_caller_has_a_shared_page_copied_before_it_writes() -> None:
    """`cow_write` is the writer's call, and its copy is reported."""
    pages = CopyingPages(GEOMETRY)
    pages.allocate(0, 5)
    pages.fork(0, 1)
    (copy,) = pages.append(1, 1)
    assert (copy.source, copy.destination) == (pages.block_table(0)[1], pages.block_table(1)[1])


def test_the_table_is_a_snapshot() -> None:
    """Later changes on either side do not show in the other."""
    pages = Pages(GEOMETRY)
    pages.allocate(0, 4)
    table = pages.block_table(0)
    pages.append(0, 1)
    assert len(table) == 1


def test_host_pages_are_counted_from_zero() -> None:
    """The engine's ids of host pages follow the device's, and the interface's do not."""
    pages = Pages(GEOMETRY)
    pages.allocate(0, 8)
    table = pages.block_table(0)
    out = pages.swap_out(0)
    assert [copy.source for copy in out] == table
    assert [copy.destination for copy in out] == pages.host_block_table(0)
    assert set(pages.host_block_table(0)) <= {0, 1, 2}
    assert pages.block_table(0) == []
    assert pages.num_free_host_blocks() == 1
    back = pages.swap_in(0)
    assert [copy.destination for copy in back] == pages.block_table(0)


def test_a_swap_that_is_asked_for_first_is_refused_whole() -> None:
    """The question is the engine's own, `can_allocate` for the host."""
    pages = PagesAskingBeforeSwap(GEOMETRY)
    pages.allocate(0, GEOMETRY.capacity)
    before = repr(pages)
    with pytest.raises(OutOfBlocks):
        pages.swap_out(0)
    assert repr(pages) == before


@pytest.mark.parametrize("make", PREFIX)
def test_a_registered_prompt_is_found_under_its_key(make: type[PrefixPages]) -> None:
    """Whole pages are found, and the three keys 1, True and "1" are three."""
    pages = make(GEOMETRY)
    assert pages.allocate_prompt(0, range(6), key=1) == 0
    pages.mark_written(0, 6)
    assert pages.lookup(range(9), key=1) == 4
    assert pages.lookup(range(9), key=True) == pages.lookup(range(9), key="1") == 0
    pages.reset_prefix_cache()
    assert pages.lookup(range(9), key=1) == 0


def test_a_window_and_a_bound_are_unsupported() -> None:
    """The engine has no setting for either."""
    for geometry in (Geometry(4, 4, window=4), Geometry(4, 4, max_tokens=8)):
        with pytest.raises(UnsupportedGeometry):
            Pages(geometry)
