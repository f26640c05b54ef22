"""The paged cache of mini-infer 0.2.5 (Apache-2.0), behind the interface.

The engine is `mini_infer.cache`: `BlockPool` and `BlockTable` (block_pool.py) with `PrefixCache`
(prefix_cache.py); its tables are made by `Sequence` (scheduler/continuous.py). The calls around
them follow `InferenceEngine.step` (engine.py). Nothing is checked and nothing repaired here: a
fault of the engine comes through.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from attrs import Factory, define, evolve

from kvimpls.adapters.engines import engine
from kvimpls.adapters.small import HEAD_DIM, HEADS, KV_HEADS, SmallHeads, blocks_only, one_thread
from kvspec import Contract, Geometries, Geometry, OutOfBlocks

with engine(
    "mini-infer",
    "0.2.5",
    bare=("mini_infer", "mini_infer.models", "mini_infer.scheduler"),
):
    _cache: Any = import_module("mini_infer.cache")
    _continuous: Any = import_module("mini_infer.scheduler.continuous")
    _qwen2: Any = import_module("mini_infer.models.qwen2")


@define
class _Request:
    """What the engine's caller keeps of a request: `Sequence`, and the key of its contents."""

    block_table: Any
    tokens: list[int] = Factory(list)  # prompt_token_ids, then output_token_ids, while known
    key: Any = None
    all_known: bool = False
    prompt: int = 0
    cached: int = 0
    past_key_values: list[npt.NDArray[Any]] | None = None
    written: int = 0
    marked: int = 0
    before_reset: bool = False


