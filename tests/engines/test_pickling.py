"""Copies and fingerprints of allocators: nothing is left out, and what is shared is shared."""

import io
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from stacks import (
    Arrays,
    Copyable,
    Locked,
    Printed,
    Remembers,
    SavesSpace,
    SavesSpaceOtherwise,
    Stack,
    Tensors,
)

from kvspec.contract import Contract
from kvspec.driver.driver import Driver
from kvspec.engines.copies import copies, prints
from kvspec.engines.exploration import PRODUCT
from kvspec.engines.pickling import Pickler
from kvspec.geometry import Geometry
from kvspec.kernel.outcome import FULL
from kvspec.kernel.specification import Specification
from kvspec.rooms import specification
from kvspec.suite.exploring import explore_allocator


def small() -> Specification:
    return specification(Geometry(2, 2), Contract(), ("core", "sharing"))


def pickled(thing: Any) -> bytes:
    stream = io.BytesIO()
    Pickler(stream).dump(thing)
    return stream.getvalue()


def copied(thing: Any) -> Any:
    return pickle.loads(pickled(thing))


def copy_of(kind: type) -> tuple[Any, Any]:
    """An allocator, and its copy."""
    driver = Driver(kind, small())
    way = copies(driver)
    assert way is not None
    return driver.held(())[0], way.again(way.keep(driver, ()), ()).held(())[0]


# ------------------------------------------------------------------------------ allocators


@pytest.mark.parametrize("kind", [SavesSpace, SavesSpaceOtherwise])
def test_what_a_type_leaves_out_of_its_own_pickle_is_neither_lost_nor_hidden(kind):
    """The fault shows in one order of the free list, which its pickle forgets."""
    report = explore_allocator(kind, Geometry(3, 2), 2)
    assert report.searches[0].mode == PRODUCT
    assert report.trace is not None
    assert (report.trace.law, report.reproduced) == ("conservation", 5)


def test_what_holds_a_lock_cannot_be_copied():
    """Its stories are told again."""
    ways = {kind: copies(Driver(kind, small())) for kind in (Stack, Copyable, Locked)}
    assert [way is None for way in ways.values()] == [False, False, True]


@pytest.mark.parametrize("kind", [Stack, Copyable])
def test_a_copy_shares_nothing_with_what_it_is_a_copy_of(kind):
    """Nor do two copies of one allocator."""
    driver = Driver(kind, small())
    way = copies(driver)
    assert way is not None
    kept = way.keep(driver, ())
    first, second = way.again(kept, ()), way.again(kept, ())
    call = driver.spec.kinds["allocate"](0, 1)
    for other in (first, second, driver, way.again(kept, ())):
        assert other.perform(call, driver.spec.initial(), FULL).answer.kind == "done"


def test_functions_over_one_variable_are_so_in_the_copy():
    """Neither is over the variable of the original."""
    made, other = copy_of(Copyable)
    other.more()
    other.more(2)
    assert (other.count(), made.count()) == (3, 0)
    assert pickled(other) != pickled(made)


def test_what_weak_collections_find_is_copied_with_the_rest():
    """A deep copy of one would find what the original has."""
    made, other = copy_of(Remembers)
    assert other.book[0] is other.page
    assert list(other.pages) == [other.page]
    assert other.page is not made.page


def test_tensors_are_copied_with_the_memory_that_they_share():
    """A view of a tensor is one of the copy, whatever its type, shape and strides."""
    torch = pytest.importorskip("torch", reason="torch is an extra")

    made, other = copy_of(Tensors)
    for name in ("whole", "across", "empty", "flags", "learned"):
        mine, theirs = getattr(made, name), getattr(other, name)
        assert torch.equal(mine, theirs)
        assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
    other.across[0, 0] = 9
    assert other.whole.tolist() == [[0, 9, 2], [3, 4, 5]]
    assert made.whole.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert other.learned.requires_grad


def test_arrays_are_copied_with_the_memory_that_they_share():
    """In the same way; and the copy of a copy is the same again."""
    made, other = copy_of(Arrays)
    for name in ("whole", "across", "empty", "flags", "names"):
        mine, theirs = getattr(made, name), getattr(other, name)
        assert np.array_equal(mine, theirs)
        assert (mine.dtype, mine.strides) == (theirs.dtype, theirs.strides)
    assert not other.flags.flags.writeable
    assert pickled(copied(other)) == pickled(other) == pickled(made)
    other.across[0, 0] = 9
    assert other.whole.tolist() == [[0, 9, 2], [3, 4, 5]]
    assert made.whole.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_its_own_fingerprint_is_asked_for_where_there_is_one():
    """Otherwise the pickle is the fingerprint, if there is one."""
    found = {kind: prints(Driver(kind, small())) for kind in (Stack, Printed, Locked)}
    assert [way and way.what for way in found.values()] == [
        "its pickle",
        "its own fingerprint()",
        None,
    ]


