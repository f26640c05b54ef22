"""Small allocators to explore: a stack of free blocks, and what may be wrong or odd about it."""

import threading
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from kvspec import Copy, Geometry, InvalidLength, OutOfBlocks, SequenceExists, UnknownSequence


class Stack:
    """The free blocks are a stack; blocks are shared by forks, and copied when written into."""

    def __init__(self, geometry: Geometry) -> None:
        self.size, self.most = geometry.block_size, geometry.max_tokens
        self.free_list = list(reversed(range(geometry.num_blocks)))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def _take(self, count: int) -> list[int]:
        if count > len(self.free_list):
            raise OutOfBlocks
        return [self.free_list.pop() for _ in range(count)]

    def _tokens(self, tokens: Any, length: int = 0) -> int:
        if type(tokens) is not int or tokens < 0:
            raise InvalidLength
        if self.most is not None and length + tokens > self.most:
            raise InvalidLength
        return tokens

    def _find(self, seq: int) -> list[int]:
        if seq not in self.tables:
            raise UnknownSequence
        return self.tables[seq]

    def _start(self, seq: int, table: list[int], length: int) -> None:
        # In the order of their ids, so that the order of a dict is no part of the state.
        self.tables = dict(sorted({**self.tables, seq: table}.items()))
        self.lengths = dict(sorted({**self.lengths, seq: length}.items()))

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start a sequence."""
        if seq in self.tables:
            raise SequenceExists
        tokens = self._tokens(num_tokens)
        self._start(seq, self._take(-(-tokens // self.size)), tokens)

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow a sequence; a shared last block is copied first."""
        table, length = self._find(seq), self.lengths.get(seq, 0)
        new = length + self._tokens(num_tokens, length)
        shared = new > length and length % self.size and self._users(table[-1]) > 1
        fresh = self._take(-(-new // self.size) - len(table) + bool(shared))
        copies = []
        if shared:
            copies = [Copy(table[-1], fresh[0])]
            table[-1] = fresh.pop(0)
        table += fresh
        self.lengths[seq] = new
        return copies

    def _users(self, block: int) -> int:
        return sum(block in table for table in self.tables.values())

    def fork(self, parent: int, child: int) -> None:
        """Share the parent's blocks."""
        table = self._find(parent)
        if child in self.tables:
            raise SequenceExists
        self._start(child, list(table), self.lengths[parent])

    def free(self, seq: int) -> None:
        """End a sequence."""
        table = self._find(seq)
        del self.tables[seq], self.lengths[seq]
        self.free_list += [block for block in table if not self._users(block)]

    def block_table(self, seq: int) -> list[int]:
        """A copy of the table."""
        return list(self._find(seq))

    def num_free_blocks(self) -> int:
        """The length of the stack."""
        return len(self.free_list)


class ForgetsInOneOrder(Stack):
    """When the free blocks lie in one order, the one that is handed out stays on the stack."""

    def _take(self, count: int) -> list[int]:
        if count == 1 and self.free_list == [2, 0, 1]:
            return [self.free_list[-1]]
        return super()._take(count)


class GrantsInOneOrder(Stack):
    """When the free blocks lie in one order, it frees what there is not, and loses a block."""

    def free(self, seq: int) -> None:
        """End a sequence, or one that there is not."""
        if seq not in self.tables and self.free_list == [2, 0, 1]:
            self.free_list.pop()
            return
        super().free(seq)


class SavesSpace(ForgetsInOneOrder):
    """The same fault, and what it pickles of itself has the free blocks in their first order."""

    def __getstate__(self) -> dict[str, Any]:
        """All that can be seen of it."""
        free = sorted(self.free_list, reverse=True)
        return {**self.__dict__, "free_list": free}


class SavesSpaceOtherwise(ForgetsInOneOrder):
    """It does the same by making a new one; and its free blocks lie in a slot."""

    __slots__ = ("__blocks",)

    @property
    def free_list(self) -> list[int]:
        """The free blocks."""
        return self.__blocks

    @free_list.setter
    def free_list(self, blocks: list[int]) -> None:
        self.__blocks = blocks

    def __reduce__(self) -> tuple[Any, ...]:
        """A new one with the same tables."""
        free = sorted(self.free_list, reverse=True)
        return _made_anew, (type(self), self.__dict__, free)


def _made_anew(kind: type, attributes: dict[str, Any], free: list[int]) -> Any:
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    made.free_list = free
    return made


class TwiceWrong(Stack):
    """It grants a wrong call, which is tried early, and loses a block where it is given many."""

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Negative numbers of tokens are none."""
        return super().append(seq, max(0, num_tokens))

    def _take(self, count: int) -> list[int]:
        taken = super()._take(count)
        if count == 2:
            self.free_list.pop()
        return taken


class Printed(Stack):
    """It offers a fingerprint, which leaves out its note."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.note = lambda: None

    def fingerprint(self) -> object:
        """All that matters."""
        return self.free_list, self.tables, self.lengths


class Counting(Stack):
    """It counts its calls, so that it is never again as it was."""

    calls = 0

    def _take(self, count: int) -> list[int]:
        self.calls += 1
        return super()._take(count)


class Remembers(Stack):
    """It finds what it has written down in weak collections, as long as it is there."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.page = Page()
        self.book, self.pages = WeakValueDictionary({0: self.page}), WeakSet([self.page])


class Page:
    """What is written down."""


class Tensors(Stack):
    """It has tensors, of which one is a view of another."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        import torch  # an extra: the other allocators here are for everybody

        self.whole = torch.arange(6).view(2, 3)
        self.across = self.whole.T[1:]
        self.empty, self.flags = torch.zeros(0), torch.tensor([True, False])
        self.learned = torch.ones(2, requires_grad=True)


class Arrays(Stack):
    """It has arrays, of which one is a view of another."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.whole = np.arange(6).reshape(2, 3)
        self.across = self.whole.T[1:]
        self.empty, self.flags = np.zeros(0), np.array([True, False])
        self.flags.flags.writeable = False
        self.names = np.array(["a", None], dtype=object)


class Copyable(Stack):
    """Pickle alone does not know its functions, of which two are over one variable."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        count = [0]
        self.count, self.more = lambda: count[0], lambda by=1: count.append(count.pop() + by)


class Locked(Stack):
    """It can neither be copied nor pickled."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.lock = threading.Lock()


class Forgetful(Locked):
    """It can neither be copied nor compared; the first of two sequences that ends loses blocks."""

    def free(self, seq: int) -> None:
        """End a sequence; its blocks are lost if there is another."""
        if len(self.tables) == 2 and seq in self.tables:
            self.tables[seq] = []
        super().free(seq)


class LocksLater(Stack):
    """It cannot be copied any more once a sequence has grown."""

    lock = None

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow a sequence, under a lock."""
        self.lock = self.lock or threading.Lock()
        with self.lock:
            return super().append(seq, num_tokens)


class PrintedLocksLater(LocksLater):
    """The same, with a fingerprint."""

    def fingerprint(self) -> object:
        """All that matters."""
        return self.free_list, self.tables, self.lengths


class NotMadeAgain(Stack):
    """What it has once a sequence has grown can be pickled, and not be made of its pickle."""

    def append(self, seq: int, num_tokens: int) -> list[Copy]:
        """Grow a sequence."""
        self.node = Node("first")
        return super().append(seq, num_tokens)


class Node:
    """It knows itself by its name, which its copy does not have yet when it is to know it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = {self}

    def __hash__(self) -> int:
        """By name."""
        return hash(self.name)


class PrintsNoGrowth(Stack):
    """Its fingerprint fails once there is a sequence, in the way of its kind."""

    def fingerprint(self) -> object:
        """All that matters, of none."""
        for _ in self.tables:
            self.fails()
        return self.free_list

    def fails(self) -> None:
        """An error like any other."""
        raise ValueError("no such table")


class ExitsInPrint(PrintsNoGrowth):
    """It ends the program."""

    def fails(self) -> None:
        """Quietly."""
        raise SystemExit(0)


class HangsInPrint(PrintsNoGrowth):
    """It does not come back."""

    def fails(self) -> None:
        """As long as there is time."""
        while True:
            pass
