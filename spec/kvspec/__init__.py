"""An executable specification of KV-cache block allocators, and the suite that checks them.

The names of the plug-in interface are importable from here; `check_allocator` is the whole
suite as a function.
"""

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
from kvspec.geometry import Geometry
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
from kvspec.suite.check import check_allocator

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
]
