"""The room of the core: sequences come, grow and go."""

from kvspec.kernel.room import Room
from kvspec.rooms.core.laws import LAWS
from kvspec.rooms.core.operations import Allocate, Append, Free, ShowTable
from kvspec.rooms.core.proposals import PROPOSALS, every, wrong

ROOM = Room(
    capability="core",
    methods=("allocate", "append", "free", "block_table", "num_free_blocks"),
    views={"device": ("block_table", "num_free_blocks")},
    laws=LAWS,
    operations=(Allocate, Append, Free, ShowTable),
    proposals=PROPOSALS,
    wrong=wrong,
    every=every,
)