# ------------------------------------------------------------------------------ what is shared


def tensors(count: int) -> Any:
    torch = pytest.importorskip("torch", reason="torch is an extra")
    return torch.zeros(count)


def arrays(count: int) -> Any:
    return np.zeros(count)


@pytest.mark.parametrize("zeros", [tensors, arrays])
def test_two_views_of_one_memory_are_not_two_memories(zeros: Callable[[int], Any]) -> None:
    """Though they show the same: what is written into the one shows in the other."""
    one, other = zeros(3), zeros(3)
    for alike, apart in (((one, one[:]), (one, other[:])), ((one[:2], one[1:]), (one[:2], other))):
        assert pickled(alike) != pickled(apart)
    assert pickled((one, one[:])) == pickled((other, other[:]))


def test_an_array_and_a_tensor_of_one_memory_are_refused():
    """A copy would be of two memories."""
    torch = pytest.importorskip("torch", reason="torch is an extra")

    array, tensor = np.zeros(3), torch.zeros(3)
    for pair in ((array, torch.from_numpy(array)), (torch.from_numpy(array), array)):
        with pytest.raises(pickle.PicklingError, match="share their memory"):
            pickled(pair)
    with pytest.raises(pickle.PicklingError, match="not an array of numbers"):
        pickled((tensor, tensor.numpy()))


class Labelled(np.ndarray[Any, Any]):
    """An array of which more is known."""


class Uses(np.ndarray[Any, Any]):
    __slots__ = ("uses",)


def test_an_array_with_attributes_is_refused():
    """Numpy's own pickles would leave them out."""
    labelled = Labelled((2,), np.int64)
    labelled[:] = 1
    assert copied(labelled).tolist() == [1, 1]
    labelled.label = "free"  # type: ignore[attr-defined]  # it has no annotations
    counted = Uses((2,), np.int64)
    counted.uses = 3
    for odd in (labelled, counted):
        with pytest.raises(pickle.PicklingError, match="an array with attributes"):
            pickled(odd)


def test_a_tensor_that_is_more_than_numbers_is_refused():
    torch = pytest.importorskip("torch", reason="torch is an extra")

    noted, learning = torch.ones(2), torch.ones(2, requires_grad=True)
    noted.users = [1]
    learning.grad = torch.ones(2)
    for odd in (learning * 2, torch.nn.Parameter(torch.ones(2)), noted, learning):
        with pytest.raises(pickle.PicklingError, match="more than numbers"):
            pickled(odd)


# ------------------------------------------------------------------------------ what is hidden


class Colour(Enum):
    RED = 1


class One:
    """There is one of it."""

    def __reduce__(self) -> str:
        return "THE_ONE"


THE_ONE = One()


@frozen
class Slotted:
    block: int
    users: tuple[int, ...]


class Hiding(bytearray):
    """A built-in type, and not all that it has in it."""

    def __reduce__(self) -> Any:
        return Hiding, ()


@pytest.mark.parametrize(
    "thing",
    [
        Slotted(1, (2, 3)),
        Fraction(1, 3),
        OrderedDict({2: "b", 1: "a"}),
        Geometry(2, 2),
        [print, len, Stack, pytest.raises],
    ],
    ids=lambda made: type(made).__name__,
)
def test_what_a_library_has_made_is_copied(thing):
    """With slots and with pickles of its own."""
    assert copied(thing) == thing
    assert pickled(copied(thing)) == pickled(thing)


def test_what_there_is_one_of_stays_the_one():
    assert copied([Colour.RED, THE_ONE])[0] is Colour.RED
    assert copied([Colour.RED, THE_ONE])[1] is THE_ONE


def test_a_generator_of_numbers_goes_on_where_it_was():
    """Its pickles are of the library that made what it has inside."""
    mine = random.Random(7)
    mine.random()
    theirs = copied(mine)
    assert [mine.random() for _ in range(3)] == [theirs.random() for _ in range(3)]


def test_a_built_in_type_with_pickles_of_somebody_else_is_refused():
    """What they leave out is nothing that another can know."""
    with pytest.raises(pickle.PicklingError, match="Hiding is a bytearray with its own pickles"):
        pickled(Hiding([1]))


class SortedList(list[int]):
    """It shows its elements in another order than it has them, as the others below."""

    def __iter__(self) -> Any:
        return iter(sorted(self[:]))

    def extend(self, more: Any) -> None:
        """Nothing."""