class MiniInferPool(SmallHeads):
    """`BlockPool` with a `BlockTable` a sequence and `PrefixCache`, as `InferenceEngine.step` does.

    `PrefixCache` knows contents by tokens alone, so tokens under each key get numbers of their own.

    Source: mini-infer 0.2.5, cache/, scheduler/continuous.py and engine.py.
    """

    contract = Contract(
        # Not admission: ContinuousScheduler.schedule asks for two blocks whatever the length.
        capabilities=("core", "sharing", "prefix", "introspection"),
        # A table is an object, not an id, and nothing checks a length or a block id:
        # BlockPool.free_block frees a free block again.
        misuse="callers_duty",
        # BlockPool.num_free is the length of free_list, and the cache's blocks are retained.
        free_counts_cached=False,
        # PrefixCache.match_prefix takes all full blocks of a prompt; step then computes the last
        # token again, into the last block.
        leave_one=False,
        # Nothing bounds a sequence but the pool. With blocks of one token the last token of a hit,
        # computed again, would get another block: its slot is the first of one.
        geometries=Geometries(block_sizes=tuple(range(2, 33)), max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        blocks_only(geometry)
        self.block_size = geometry.block_size
        self.block_pool = _cache.BlockPool(
            num_blocks=geometry.num_blocks,
            block_size=geometry.block_size,
            num_layers=1,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        self.running: dict[int, _Request] = {}
        self.prefix_cache = _cache.PrefixCache(block_size=geometry.block_size)
        self.token_ids: dict[tuple[str, int], int] = {}

    def __repr__(self) -> str:
        tables = {seq: one.block_table.physical_block_ids for seq, one in self.running.items()}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def _new_table(self) -> Any:
        return _cache.BlockTable(block_size=self.block_size)

    def _numbers(self, tokens: Sequence[int], key: Any) -> list[int]:
        numbers, name = self.token_ids, repr(key)
        return [numbers.setdefault((name, int(token)), len(numbers)) for token in tokens]

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` slots, as `InferenceEngine.step` prefills a prompt."""
        request = _Request(self._new_table(), prompt=num_tokens)
        self._append_slots(request, num_tokens)
        self.running[seq] = request

    def append(self, seq: int, num_tokens: int) -> None:
        """Take `num_tokens` more slots, as `InferenceEngine.step` does for a chunk or a token."""
        request = self.running[seq]
        self._append_slots(request, num_tokens)
        request.all_known &= num_tokens == 0

    def _append_slots(self, request: _Request, num_tokens: int) -> None:
        try:
            for _ in range(num_tokens):
                request.block_table.append_slot(self.block_pool)
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error

    def free(self, seq: int) -> None:
        """End `seq`, as `Sequence.free` does for `ContinuousScheduler.schedule`."""
        self.running.pop(seq).block_table.free(self.block_pool)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        return list(self.running[seq].block_table.physical_block_ids)

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as available."""
        count: int = self.block_pool.num_free
        return count

    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the blocks of `parent`, retained as `match_prefix` retains a hit.

        The engine forks nothing itself; its counts are "for prefix caching / copy-on-write".
        """
        origin = self.running[parent]
        table = self._new_table()
        for block in origin.block_table.physical_block_ids:
            self.block_pool.retain_block(block)
            table.physical_block_ids.append(block)
        table.num_tokens = origin.block_table.num_tokens
        self.running[child] = evolve(origin, block_table=table, tokens=list(origin.tokens))

    def ref_count(self, block: int) -> int:
        """The engine's count of references, without that of the prefix cache."""
        return int(self.block_pool.ref_counts[block]) - (block in self.prefix_cache.last_accessed)

    def free_blocks(self) -> list[int]:
        """A snapshot of the engine's list of free blocks."""
        return list(self.block_pool.free_list)

    def allocate_prompt(self, seq: int, tokens: Sequence[int], key: Any = None) -> int:
        """Start `seq` with what is cached of `tokens`, as `InferenceEngine.step` on admission."""
        prompt = self._numbers(tokens, key)
        request = _Request(self._new_table(), prompt, key, True, len(prompt))
        blocks, cached = self.prefix_cache.match_prefix(prompt, self.block_pool)
        if cached > 0:
            request.block_table.physical_block_ids.extend(blocks)
            request.block_table.num_tokens = cached
        request.cached = request.written = request.marked = int(cached)
        remaining = len(prompt) - request.cached
        if prompt and not remaining:
            request.block_table.num_tokens -= 1
            remaining = 1
        self._append_slots(request, remaining)
        self.running[seq] = request
        return request.cached

    def append_tokens(self, seq: int, tokens: Sequence[int]) -> None:
        """Take slots for more tokens, each as `InferenceEngine.step` decodes one."""
        request = self.running[seq]
        self._append_slots(request, len(tokens))
        if request.all_known:
            request.tokens.extend(self._numbers(tokens, request.key))

    def mark_written(self, seq: int, num_tokens: int) -> None:
        """Register the full blocks up to there, as `InferenceEngine.step` does after a prefill.

        It does so once for a request; those of an earlier mark are not registered again.
        """
        request = self.running[seq]
        if request.before_reset:
            return
        before, request.marked = request.marked, max(request.marked, num_tokens)
        full = min(num_tokens, len(request.tokens)) // self.block_size
        for index in range(before // self.block_size, full):
            self.prefix_cache.insert_prefix_block(
                tuple(request.tokens[: (index + 1) * self.block_size]),
                request.block_table.physical_block_ids[index],
                self.block_pool,
            )

    def lookup(self, tokens: Sequence[int], key: Any = None) -> int:
        """What `match_prefix` finds; the blocks that it retains are given back."""
        prompt = self._numbers(tokens, key)
        blocks, cached = self.prefix_cache.match_prefix(prompt, self.block_pool)
        self.block_pool.free_blocks(blocks)
        return int(cached)

    def reset_prefix_cache(self) -> None:
        """Evict all that is cached; the engine has no other way to empty its cache.

        Who registers blocks is the caller: it registers none of a sequence from before.
        """
        self.prefix_cache.evict_lru(self.block_pool, len(self.prefix_cache.last_accessed))
        for request in self.running.values():
            request.before_reset = True

    def write(self, seq: int, start: int, values: npt.NDArray[Any]) -> None:
        """Store keys and values as `InferenceEngine.step` does.

        Those of a prompt are appended to `past_key_values`, which a sequence begins without, and
        all of these are written from position 0 on. A decoded token goes to its own slot
        (`Qwen2Attention.forward`, by `slot_mapping`).
        """
        request = self.running[seq]
        rows = np.array(values, dtype=self.dtype)
        request.written = start + len(rows)
        ids = request.block_table.physical_block_ids
        prefill = rows[: max(0, request.prompt - start)]
        if len(prefill):
            request.past_key_values = [*(request.past_key_values or ()), *prefill]
            keys, data = _halves(np.stack(request.past_key_values))
            self.block_pool.write_sequence_kv(
                layer_idx=0,
                physical_block_ids=ids,
                start_token_idx=0,
                k_seq=keys.transpose(0, 1),
                v_seq=data.transpose(0, 1),
            )
        for position, row in enumerate(rows[len(prefill) :], start + len(prefill)):
            index, offset = divmod(position, self.block_size)
            keys, data = _halves(row[np.newaxis])
            self.block_pool.write_slot(0, ids[index], offset, keys, data)

    def read(self, seq: int) -> npt.NDArray[Any]:
        """What `BlockPool.read_sequence_kv` gathers for `seq`, one row a token."""
        table = self.running[seq].block_table
        parts = self.block_pool.read_sequence_kv(0, table.physical_block_ids, table.num_tokens)
        rows: npt.NDArray[Any] = torch.cat(
            [part[0].transpose(0, 1).flatten(1) for part in parts], 1
        ).numpy()
        return rows

    def attend(self, seq: int, query: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One query over the gathered history, as in `Qwen2Attention.forward`."""
        request = self.running[seq]
        keys, data, mask = self.block_pool.gather_batched_paged_kv(
            0, [request.block_table.physical_block_ids], [request.written]
        )
        groups = HEADS // KV_HEADS
        with one_thread():
            output = F.scaled_dot_product_attention(
                torch.from_numpy(np.array(query, dtype=self.dtype)).reshape(1, HEADS, 1, HEAD_DIM),
                _qwen2.repeat_kv(keys, groups),
                _qwen2.repeat_kv(data, groups),
                attn_mask=mask,
            )
        values: npt.NDArray[Any] = output.reshape(HEADS, HEAD_DIM).numpy()
        return values


def _halves(rows: npt.NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of so many tokens, each of shape `(tokens, heads, head_dim)`."""
    keys, data = torch.from_numpy(rows).tensor_split(2, 1)
    shape = (len(rows), KV_HEADS, HEAD_DIM)
    return keys.reshape(shape), data.reshape(shape)


class MiniInferChecked(MiniInferPool):
    """The same cache, whose caller looks at `BlockPool.num_free` before it takes any slot.

    As `ContinuousScheduler.schedule` does, but for all blocks that are needed and not at most two;
    a hit that cannot be used is given back. It shows what lies behind a refusal half way.
    """

    def _append_slots(self, request: _Request, num_tokens: int) -> None:
        table = request.block_table
        need = -(-(table.num_tokens + num_tokens) // self.block_size)
        need -= len(table.physical_block_ids)
        if self.block_pool.num_free < need:
            if request.cached and not any(request is one for one in self.running.values()):
                table.free(self.block_pool)
            raise OutOfBlocks(f"{need} more blocks: {self!r}")
        super()._append_slots(request, num_tokens)


class MiniInferEvicting(MiniInferChecked):
    """The same, whose caller evicts "when VRAM is tight", in the words of `evict_lru`.

    Nothing in the engine calls it; this factory shows what lies behind.
    """

    contract = evolve(
        MiniInferPool.contract,
        capabilities=("core", "prefix", "eviction", "introspection"),
        # Only evict_lru takes a block out of the cache, and BlockPool.allocate_block calls nothing.
        eviction="explicit",
    )

    def evict(self, num_blocks: int) -> list[int]:
        """The blocks that `evict_lru` has taken out of the cache."""
        before = list(self.prefix_cache.last_accessed)
        self.prefix_cache.evict_lru(self.block_pool, num_blocks)
        return [block for block in before if block not in self.prefix_cache.last_accessed]


class MiniInferTouching(MiniInferEvicting):
    """The same, whose caller looks up all that runs before it evicts, so that this goes last.

    And it asks for no more blocks than nobody uses. That is as far as a caller can help.
    """

    # evict_lru is to "evict the least recently used cached prefix blocks".
    contract = evolve(MiniInferEvicting.contract, order="lru")

    def evict(self, num_blocks: int) -> list[int]:
        """The blocks that `evict_lru` has taken out of the cache, the hits given back before."""
        for request in self.running.values():
            blocks, _ = self.prefix_cache.match_prefix(request.tokens, self.block_pool)
            self.block_pool.free_blocks(blocks)
        counts, cached = self.block_pool.ref_counts, self.prefix_cache.last_accessed
        return super().evict(min(num_blocks, sum(counts[block] == 1 for block in cached)))


class MiniInferStore(MiniInferChecked):
    """The same, with the data of `InferenceEngine.step`: core, prefix, store and attention."""

    contract = evolve(
        MiniInferPool.contract,
        capabilities=("core", "prefix", "store", "attention"),
        # InferenceEngine never evicts: MiniInferPool is judged for that.
        eviction="explicit",
    )


class MiniInferSequences(MiniInferChecked):
    """The same, with the tables that `Sequence` makes for the engine's scheduler: core.

    `InferenceEngine` and the command line's `--block-size` take the block size of the pool.
    """

    contract = evolve(MiniInferPool.contract, capabilities=("core",))

    def _new_table(self) -> Any:
        return _continuous.Sequence(prompt_token_ids=[]).block_table
