"""The rooms: one capability each, none knowing another. Here they are put together.

`ORDER` is the published order of the laws: the first broken one is the one reported. The
most specific come first, and last those that see everything but explain least: read-back, and
attention, which sees it through sums.
"""

from kvspec.contract import Contract
from kvspec.geometry import Geometry
from kvspec.kernel.law import Law
from kvspec.kernel.operation import Operation
from kvspec.kernel.room import Room
from kvspec.kernel.specification import Specification
from kvspec.rooms import (
    admission,
    attention,
    batch,
    core,
    eviction,
    groups,
    injection,
    introspection,
    lease,
    prefix,
    reservation,
    resize,
    rollback,
    sharing,
    store,
    swap,
    window,
)

ROOMS: tuple[Room, ...] = (
    core.ROOM,
    reservation.ROOM,
    admission.ROOM,
    sharing.ROOM,
    rollback.ROOM,
    prefix.ROOM,
    eviction.ROOM,
    swap.ROOM,
    window.ROOM,
    lease.ROOM,
    batch.ROOM,
    resize.ROOM,
    introspection.ROOM,
    store.ROOM,
    attention.ROOM,
    groups.ROOM,
    injection.ROOM,
)

ORDER: tuple[str, ...] = (
    "limit",
    "write-bounds",
    "misuse",
    "well-formed",
    "snapshot",
    "injection",
    "can-allocate",
    "rollback",
    "window",
    "residence",
    "swap",
    "prefix-sound",
    "prefix-complete",
    "evict",
    "eviction",
    "eviction-order",
    "in-flight",
    "copy-on-write",
    "fork",
    "batch",
    "no-overlap",
    "needless-copy",
    "placement",
    "resize",
    "atomicity",
    "frame",
    "bounded-waste",
    "retry",
    "admission",
    "ref-count",
    "conservation",
    "table-counts",
    "free-set",
    "groups",
    "read-back",
    "attention",
)

CAPABILITIES: tuple[str, ...] = tuple(room.capability for room in ROOMS)

UNPLACED = frozenset({"prefix", "swap", "window", "batch", "resize", "groups"})
"""The capabilities that are specified only for blocks which may lie anywhere."""

UNMOVED = frozenset({"prefix", "swap"})
"""The capabilities that are specified only for blocks which stay where they are."""

LAWS: tuple[Law, ...] = tuple(
    sorted((law for room in ROOMS for law in room.laws), key=lambda law: ORDER.index(law.id))
)

OPERATIONS: dict[str, type[Operation]] = {
    kind.method: kind for room in ROOMS for kind in room.operations
}


def specification(
    geometry: Geometry, contract: Contract, capabilities: tuple[str, ...]
) -> Specification:
    """The specification of an allocator that claims `capabilities`, `core` among them.

    Raises `ValueError` for a geometry that the contract excludes, or that asks for what no
    room here specifies; and for a contract with a claim that together mean nothing.
    """
    unknown = sorted(set(capabilities) - set(CAPABILITIES))
    if unknown or "core" not in capabilities:
        raise ValueError(
            f"capabilities must include core and be among {', '.join(CAPABILITIES)}; "
            f"not {', '.join(unknown) or 'without core'}"
        )
    for room in ROOMS:
        if room.capability in capabilities and (lacks := set(room.needs) - set(capabilities)):
            raise ValueError(f"{room.capability} cannot be claimed without {min(lacks)}")
    if not contract.geometries.admits(geometry):
        raise ValueError(f"the contract excludes {geometry}")
    lacking = [
        room.capability
        for room in ROOMS
        if room.capability not in capabilities and room.needed_by(geometry)
    ]
    if lacking:
        raise ValueError(f"{geometry} asks for {' and '.join(lacking)}, which is not claimed")
    if contract.placement != "anywhere" and (odd := UNPLACED.intersection(capabilities)):
        raise ValueError(
            f"what {' and '.join(sorted(odd))} mean for blocks that are placed "
            f"{contract.placement} is not specified: claim them with placement anywhere"
        )
    if contract.relocates and (odd := UNMOVED.intersection(capabilities)):
        raise ValueError(
            f"what {' and '.join(sorted(odd))} mean for blocks that relocate is not specified: "
            "claim them without relocates"
        )
    explicit = contract.eviction == "explicit" and "eviction" not in capabilities
    if "prefix" in capabilities and explicit and contract.order == "lru":
        raise ValueError(
            "order lru promises nothing where eviction is explicit and evict is not claimed: "
            "claim eviction, or leave the order out"
        )
    rooms = tuple(r for r in ROOMS if r.capability in capabilities and r.applies(geometry))
    judged = {room.capability for room in rooms}
    laws = tuple(law for law in LAWS if law.capability in judged)
    return Specification(geometry, contract, rooms, laws, OPERATIONS)