class SortedQueue(deque[int]):
    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))

    def __reduce__(self) -> Any:
        return SortedQueue, ()


class SortedDict(dict[int, int]):
    def items(self) -> Any:
        return sorted(super().items())

    def __setitem__(self, key: int, value: int) -> None:
        """Nothing."""


class SortedOrder(OrderedDict[int, int]):
    def items(self) -> Any:
        return sorted(super().items())


class Counted(Counter[int]):
    """What its base makes of it has no attributes."""


class Defaults(defaultdict[int, int]):
    def items(self) -> Any:
        return ()


CONTAINERS: list[tuple[Callable[[list[int]], Any], Callable[[Any], list[Any]]]] = [
    (SortedList, list.__iter__),
    (SortedQueue, deque.__iter__),
    (lambda keys: SortedDict(dict.fromkeys(keys)), dict.__iter__),
    (SortedOrder.fromkeys, dict.__iter__),
    (Counted, dict.__iter__),
]


@pytest.mark.parametrize(
    ("make", "has"), CONTAINERS, ids=[type(m([])).__name__ for m, _ in CONTAINERS]
)
def test_elements_are_taken_as_they_are_and_not_as_they_are_shown(make, has):
    """The order of a free list decides what comes, whatever its type shows of it."""
    one, other = make([2, 0, 1]), make([0, 1, 2])
    one.note = other.note = "kept"
    assert pickled(one) != pickled(other)
    again = copied(one)
    assert type(again) is type(one)
    assert list(has(again)) == list(has(one)) == [2, 0, 1]
    assert again.note == "kept"


def test_what_a_container_has_besides_its_elements_is_copied():
    queue, defaults = SortedQueue([2, 1], 2), Defaults(int, {1: 5})
    again, others = copied((queue, defaults))
    assert again.maxlen == 2
    assert (others[1], others[7]) == (5, 0)


class Veiled:
    """It hides its attributes from whoever asks for all of them."""

    def __init__(self, block: int) -> None:
        self.block = block

    def __getattribute__(self, name: str) -> Any:
        return {} if name == "__dict__" else object.__getattribute__(self, name)


class Shown:
    """It has a dictionary to show, and another one."""

    def __init__(self, block: int) -> None:
        self.block = block

    @property
    def __dict__(self) -> Any:
        return {}


class Slot:
    __slots__ = ("block",)

    def __init__(self, block: int) -> None:
        self.block = block


class Hidden(Slot):
    """A property has taken the name of the slot, which has the block still."""

    __slots__ = ()

    def __init__(self, block: int) -> None:
        Slot.block.__set__(self, block)  # type: ignore[attr-defined]  # the slot's descriptor

    @property
    def block(self) -> int:  # type: ignore[override]  # that is the point
        return 0


class Twice(Slot):
    """Two slots of one name."""

    __slots__ = ("block",)

    def __init__(self, block: int) -> None:
        self.block = 0
        Slot.block.__set__(self, block)  # type: ignore[attr-defined]  # the slot's descriptor


class Pair(tuple[int, ...]):
    def __iter__(self) -> Any:
        return iter(())


class Number(int):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Day(date):
    """What it is made of in C has no attributes."""


def noted(thing: Any, block: int) -> Any:
    thing.note = block
    return thing


MADE: dict[str, Callable[[int], Any]] = {
    "veiled": Veiled,
    "hidden": Hidden,
    "twice": Twice,
    "pair": lambda block: Pair((block,)),
    "number": Number,
    "day": lambda block: noted(Day(2026, 1, 1), block),
    "counter": lambda block: noted(Counter([1]), block),
    "generator": lambda block: noted(random.Random(1), block),
    "error": lambda block: noted(ValueError("one"), block),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_attributes_are_taken_as_they_are_and_not_as_they_are_shown(make):
    """Whatever hides them, or makes its objects without them."""
    assert pickled(make(1)) != pickled(make(2))
    assert pickled(copied(make(2))) == pickled(make(2))
    assert type(copied(make(1))) is type(make(1))


def test_what_hides_its_dictionary_is_refused():
    with pytest.raises(pickle.PicklingError, match="Shown hides its dictionary"):
        pickled(Shown(1))


@frozen(cache_hash=True)
class Key:
    tokens: tuple[int, ...]


def test_a_hash_that_is_kept_is_computed_again_in_the_copy():
    key = Key((1, 2))
    table = {key: 3}
    assert copied(table)[Key((1, 2))] == 3


def test_a_class_of_a_function_is_the_same_in_the_copy():
    class Local:
        pass

    made = Local()
    made.block = 3  # type: ignore[attr-defined]  # it has no annotations
    other = copied(made)
    assert (type(other), other.block) == (Local, 3)
