"""The room of prefix caching: full blocks of known tokens are published, and found again."""

from kvspec.kernel.events import Settled
from kvspec.kernel.room import Room, ungrouped
from kvspec.rooms.prefix.events import REACTIONS
from kvspec.rooms.prefix.facts import Facts, known, matters
from kvspec.rooms.prefix.laws import LAWS
from kvspec.rooms.prefix.operations import (
    AllocatePrompt,
    AppendTokens,
    Lookup,
    MarkWritten,
    ResetCache,
)
from kvspec.rooms.prefix.proposals import PROPOSALS, every, queries, wrong
from kvspec.rooms.prefix.settled import settled

ROOM = Room(
    capability="prefix",
    methods=(
        "allocate_prompt",
        "append_tokens",
        "mark_written",
        "lookup",
        "reset_prefix_cache",
    ),
    laws=LAWS,
    operations=(AllocatePrompt, AppendTokens, MarkWritten, Lookup, ResetCache),
    applies=ungrouped,
    facts=Facts(),
    reactions={**REACTIONS, Settled: settled},
    known=known,
    queries=queries,
    proposals=PROPOSALS,
    weight=5,
    wrong=wrong,
    every=every,
    matters=matters,
)
