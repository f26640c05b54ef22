"""Copies of an allocator in the middle of a story, and fingerprints of what it has inside.

What an allocator has inside is more than it shows: the order of a free list, a stale counter, the
age of a cached block. An explorer that took two allocators for one because they show the same
would miss what comes of the difference.
"""

import copy
import io
import pickle
import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from attrs import define, field, frozen

from kvspec.driver.driver import Driver


class Copies(Protocol):
    """A way of keeping allocators, and of having as many as one likes of each."""

    def keep(self, driver: Driver, names: Sequence[int]) -> Any:
        """Something from which `again` makes the same allocator, with the handles of `names`."""
        ...

    def again(self, kept: Any, names: Sequence[int]) -> Driver:
        """The driver of another allocator that is just as the one that was kept."""
        ...


class Uncopied(Exception):
    """The allocator cannot be copied in this way."""


_CANNOT = (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError, ImportError)
"""What pickle and copy raise for objects that they do not know how to copy."""


class _Keeper(pickle.Pickler):
    """A pickler that also knows the weak dictionaries of Python and, quicker than torch, tensors.

    `copy.deepcopy` lets the copy of a weak dictionary have the values of the original.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._storages: dict[int, _Storage] = {}

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is WeakValueDictionary or kind is WeakKeyDictionary:
            return kind, (), None, None, iter(list(thing.items()))
        # Nothing here imports torch for it.
        torch = sys.modules.get("torch")
        if torch is None or kind is not torch.Tensor or not _plain(torch, thing):
            return NotImplemented
        memory = thing.untyped_storage()
        # Tensors that are views of one memory are so in the copy.
        storage = self._storages.setdefault(memory.data_ptr(), _Storage(memory))
        place = thing.storage_offset(), tuple(thing.shape), thing.stride()
        return _tensor, (storage, thing.dtype, *place)


class _Storage:
    """The memory of a tensor in the main memory."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        torch = sys.modules["torch"]
        numbers = torch.empty(0, dtype=torch.uint8).set_(self._memory)
        return _storage, (numbers.numpy().tobytes(),)


def _plain(torch: Any, tensor: Any) -> bool:
    """Whether there is nothing to a tensor but numbers in the main memory."""
    simple = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return simple and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def _storage(numbers: bytes) -> Any:
    torch = sys.modules["torch"]
    if not numbers:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer(bytearray(numbers), dtype=torch.uint8).untyped_storage()


def _tensor(storage: Any, dtype: Any, offset: int, shape: Any, stride: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


@frozen
class Pickled:
    """Copies by pickle: quick, and the same bytes are the fingerprint."""

    origin: Driver

    def keep(self, driver: Driver, names: Sequence[int]) -> bytes:
        """The bytes."""
        try:
            stream = io.BytesIO()
            _Keeper(stream).dump(driver.held(names))
        except _CANNOT as error:
            raise Uncopied(str(error)) from None
        return stream.getvalue()

    def again(self, kept: bytes, names: Sequence[int]) -> Driver:
        """What the bytes hold."""
        return self.origin.with_held(pickle.loads(kept), names)


@frozen
class Deep:
    """Copies by `copy.deepcopy`, for allocators that pickle does not know."""

    origin: Driver

    def keep(self, driver: Driver, names: Sequence[int]) -> Any:
        """A deep copy, which nobody else gets."""
        try:
            return copy.deepcopy(driver.held(names))
        except _CANNOT as error:
            raise Uncopied(str(error)) from None

    def again(self, kept: Any, names: Sequence[int]) -> Driver:
        """A deep copy of that."""
        return self.origin.with_held(copy.deepcopy(kept), names)


def copies(driver: Driver) -> Copies | None:
    """The best way of copying this allocator; `None` where there is none."""
    ways: tuple[Copies, ...] = (Pickled(driver), Deep(driver))
    for way in ways:
        try:
            way.again(way.keep(driver, ()), ())
        except Exception:  # whatever the allocator's own ways of copying raise
            continue
        return way
    return None


# ------------------------------------------------------------------------------ fingerprints


class _Printer(pickle.Pickler):
    """A pickler of what is only to be compared, and never to be loaded."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, WeakValueDictionary | WeakKeyDictionary):
            return dict, (list(thing.items()),)
        if isinstance(thing, WeakSet):
            return list, (list(thing),)
        # A tensor is compared by its numbers; nothing here imports torch for it.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(thing, torch.Tensor):
            numbers = thing.detach().cpu().contiguous()
            plain = numbers.reshape(-1).view(torch.uint8).numpy().tobytes()
            return tuple, ((str(thing.dtype), tuple(thing.shape), plain),)
        return NotImplemented


OWN_METHOD = "its own fingerprint()"
PICKLE = "its pickle"


@frozen
class Prints:
    """How the internals of an allocator are compared; `what` says it for the report."""

    what: str

    @property
    def pickles(self) -> bool:
        """Whether a pickle of it is a fingerprint."""
        return self.what == PICKLE

    def of(self, driver: Driver, names: Sequence[int]) -> bytes:
        """The fingerprint of the driver's allocator.

        By pickle also of the handles of `names`; a method of its own is to know what it needs of
        what it gave away.
        """
        held = driver.held(names)
        if not self.pickles:
            return repr(held[0].fingerprint()).encode()
        stream = io.BytesIO()
        try:
            _Printer(stream, pickle.HIGHEST_PROTOCOL).dump(held)
        except _CANNOT as error:
            raise Uncopied(str(error)) from None
        return stream.getvalue()


def prints(driver: Driver) -> Prints | None:
    """How this allocator is compared with others; `None` where it cannot be."""
    own = callable(getattr(driver.held(())[0], "fingerprint", None))
    way = Prints(OWN_METHOD if own else PICKLE)
    try:
        return way if way.of(driver, ()) == way.of(driver, ()) else None
    except Exception:  # whatever the allocator's own ways raise
        return None


@define
class Seen:
    """The states that were seen, as 16 bytes each.

    Two of them are never taken for one, but for a chance of about 2 ** -128.
    """

    _numbers: dict[bytes, int] = field(init=False, factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def number(self, *parts: bytes) -> int:
        """The number of the state that these texts make up: the next one, if it is new."""
        digest = blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return self._numbers.setdefault(digest.digest(), len(self._numbers))
