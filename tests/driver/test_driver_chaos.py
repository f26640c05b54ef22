"""Allocators that break everything at random: all that comes of it are breaches."""

import itertools
import random
from enum import Enum

import numpy as np
import pytest
from hostile import Plain, walk

from kvimpls.reference import Reference
from kvspec import InvalidLength, OutOfBlocks, UnknownLease, UnknownSequence, UnsupportedGeometry
from kvspec.driver.target import target
from kvspec.suite.check import check_allocator
from kvspec.traces.table import as_text
from kvspec.traces.trace import from_json, to_json

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
    "write",
    "read",
)


class Mute(Exception):
    def __str__(self):
        raise SystemExit


class Hostile:
    """Raises something else whatever is asked of it."""

    def __getattr__(self, name):
        raise MemoryError(name)

    def __iter__(self):
        raise SystemExit

    __repr__ = __len__ = __bool__ = __eq__ = __iter__
    __hash__ = None


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


VALUES = (
    lambda draw: None,
    lambda draw: draw.randrange(-3, 9),
    lambda draw: [draw.randrange(-1, 6) for _ in range(draw.randrange(9))],
    lambda draw: [draw.randrange(3) for _ in range(draw.randrange(3))],
    lambda draw: [(draw.randrange(4), draw.randrange(4)) for _ in range(draw.randrange(3))],
    lambda draw: np.array([draw.randrange(4) for _ in range(draw.randrange(4))]),
    lambda draw: np.array([[draw.randrange(4), draw.randrange(4)]]),
    lambda draw: np.full((draw.randrange(4), 4), draw.random(), np.float32),
    lambda draw: itertools.repeat(draw.randrange(4)),
    lambda draw: itertools.repeat((0, 1)),
    lambda draw: (1 // (i - 1) for i in range(4)),
    lambda draw: draw.choice(["OK", "LATER", "NEVER", "ok", "", "\ud800", "x\ny", "[/b]"]),
    lambda draw: draw.choice([True, 2.5, 1j, 10**40, -(10**40), float("nan"), b"\0", Ellipsis]),
    lambda draw: draw.choice([{}, {0: 1}, {0, 1}, frozenset(), range(3), range(10**18)]),
    lambda draw: Liar(draw.randrange(4)),
    lambda draw: [Liar(draw.randrange(4))],
    lambda draw: Hostile(),
    lambda draw: [Hostile()],
    lambda draw: (Hostile(), Hostile()),
    lambda draw: Hostile,
    lambda draw: Enum("E", ["OK", "WHY"]).OK,
    lambda draw: NotImplemented,
    lambda draw: [[[[]]]],
)

ERRORS = (
    OutOfBlocks,
    UnknownSequence,
    InvalidLength,
    UnknownLease,
    UnsupportedGeometry,
    KeyError,
    SystemExit,
    GeneratorExit,
    StopIteration,
    RecursionError,
    MemoryError,
    NotImplementedError,
    Mute,
    lambda: ExceptionGroup("g", [OutOfBlocks()]),
    lambda: type("OutOfBlocks", (BaseException,), {})(),
)


def chaotic(seed, odds=0.2):
    """A store that does its work or not, and answers rightly or not, as a seeded generator says."""

    class Chaos(Plain):
        width = 4
        dtype = "float32"

        def __init__(self, geometry):
            super().__init__(geometry)
            self._draw = random.Random(seed)

        def write(self, seq, start, values):
            if start + len(values) > self._sequence(seq).length:
                raise InvalidLength

        def read(self, seq):
            return np.zeros((self._sequence(seq).length, 4), np.float32)

    def odd(method):
        right = getattr(Chaos, method)

        def call(self, *arguments, **keywords):
            draw = self._draw
            answer = None
            if draw.random() < 1 - odds / 2:
                answer = right(self, *arguments, **keywords)
            if draw.random() < odds:
                if draw.random() < 0.3:
                    raise draw.choice(ERRORS)()
                return draw.choice(VALUES)(draw)
            return answer

        def allocate(self, seq, num_tokens, *, limit=None):
            return call(self, seq, num_tokens, limit=limit)

        return allocate if method == "allocate" else call

    for method in METHODS:
        setattr(Chaos, method, odd(method))
    return Chaos


# Reading back, which an odd store fails at once, hides what comes later.
CLAIMS = (
    ("core", "reservation", "admission", "sharing", "lease", "store"),
    ("core", "reservation", "admission", "sharing", "lease"),
    ("core",),
)


@pytest.mark.parametrize("block", range(10))
def test_chaos_comes_out_as_breaches(block):
    """Whatever comes of it can be judged, told and saved, and no exception leaves the suite."""
    told = set()
    for seed in range(20 * block, 20 * block + 20):
        make = chaotic(seed, odds=(0.02, 0.1, 0.5)[seed % 3])
        plain = target(Reference)
        tested = type(plain)("chaos", make, plain.contract, CLAIMS[seed // 3 % 3])
        session = walk(make, seed, steps=30, tested=tested)
        told.update(breach.law for breach in session.breaches)
        assert all("\n" not in breach.because for breach in session.breaches)
        text = to_json(session.trace)
        assert from_json(text) == session.trace
        assert as_text(session.trace)
    assert len(told) > 2


@pytest.mark.parametrize("seed", range(8))
def test_chaos_can_be_checked_as_a_whole(seed):
    """Witnesses, machine, replays and reduction come to an end, and the report can be raised."""
    report = check_allocator(chaotic(seed, odds=0.03), name="chaos", profile="quick", seed=seed)
    assert report.exit_code == 1
    with pytest.raises(AssertionError, match="chaos"):
        report.raise_for_status()
