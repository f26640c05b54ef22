"""The room of batches: one call appends to several sequences, as the loop over them would.

There is a second account of growing nowhere: what each sequence of a batch needs is asked of
the kernel's, in the state that the ones before it leave. What a batch adds is all or nothing, and
that the order in which several sharers write decides who keeps the block.
"""

from kvspec.kernel.room import Room
from kvspec.rooms.batch.laws import LAWS
from kvspec.rooms.batch.operations import AppendBatch
from kvspec.rooms.batch.proposals import PROPOSALS, every, wrong

ROOM = Room(
    capability="batch",
    methods=("append_batch",),
    laws=LAWS,
    operations=(AppendBatch,),
    proposals=PROPOSALS,
    wrong=wrong,
    every=every,
)
