"""The room of swapping: a sequence moves to the host as a whole, and back.

The host is a place like another: its blocks are held by the tables there. So conservation,
no-overlap and read-back hold on the host as they do on the device, without a word here. Here
stand where a sequence is, and which copies take it there.
"""

from attrs import evolve

from kvspec.contract import Geometries
from kvspec.geometry import Geometry
from kvspec.kernel.chooser import Chooser
from kvspec.kernel.operation import Operation
from kvspec.kernel.room import Room
from kvspec.kernel.state import State
from kvspec.rooms.swap.laws import LAWS
from kvspec.rooms.swap.operations import ShowHostTable, SwapIn, SwapOut
from kvspec.rooms.swap.proposals import PROPOSALS, every, wrong


def _guard(state: State, operation: Operation) -> frozenset[str]:
    """No other call is about a sequence that is swapped out."""
    if operation.everywhere:
        return frozenset()
    subjects = (state.sequences.get(seq) for seq in operation.subjects)
    away = any(sequence is not None and not sequence.resident for sequence in subjects)
    return frozenset({"NotResident"}) if away else frozenset()


def _has_a_host(geometry: Geometry) -> bool:
    return geometry.num_host_blocks > 0  # which a geometry with groups has not


def _with_a_host(geometry: Geometry, allowed: Geometries, chooser: Chooser | None) -> Geometry:
    """As many host blocks as on the device; drawn, often so few that swapping out is refused."""
    if geometry.groups is not None:
        return geometry
    most = geometry.num_blocks
    sizes = (most, most // 2 or 1, min(2, most), 1)
    return evolve(geometry, num_host_blocks=chooser.pick(sizes) if chooser else most)


ROOM = Room(
    capability="swap",
    methods=("swap_out", "swap_in", "host_block_table", "num_free_host_blocks"),
    laws=LAWS,
    applies=_has_a_host,
    needed_by=_has_a_host,
    shaped=_with_a_host,
    views={"host": ("host_block_table", "num_free_host_blocks")},
    operations=(SwapOut, SwapIn, ShowHostTable),
    guard=_guard,
    proposals=PROPOSALS,
    weight=3,
    wrong=wrong,
    every=every,
)
