"""The block manager of smol-vllm 0.1.2, behind the interface.

The engine's class is `smol_vllm.block_manager.BlockSpaceManager` (MIT licence). `BlockSpaces` does
what the engine's `Scheduler.schedule` and `LLMEngine.step` do around each call. It checks nothing
and repairs nothing: a fault of the engine comes through.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from attrs import evolve

from kvimpls.adapters.engines import engine
from kvspec import Contract, Geometries, Geometry, OutOfBlocks

# The package's own __init__ imports its model of transformers, and its metrics.
with engine("smol-vllm", "0.1.2", bare=("smol_vllm",)):
    BlockSpaceManager: Any = import_module("smol_vllm.block_manager").BlockSpaceManager


class BlockSpaces:
    """`BlockSpaceManager` as a core, sharing and introspection allocator.

    Source: smol-vllm 0.1.2, block_manager.py and, for the calls' surroundings, scheduler.py,
    engine.py and demo.py.
    """

    contract = Contract(
        # Not admission: can_allocate says yes or no, and no query tells a request that must wait
        # from one that can never fit.
        capabilities=("core", "sharing", "introspection"),
        # Nothing checks a length. allocate and copy_on_write overwrite the table of an id in use,
        # free passes over an unknown one ("return"), and get_block_table has [] for it.
        # LLMEngine.add_request counts its ids, so that none is used twice.
        misuse="callers_duty",
        # The constructor takes num_blocks and block_size; nothing limits a sequence.
        geometries=Geometries(max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        self.manager: Any = BlockSpaceManager(geometry.num_blocks, geometry.block_size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.manager.__dict__})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` slots: a prompt, as `Scheduler.schedule` admits one."""
        _refusing(self.manager.allocate, seq, num_tokens)

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`, one after the other.

        `LLMEngine.step` appends one token a step. So that several are all or none, there is asked
        before, as `Scheduler.schedule` asks before each step; one is the engine's to refuse.
        """
        if num_tokens > 1:
            self._ask(seq, num_tokens)
        for _ in range(num_tokens):
            _refusing(self.manager.append_token, seq)

    def _ask(self, seq: int, num_tokens: int) -> None:
        # By the engine's own count of tokens, so that its append_token has what it will take.
        held = self.manager._tokens_allocated[seq] + num_tokens
        needed = -(-held // self.manager.block_size) - len(self.manager.get_block_table(seq))
        if needed > self.manager.num_free_blocks():
            raise OutOfBlocks(f"sequence {seq} takes {needed} more blocks for {held} tokens")

    def free(self, seq: int) -> None:
        """End `seq`, as `LLMEngine.step` ends one that is finished."""
        self.manager.free(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the blocks of `parent`, as the demo's experiment 3 does."""
        self.manager.copy_on_write(parent, child)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        table: list[int] = self.manager.get_block_table(seq)
        return table

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as free."""
        count: int = self.manager.num_free_blocks()
        return count

    def ref_count(self, block: int) -> int:
        """The engine's own count, which has no entry for a block that nobody has."""
        count: int = self.manager._ref_count.get(block, 0)
        return count

    def free_blocks(self) -> list[int]:
        """The engine's own queue."""
        return list(self.manager._free_blocks)


class AskedBlockSpaces(BlockSpaces):
    """The same manager, asked for room before each token, as the scheduler asks: core only.

    `append_token` is then never refused, as in the engine's own loop, so that its refusal does not
    hide what lies behind; and nothing is shared, which the loop does not do either.
    """

    contract = evolve(BlockSpaces.contract, capabilities=("core", "introspection"))

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`, where there is room for all."""
        self._ask(seq, num_tokens)
        super().append(seq, num_tokens)


def _refusing(call: Callable[..., None], *arguments: int) -> None:
    """Call the engine, whose refusal is a `ValueError`."""
    try:
        call(*arguments)
    except ValueError as error:
        raise OutOfBlocks(str(error)) from error
