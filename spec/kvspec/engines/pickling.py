"""A pickler that leaves out nothing of an allocator but the history of its sets.

Neither what it hides is left out, nor what it shares. In which order a set gives its elements
depends on what was once in it, and nothing of Python's can tell that: the copy's begins anew.

Pickle itself asks the objects how they are copied. One that is written to save space may forget
the order of its free list, which decides what comes; so the attributes are taken as they are,
whatever a type says of its own pickles; and so are the elements of a list or a dict, whatever a
type of its own says of how they are read. And two views of one array, or two functions over one
variable, are so in the copy, where pickle would make two arrays of them, or give up.
"""

import io
import marshal
import pickle
import sys
from collections.abc import Mapping
from copyreg import dispatch_table
from enum import Enum
from types import BuiltinMethodType, CellType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
from attrs import frozen

from kvspec.engines.insides import (
    Attributes,
    attributes,
    container,
    fill,
    made_again,
    may_have_attributes,
    shows_otherwise,
)

_HOOKS = (
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__setstate__",
    "__getnewargs_ex__",
    "__getnewargs__",
)
"""By what a type may have a say in how its objects are pickled."""

_TRUSTED = sys.stdlib_module_names | {"attr"}
"""Whose pickles leave out nothing but attributes that are beside their own."""

_HEAP_TYPE = 1 << 9
"""The flag of types that were made while Python runs."""


class Pickler(pickle.Pickler):
    """Equal bytes are equal objects, down to which of them share what; but see above for sets.

    Raises `pickle.PicklingError`, or what else pickle raises, for what it cannot copy as a whole.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._memories: dict[tuple[str, int], _Memory] = {}
        """By where they begin; kept, since what is pickled is told apart by its address."""

    def reducer_override(self, thing: Any) -> Any:
        """How an object is made again; `NotImplemented` where pickle itself leaves out nothing."""
        kind = type(thing)
        if kind not in _known:
            _known[kind] = _is_known(kind)
        if _known[kind]:
            return NotImplemented
        if isinstance(thing, type):
            return _class_apart(thing)
        if kind is FunctionType:
            return _function_apart(thing)
        if kind is CellType:
            return _cell, (), _inside(thing), None, None, _fill_cell
        if kind is WeakValueDictionary or kind is WeakKeyDictionary:
            # A deep copy of one would find what the original has.
            return kind, (), None, None, iter(list(thing.items()))
        if kind is WeakSet:
            return kind, (), list(thing), None, None, WeakSet.update
        if kind is _Memory:
            return _memory, (thing.numbers(), thing.device)
        if isinstance(thing, np.ndarray):
            return self._array_apart(thing)
        if _torch_tensor(kind):
            return self._tensor_apart(thing)
        base = _own_container(kind)
        return _object_apart(thing, kind) if base is None else made_again(thing, kind, base)

    def _array_apart(self, array: Any) -> Any:
        """An array by its memory, which others may be views of, and its place in it."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        kind, hook = type(array), _hook(type(array))
        if any(attributes(array, kind)):
            raise pickle.PicklingError("an array with attributes")
        if hook is not None and _maker(hook) != "numpy":
            raise pickle.PicklingError(f"{kind.__qualname__} is an array with its own pickles")
        if root is array and (array.dtype.hasobject or kind is not np.ndarray):
            return NotImplemented
        plain = kind is np.ndarray and not root.dtype.hasobject
        if not plain or root.base is not None or not root.flags.forc:
            raise pickle.PicklingError("a view of what is not an array of numbers")
        start = root.__array_interface__["data"][0]
        memory = self._memory(root, start if root.nbytes else None, "")
        at = array.__array_interface__["data"][0] - start
        place = array.shape, array.strides, array.dtype, array.flags.writeable
        return _array, (memory, at, *place)

    def _tensor_apart(self, tensor: Any) -> Any:
        """A tensor likewise."""
        torch = sys.modules["torch"]
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        bare = plain and tensor.is_leaf and tensor.grad is None and not vars(tensor)
        if not bare or tensor.is_conj() or tensor.is_neg():
            raise pickle.PicklingError("a tensor that is more than numbers in a memory")
        storage = tensor.untyped_storage()
        start = storage.data_ptr() if storage.nbytes() else None
        memory = self._memory(storage, start, str(tensor.device))
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return _tensor, (memory, tensor.dtype, *place, tensor.requires_grad)

    def _memory(self, owner: Any, start: int | None, device: str) -> "_Memory":
        """The memory that begins there, the same for all who look into it; empty ones do not."""
        if device in ("", "cpu") and ("cpu" if not device else "", start) in self._memories:
            raise pickle.PicklingError("an array and a tensor share their memory")
        memory = _Memory(owner, device)
        return self._memories.setdefault((device, -id(memory) if start is None else start), memory)


# ------------------------------------------------------------------------------ objects


_known: dict[type, bool] = {}


def _is_known(kind: type) -> bool:
    """Whether pickle leaves out nothing of the objects of a type."""
    apart = (FunctionType, CellType, WeakValueDictionary, WeakKeyDictionary, WeakSet, _Memory)
    if kind in apart or issubclass(kind, type | np.ndarray) or _torch_tensor(kind):
        return False
    if issubclass(kind, Enum):
        return True
    if _own_container(kind) is not None or shows_otherwise(kind) or _hook(kind) is not None:
        return False
    own = any(getattr(kind, name, None) is not getattr(object, name, None) for name in _HOOKS)
    return not (own and may_have_attributes(kind))


def _own_container(kind: type) -> type | None:
    """The built-in type whose elements the objects of somebody else's type have, if any."""
    return None if _maker(kind) in sys.stdlib_module_names else container(kind)


