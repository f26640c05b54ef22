"""An executable specification of KV-cache block allocators, and the suite that checks them.

The names of the plug-in interface are importable from here; `check_allocator` is the whole
suite as a function, and `museum_command` the command of whoever keeps a museum of faults. These
two are imported on first use, since allocators import this module and need none of what the suite
does (Hypothesis, pytest, numpy, rich).
"""

from typing import TYPE_CHECKING, Any

from kvspec.contract import (
    Contract,
    Doubling,
    Exact,
    Geometries,
    Granular,
    Paged,
    Pow2,
    ToMax,
    Unspecified,
)
from kvspec.geometry import Geometry, Group
from kvspec.interface import (
    Admission,
    AllocatorError,
    Copy,
    InjectedFault,
    InvalidLength,
    NotResident,
    OutOfBlocks,
    SequenceExists,
    UnknownLease,
    UnknownSequence,
    UnsupportedGeometry,
)

if TYPE_CHECKING:
    from kvspec.suite.check import check_allocator
    from kvspec.suite.museum_command import museum_command

__all__ = [
    "Admission",
    "AllocatorError",
    "Contract",
    "Copy",
    "Doubling",
    "Exact",
    "Geometries",
    "Geometry",
    "Granular",
    "Group",
    "InjectedFault",
    "InvalidLength",
    "NotResident",
    "OutOfBlocks",
    "Paged",
    "Pow2",
    "SequenceExists",
    "ToMax",
    "UnknownLease",
    "UnknownSequence",
    "Unspecified",
    "UnsupportedGeometry",
    "check_allocator",
    "museum_command",
]


def __getattr__(name: str) -> Any:
    """What is the suite's own, when it is asked for (PEP 562)."""
    if name == "check_allocator":
        from kvspec.suite.check import check_allocator

        return check_allocator
    if name == "museum_command":
        from kvspec.suite.museum_command import museum_command

        return museum_command
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
