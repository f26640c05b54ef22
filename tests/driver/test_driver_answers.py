"""Odd answers: each is a violation of the right law, and the text names what was wrong."""

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from enum import Enum, StrEnum

import numpy as np
import pytest
from hostile import Plain, answering, doing, raising, reported, walk

from kvimpls.reference import Reference
from kvspec import Geometry, OutOfBlocks
from kvspec.driver.target import load, target
from kvspec.engines.ledger import Ledger
from kvspec.suite.check import check_allocator, run_witnesses

METHODS = (
    "allocate",
    "append",
    "free",
    "block_table",
    "num_free_blocks",
    "can_allocate",
    "fork",
    "begin_transfer",
    "end_transfer",
)


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


class Quitter(Exception):
    def __str__(self):
        raise SystemExit("in the middle of a text")


class Unprintable:
    def __repr__(self):
        raise SystemExit("in the middle of a repr")


class Anonymous:
    """Has the repr that every object has, with its address."""


class Liar(int):
    """An int that is equal to everything, and gives another number when it is asked for one."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __index__(self):
        return 7

    __int__ = __index__


class LyingArrayInt(np.int64):
    def __int__(self):
        return 7


class Endless(Sequence):
    """A sequence of zeros that says that it is empty and has no end."""

    def __len__(self):
        return 0

    def __getitem__(self, index):
        return 0


def recursion(right):
    return recursion(right)


def address(right):
    raise LookupError(f"no such thing: {Anonymous()}, {[Anonymous()]}")


RAISED = {
    "KeyError": (KeyError("k"), "raised KeyError('k')"),
    "SystemExit": (SystemExit(3), "raised SystemExit('3')"),
    "GeneratorExit": (GeneratorExit(), "raised GeneratorExit"),
    "MemoryError": (MemoryError(), "raised MemoryError"),
    "StopIteration": (StopIteration([(0, 1)]), "raised StopIteration('[(0, 1)]')"),
    "StopAsyncIteration": (StopAsyncIteration(), "raised StopAsyncIteration"),
    "skip": (pytest.skip.Exception("later"), "raised Skipped('later')"),
    "cancelled": (asyncio.CancelledError(), "raised CancelledError"),
    "not implemented": (NotImplementedError(), "NotImplementedError (claimed but not implemented)"),
    "no text": (Mute(), "raised Mute"),
    "text that exits": (Quitter(), "raised Quitter"),
    "text of lines": (ValueError("one\n  two\r\n\tthree"), "raised ValueError('one two three')"),
    "text of markup": (ValueError("[/red] [bold]"), "ValueError('[/red] [bold]')"),
    "text of surrogates": (ValueError("\ud800"), "ValueError('\\ud800')"),
    "text without end": (ValueError("x" * 10**6), "xxx..."),
    "group": (
        ExceptionGroup("many", [OutOfBlocks(), ValueError()]),
        "raised ExceptionGroup('many (2 sub-exceptions)')",
    ),
    "group of exits": (
        BaseExceptionGroup("many", [SystemExit()]),
        "raised BaseExceptionGroup('many (1 sub-exception)')",
    ),
}


@pytest.mark.parametrize(("error", "text"), RAISED.values(), ids=RAISED)
@pytest.mark.parametrize("method", ["allocate", "block_table"])
def test_whatever_is_raised_is_reported(method, error, text):
    """An exception outside the interface breaks well-formed, under its own name and text."""
    reported(raising(method, error), "well-formed", text)


@pytest.mark.parametrize("method", METHODS)
def test_whoever_raises_is_reported(method):
    """Any method may raise what it should not."""
    report = reported(raising(method, KeyError("k")), "well-formed", "raised KeyError")
    because = report.trace.breaches[0].because
    last = report.trace.steps[-1].operation.method
    assert because.startswith("the call") if last == method else because.startswith(method)


@pytest.mark.parametrize("method", METHODS)
def test_whoever_is_not_implemented_is_reported(method):
    """A claimed method that raises NotImplementedError is named as claimed but not implemented."""
    reported(raising(method, NotImplementedError("todo")), "well-formed", "claimed but not impl")


@pytest.mark.parametrize("method", ["allocate", "block_table", "num_free_blocks"])
def test_endless_recursion_is_reported(method):
    """A real RecursionError is an outcome, and the suite has the stack that it needs."""
    reported(doing(method, recursion), "well-formed", "raised RecursionError")


@pytest.mark.parametrize("method", ["allocate", "block_table"])
def test_no_address_reaches_a_text(method):
    """What differs from run to run is left out of what was raised."""
    reported(doing(method, address), "well-formed", "no such thing: <", "Anonymous object>, [<")


@pytest.mark.parametrize("method", ["allocate", "block_table", "num_free_blocks"])
def test_a_keyboard_interrupt_stops_the_suite(method):
    """KeyboardInterrupt goes through, whoever raised it: a Ctrl-C must always stop the suite."""
    with pytest.raises(KeyboardInterrupt):
        check_allocator(raising(method, KeyboardInterrupt()), profile="quick")


TABLES = {
    "None": (None, "the table is None (NoneType), not a list, tuple or array"),
    "int": (3, "the table is 3 (int), not a list"),
    "str": ("01", "the table is '01' (str)"),
    "bytes": (b"\0", r"the table is b'\x00' (bytes)"),
    "bytearray": (bytearray(1), "(bytearray)"),
    "dict": ({0: 0}, "the table is {0: 0} (dict)"),
    "set": ({0}, "the table is a set, which has no order"),
    "generator": ((i for i in range(1)), "(generator), not a list"),
    "object": (Anonymous(), "Anonymous object> (Anonymous), not a list"),
    "unprintable": (Unprintable(), "something without a repr (Unprintable)"),
    "class": (np.ndarray, "TypeError"),
    "floats": ([0.0], "entry 0 is 0.0 (float), not an int"),
    "strs": (["0"], "entry 0 is '0' (str), not an int"),
    "bytes entries": ([b"0"], "entry 0 is b'0' (bytes), not an int"),
    "bools": ([True], "entry 0 is True (bool), not an int"),
    "Nones": ([None], "entry 0 is None (NoneType), not an int"),
    "nested": ([[0]], "entry 0 is [0] (list), not an int"),
    "too large": ([99], "entry 0 is 99, not in 0.."),
    "negative": ([-1], "entry 0 is -1, not in 0.."),
    "enormous": ([10**5000], "entry 0 is an int of 16610 bits"),
    "lying int": ([Liar(0)], "entry 0 is 0 (Liar), not an int"),
    "lying numpy int": ([LyingArrayInt(0)], "(LyingArrayInt), not an int"),
    "timedelta": ([np.timedelta64(0, "s")], "(timedelta64), not an int"),
    "float array": (np.array([0.0]), "entry 0 is 0.0 (float), not an int"),
    "bool array": (np.array([True]), "entry 0 is True (bool), not an int"),
    "nested array": (np.array([[0], [1]]), "entry 0 is [0] (list), not an int"),
    "array of objects": (np.array([Anonymous()]), "Anonymous object> (Anonymous), not an int"),
    "array without dimensions": (np.array(0), "the table is array(0) (ndarray)"),
    "array of a str": (np.array("01"), "the table is array('01', dtype='<U2') (ndarray)"),
    "endless": (Endless(), "the table has more than"),
    "a matrix": (np.zeros((9, 9), int), "entry 0 is [0, 0, 0, 0, 0, 0, 0, 0, 0] (list)"),
}


@pytest.mark.parametrize(("table", "text"), TABLES.values(), ids=TABLES)
def test_a_table_that_is_none_is_reported(table, text):
    """What is no list, tuple or array of ids in range breaks well-formed, and is shown."""
    reported(answering("block_table", table), "well-formed", "block_table(A)", text)


def endless_copies(right):
    return itertools.repeat((0, 1))


def failing_copies(right):
    return ((0, 1 // zero) for zero in (0,))


def coroutine(right):
    async def answer():
        return right

    return answer()


COPIES = {
    "int": (3, "the answer is 3 (int)"),
    "str": ("ab", "the answer is 'ab' (str)"),
    "bytes": (b"ab", "the answer is b'ab' (bytes)"),
    "bool": (True, "the answer is True (bool)"),
    "NotImplemented": (NotImplemented, "NotImplemented (NotImplementedType)"),
    "dict": ({0: 1}, "the answer is {0: 1} (dict)"),
    "set": ({(0, 1)}, "the answer is a set, which has no order"),
    "ints": ([0], "copy 0 is 0 (int)"),
    "strs": (["ab"], "copy 0 is 'ab' (str)"),
    "sets": ([{0, 1}], "copy 0 is a set, which has no order"),
    "dicts": ([{0: 1}], "copy 0 is {0: 1} (dict)"),
    "triples": ([(0, 1, 2)], "copy 0 is (0, 1, 2) (tuple), not a pair"),
    "singles": ([(0,)], "copy 0 is (0,) (tuple), not a pair"),
    "long": ([range(9)], "copy 0 has more than 3 entries"),
    "endless ends": ([itertools.count()], "copy 0 has more than 3 entries"),
    "floats": ([(0.0, 1)], "an end of copy 0 is 0.0 (float), not an int"),
    "bools": ([(True, 0)], "an end of copy 0 is True (bool), not an int"),
    "strs in pairs": ([("0", "1")], "an end of copy 0 is '0' (str), not an int"),
    "too large": ([(0, 99)], "an end of copy 0 is 99, not in 0.."),
    "negative": ([(-1, 0)], "an end of copy 0 is -1, not in 0.."),
    "lying": ([(Liar(0), 1)], "an end of copy 0 is 0 (Liar), not an int"),
    "array of triples": (np.zeros((1, 3), int), "copy 0 is [0, 0, 0] (list), not a pair"),
    "array of floats": (np.zeros((1, 2)), "an end of copy 0 is 0.0 (float), not an int"),
    "flat array": (np.zeros(2, int), "copy 0 is 0 (int)"),
    "one array": (np.array(3), "the answer is array(3) (ndarray)"),
}


@pytest.mark.parametrize(("copies", "text"), COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("method", ["allocate", "free"])
def test_copies_that_are_none_are_reported(method, copies, text):
    """What is neither None nor pairs of ids in range breaks well-formed, and is shown."""
    reported(answering(method, copies), "well-formed", text)


@pytest.mark.parametrize(
    ("deed", "text"),
    [
        (endless_copies, "the answer has more than"),
        (failing_copies, "raised ZeroDivisionError"),
        (coroutine, "the answer is a coroutine"),
    ],
)
@pytest.mark.parametrize("method", ["allocate", "append", "free", "fork"])
def test_lazy_answers_that_go_wrong_are_reported(method, deed, text):
    """Endless and failing generators of copies, and coroutines, are outcomes too."""
    reported(doing(method, deed), "well-formed", text)


@pytest.mark.parametrize("method", ["block_table", "num_free_blocks", "can_allocate"])
def test_asynchronous_queries_are_reported(method):
    """A coroutine is no answer, and is not left for Python to warn of."""
    reported(doing(method, coroutine), "well-formed", "coroutine")


COUNTS = {
    "float": (4.0, "the count is 4.0 (float), not an int"),
    "str": ("4", "the count is '4' (str), not an int"),
    "None": (None, "the count is None (NoneType), not an int"),
    "bool": (True, "the count is True (bool), not an int"),
    "list": ([4], "the count is [4] (list), not an int"),
    "numpy float": (np.float64(4), "(float64), not an int"),
    "array": (np.array(4), "the count is array(4) (ndarray), not an int"),
    "lying": (Liar(4), "the count is 4 (Liar), not an int"),
    "enormous": (10**5000, "the count is an int of 16610 bits"),
}


@pytest.mark.parametrize(("count", "text"), COUNTS.values(), ids=COUNTS)
def test_a_count_that_is_none_is_reported(count, text):
    """A count that is no int breaks well-formed, and is shown."""
    reported(answering("num_free_blocks", count), "well-formed", "num_free_blocks()", text)


@pytest.mark.parametrize("count", [-1, 10**9, -(2**62)])
def test_a_count_that_cannot_be_breaks_conservation(count):
    """An absurd count is still a count, and judged as one."""
    reported(answering("num_free_blocks", count), "conservation", f"the allocator says {count}")


Foreign = Enum("Foreign", ["OK", "LATER", "NEVER"])
Otherwise = Enum("Otherwise", ["FINE", "WAIT", "NO"])


class Nameless:
    @property
    def name(self):
        raise KeyError("name")


ADMISSIONS = {
    "bool": (True, "the answer is True (bool), not OK, LATER or NEVER"),
    "None": (None, "the answer is None (NoneType), not OK, LATER or NEVER"),
    "lower case": ("ok", "the answer is 'ok' (str), not OK, LATER or NEVER"),
    "int": (0, "the answer is 0 (int), not OK"),
    "other names": (Otherwise.FINE, "(Otherwise), not OK"),
    "enum itself": (Foreign, "not OK, LATER or NEVER"),
    "failing name": (Nameless(), "raised KeyError"),
}


@pytest.mark.parametrize(("admission", "text"), ADMISSIONS.values(), ids=ADMISSIONS)
def test_an_admission_that_is_none_is_reported(admission, text):
    """What is neither the enum nor one of its names breaks well-formed, and is shown."""
    report = reported(answering("can_allocate", admission), "well-formed", text)
    assert report.trace.steps[-1].operation.method == "can_allocate"


# ------------------------------------------------------------------------ what is fine


def as_map(copies):
    return map(list, copies)


def as_items(copies):
    return dict(copies).items()


def as_pairs_of_numpy(copies):
    return [tuple(np.int32(end) for end in copy) for copy in copies]


def as_array(dtype):
    return lambda copies: np.array(copies, dtype=dtype).reshape(-1, 2)


FINE = {
    "tuples": ("block_table", tuple),
    "deques": ("block_table", deque),
    "int64 arrays": ("block_table", lambda table: np.array(table, np.int64)),
    "int32 arrays": ("block_table", lambda table: np.array(table, np.int32)),
    "uint8 arrays": ("block_table", lambda table: np.array(table, np.uint8)),
    "numpy ints": ("block_table", lambda table: [np.int16(block) for block in table]),
    "memory views": ("block_table", lambda table: memoryview(np.array(table, np.int32))),
    "generators of copies": ("append", iter),
    "maps to lists": ("append", as_map),
    "pairs in a dict": ("append", as_items),
    "pairs of numpy ints": ("append", as_pairs_of_numpy),
    "int64 arrays of copies": ("append", as_array(np.int64)),
    "uint8 arrays of copies": ("append", as_array(np.uint8)),
    "None for no copies": ("append", lambda copies: copies or None),
    "numpy counts": ("num_free_blocks", np.uint32),
    "names": ("can_allocate", lambda admission: admission.name),
    "foreign enums": ("can_allocate", lambda admission: Foreign[admission.name]),
    "string enums": (
        "can_allocate",
        lambda admission: StrEnum("S", {"OK": "a", "LATER": "b", "NEVER": "c"})[admission.name],
    ),
}


@pytest.mark.parametrize(("method", "deed"), FINE.values(), ids=FINE)
def test_other_types_of_right_answers_are_fine(method, deed):
    """Whatever holds the right numbers in order is as good as a list of ints."""
    for seed in range(4):
        assert not walk(doing(method, deed), seed).breaches


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("method", ["block_table", "append"])
def test_torch_tensors_are_fine(method, dtype):
    """Tensors are tables, and lists of copies."""
    torch = pytest.importorskip("torch", reason="torch is an extra")

    def tensor(right):
        shape = (-1,) if method == "block_table" else (-1, 2)
        return torch.tensor(right, dtype=getattr(torch, dtype)).reshape(shape)

    for seed in range(3):
        assert not walk(doing(method, tensor), seed).breaches


STANDALONE = '''
"""A slab of one sequence a block, by someone who has never heard of kvspec."""

from __future__ import annotations

from dataclasses import dataclass, field


class PoolError(Exception):
    pass


class OutOfBlocks(PoolError):
    pass


class UnknownSequence(KeyError):
    pass


class NoSuchThing(UnknownSequence):
    pass


class SequenceExists(PoolError):
    pass


class TwiceTheSame(SequenceExists):
    pass


class InvalidLength(ValueError):
    pass


@dataclass
class Slab:
    geometry: object
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        self.idle = list(range(self.geometry.num_blocks))

    def _tokens(self, seq, num_tokens):
        if type(num_tokens) is not int or num_tokens < 0:
            raise InvalidLength(num_tokens)
        length = self.lengths.get(seq, 0) + num_tokens
        if self.geometry.max_tokens is not None and length > self.geometry.max_tokens:
            raise InvalidLength(num_tokens)
        return length

    def _grow(self, seq, length):
        lacking = -(-length // self.geometry.block_size) - len(self.tables.get(seq, ()))
        if lacking > len(self.idle):
            raise OutOfBlocks
        table = self.tables.setdefault(seq, [])
        for _ in range(lacking):
            table.append(self.idle.pop())
        self.lengths[seq] = length

    def allocate(self, seq, num_tokens):
        if seq in self.tables:
            raise TwiceTheSame(seq)
        self._grow(seq, self._tokens(seq, num_tokens))

    def append(self, seq, num_tokens):
        if seq not in self.tables:
            raise NoSuchThing(seq)
        self._grow(seq, self._tokens(seq, num_tokens))

    def free(self, seq):
        if seq not in self.tables:
            raise NoSuchThing(seq)
        self.idle += self.tables.pop(seq)
        del self.lengths[seq]

    def block_table(self, seq):
        if seq not in self.tables:
            raise NoSuchThing(seq)
        return tuple(self.tables[seq])

    def num_free_blocks(self):
        return len(self.idle)
'''


def test_an_allocator_need_not_know_kvspec(tmp_path):
    """Errors are known by the name of a class or of one of its bases, whoever defined them."""
    path = tmp_path / "slab.py"
    path.write_text(STANDALONE)
    assert "kvspec" not in STANDALONE.replace("heard of kvspec", "")
    slab = target(load(f"{path}:Slab"))
    assert slab.capabilities == ("core",)
    assert run_witnesses(slab, Ledger(), timeout=10.0) is None
    for seed in range(4):
        assert not walk(slab.make, seed, tested=slab).breaches


class OutOfMemory(OutOfBlocks):
    """The refusal, under a name of its own."""


def test_an_error_is_known_by_its_base():
    """A subclass of the refusal is the refusal."""

    class Renamed(Plain):
        def _take(self, count):
            try:
                return super()._take(count)
            except OutOfBlocks:
                raise OutOfMemory from None

    for seed in range(4):
        assert not walk(Renamed, seed).breaches


def test_a_lazy_refusal_is_a_refusal():
    """A mutator may be a generator, whose refusal comes when its copies are asked for."""

    class Lazy(Plain):
        def append(self, seq, num_tokens):
            yield from super().append(seq, num_tokens)

    for seed in range(4):
        assert not walk(Lazy, seed, geometry=Geometry(3, 2)).breaches


def test_an_endless_repr_is_cut_off():
    """A text for the report has a bounded length, however long the value."""
    report = reported(answering("block_table", "x" * 10**6), "well-formed", "...")
    assert len(report.trace.breaches[0].because) < 200
    assert target(Reference).capabilities  # and the reference itself is none the worse