def _torch_tensor(kind: type) -> bool:
    # Nothing here imports torch for it.
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Tensor)


def _object_apart(thing: Any, kind: type) -> Any:
    """All attributes of an object whose type has a say in its pickles."""
    hook, base, inside = _hook(kind), _built_in(kind), attributes(thing, kind)
    if base is not object:
        # What such an object has inside is known to those who made its base; but they may not know
        # of its attributes.
        if hook is not None and _maker(hook) not in (_maker(base), *_TRUSTED):
            said = f"{kind.__qualname__} is a {base.__name__} with its own pickles"
            raise pickle.PicklingError(said)
        return _with_attributes(thing, kind, inside) if any(inside) else NotImplemented
    written = hook is not None and hook.__name__ != "__getstate__"
    if written and isinstance(thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL), str):
        return NotImplemented  # it is the one of that name
    return object.__new__, (kind,), inside, None, None, fill


def _with_attributes(thing: Any, kind: Any, inside: Attributes) -> Any:
    """As its type says how it is made again, and all its attributes."""
    said: str | tuple[Any, ...] = kind.__reduce_ex__(thing, pickle.HIGHEST_PROTOCOL)
    if isinstance(said, str):
        return NotImplemented
    make, given, state, items, pairs, setter = said + (None,) * (6 - len(said))
    return make, given, (state, setter, inside), items, pairs, _fill_both


def _fill_both(thing: Any, both: tuple[Any, Any, Attributes]) -> None:
    state, setter, inside = both
    if setter is not None:
        setter(thing, state)
    elif state is not None and hasattr(type(thing), "__setstate__"):
        thing.__setstate__(state)
    fill(thing, inside)


def _hook(kind: type) -> Any:
    """What the type says of its pickles itself; nothing where Python's own way is used."""
    for name in _HOOKS:
        hook = getattr(kind, name, None)
        # What is not written in Python belongs to what has its state in C.
        if hook is not getattr(object, name, None) and isinstance(hook, FunctionType):
            return hook
    return dispatch_table.get(kind)


def _built_in(kind: type) -> type:
    """The first of the bases whose objects have more than attributes; `object`, if none have."""
    for base in kind.__mro__:
        new = base.__new__
        made_in_c = isinstance(new, BuiltinMethodType) and new.__self__ is base
        if made_in_c or not base.__flags__ & _HEAP_TYPE:
            return base
    return object


def _maker(thing: Any) -> str:
    """The package in which a function or type was written."""
    named: Mapping[str, Any] = getattr(thing, "__globals__", {"__name__": thing.__module__})
    return str(named["__name__"]).partition(".")[0]


# ------------------------------------------------------------------------------ functions


def _function_apart(function: Any) -> Any:
    """A function that no module has by its name: its code, and the variables around it."""
    if "<" not in function.__qualname__:
        return NotImplemented
    module = sys.modules.get(function.__module__)
    if module is None or vars(module) is not function.__globals__:
        raise pickle.PicklingError(f"{function.__qualname__} is of no module")
    # Version 2 has no references, so that equal code gives equal bytes.
    code = marshal.dumps(function.__code__, 2)
    made = code, function.__module__, function.__name__, function.__defaults__, function.__closure__
    more = function.__kwdefaults__, function.__dict__
    return _function, made, more, None, None, _fill_function


def _function(code: bytes, module: str, name: str, defaults: Any, closure: Any) -> Any:
    return FunctionType(marshal.loads(code), vars(sys.modules[module]), name, defaults, closure)


def _fill_function(function: Any, more: tuple[Any, dict[str, Any]]) -> None:
    function.__kwdefaults__ = more[0]
    function.__dict__.update(more[1])


def _inside(cell: Any) -> Any:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return None


def _cell() -> CellType:
    return CellType()


def _fill_cell(cell: Any, inside: tuple[Any]) -> None:
    cell.cell_contents = inside[0]


_apart: "WeakValueDictionary[int, type]" = WeakValueDictionary()


def _class_apart(kind: type) -> Any:
    """A class that no module has by its name: it is the same in the copy."""
    if "<" not in kind.__qualname__:
        return NotImplemented
    _apart[id(kind)] = kind
    return _class, (id(kind),)


def _class(number: int) -> type:
    return _apart[number]


# ------------------------------------------------------------------------------ arrays


@frozen(eq=False)
class _Memory:
    """The numbers in the memory of arrays, or of tensors on a device."""

    owner: Any
    device: str

    def numbers(self) -> bytes:
        """All of them."""
        if not self.device:
            return bytes(self.owner.tobytes("A"))
        torch = sys.modules["torch"]
        numbers = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self.owner)
        return bytes(numbers.cpu().numpy().tobytes())


def _memory(numbers: bytes, device: str) -> Any:
    if not device:
        return np.array(memoryview(numbers), np.uint8)
    torch = sys.modules["torch"]
    if not numbers:
        return torch.empty(0, dtype=torch.uint8, device=device).untyped_storage()
    held = torch.frombuffer(bytearray(numbers), dtype=torch.uint8)
    return held.to(device).untyped_storage()


def _array(memory: Any, start: int, shape: Any, strides: Any, dtype: Any, writeable: bool) -> Any:
    array: Any = np.ndarray(shape, dtype, memory, start, strides)
    array.flags.writeable = writeable
    return array


def _tensor(memory: Any, dtype: Any, offset: int, shape: Any, stride: Any, learned: bool) -> Any:
    torch = sys.modules["torch"]
    tensor = torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, shape, stride)
    return tensor.requires_grad_(learned)
