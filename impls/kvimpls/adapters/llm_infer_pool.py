"""The paged cache of llm-infer 0.8.0 (Apache-2.0), behind the interface.

The engine is `llm_infer.engines.native`: `BlockPool` and `SequenceKVCache` (kv_cache/pool.py and
kv_cache/sequence.py), with `update_kv_cache` (attention/kv_ops.py) and `NaiveAttentionBackend`
(attention/backends/naive.py) for the data. The calls around them follow engine.py and
generation.py. Nothing is checked and nothing repaired here: a fault of the engine comes through.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import evolve

from kvimpls.adapters.engines import engine
from kvimpls.adapters.small import HEAD_DIM, HEADS, KV_HEADS, SmallHeads, blocks_only, one_thread
from kvspec import Admission, Contract, Geometries, Geometry, OutOfBlocks

_NATIVE = "llm_infer.engines.native"
with engine(
    "llm-infer",
    "0.8.0",
    bare=(
        "llm_infer",
        "llm_infer.engines",
        _NATIVE,
        f"{_NATIVE}.attention",
        f"{_NATIVE}.attention.backends",
    ),
):
    _kv_cache: Any = import_module(f"{_NATIVE}.kv_cache")
    _kv_ops: Any = import_module(f"{_NATIVE}.attention.kv_ops")
    _naive: Any = import_module(f"{_NATIVE}.attention.backends.naive")


class LlmInferPool(SmallHeads):
    """`BlockPool` with a `SequenceKVCache` a sequence: core, admission, store and attention.

    Source: llm-infer 0.8.0, engines/native: kv_cache/, attention/, engine.py, generation.py.
    """

    contract = Contract(
        # Not batch, see LlmInferBatch. A block has one owner, so there is no sharing.
        capabilities=("core", "admission", "store", "attention"),
        # A sequence is an object, not an id: there is none to be unknown or taken. No length is
        # checked: SequenceKVCache.allocate_for_prompt needs no block for a negative one.
        misuse="callers_duty",
        # Nothing bounds a sequence but the pool: EngineConfig.max_seq_len is all of it.
        geometries=Geometries(max_tokens="none"),
    )

    def __init__(self, geometry: Geometry) -> None:
        blocks_only(geometry)
        self.block_pool = _kv_cache.BlockPool(
            num_blocks=geometry.num_blocks,
            block_size=geometry.block_size,
            num_layers=1,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            device="cpu",
            dtype=torch.float32,
        )
        self.running: dict[int, Any] = {}  # as Scheduler.running, of Request.kv_cache

    def __repr__(self) -> str:
        tables = {seq: cache.block_ids for seq, cache in self.running.items()}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq` with `num_tokens` reserved slots, as `InferenceEngine.prefill_request` does.

        So do `generate` and `generate_stream`: in all three the call is outside of any `try`.
        """
        cache = _kv_cache.SequenceKVCache()
        try:
            cache.allocate_for_prompt(self.block_pool, num_tokens)
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from error
        self.running[seq] = cache

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens, one by one as `_finalize_decode_step` does.

        The engine has no call for several at once, so `BlockPool.can_allocate` is asked first.
        """
        cache = self.running[seq]
        need = self._blocks(cache.num_tokens + num_tokens) - cache.num_blocks()
        if not self.block_pool.can_allocate(need):
            raise OutOfBlocks(f"{need} more blocks for sequence {seq}: {self!r}")
        for _ in range(num_tokens):
            cache.append_token(self.block_pool)

    def free(self, seq: int) -> None:
        """End `seq`, as `InferenceEngine.free_request` does."""
        self.running.pop(seq).free_all(self.block_pool)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`, the engine's own."""
        table: list[int] = self.running[seq].get_block_table()
        return table

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as available."""
        count: int = self.block_pool.num_free_blocks
        return count

    def can_allocate(self, num_tokens: int) -> Admission:
        """What `BlockPool.can_allocate` says; what is more than the pool has can never be."""
        need = self._blocks(num_tokens)
        if self.block_pool.can_allocate(need):
            return Admission.OK
        return Admission.NEVER if need > self.block_pool.num_blocks else Admission.LATER

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // int(self.block_pool.block_size))

    def write(self, seq: int, start: int, values: npt.NDArray[Any]) -> None:
        """Store keys and values by `update_kv_cache`, as a forward pass up to there does."""
        rows = torch.from_numpy(np.array(values, dtype=self.dtype))
        keys, data = (part.reshape(1, len(rows), KV_HEADS, -1) for part in rows.tensor_split(2, 1))
        reached = _kv_cache.SequenceKVCache(self.running[seq].block_ids, start + len(rows))
        _kv_ops.update_kv_cache(keys, data, 0, [reached], self.block_pool)

    def read(self, seq: int) -> npt.NDArray[Any]:
        """What the attention backend gathers for `seq`, one row a token."""
        gathered = _naive._gather_kv(self.running[seq], self.block_pool, 0, KV_HEADS, KV_HEADS)
        if gathered is None:
            return np.empty((0, self.width), self.dtype)
        rows: npt.NDArray[Any] = torch.cat([part.flatten(1) for part in gathered], 1).numpy()
        return rows

    def attend(self, seq: int, query: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The engine's attention of one query over all tokens of `seq`, as in a decode step."""
        heads = torch.from_numpy(np.array(query, dtype=self.dtype)).reshape(1, 1, HEADS, HEAD_DIM)
        with one_thread():
            output = _naive.NaiveAttentionBackend().forward(
                heads, 0, [self.running[seq]], self.block_pool, HEADS, KV_HEADS, HEAD_DIM**-0.5
            )
        values: npt.NDArray[Any] = output.reshape(HEADS, HEAD_DIM).numpy()
        return values


class LlmInferAsking(LlmInferPool):
    """The same pool, whose caller asks `BlockPool.can_allocate` before it allocates a prompt.

    Nothing in the engine asks. This factory shows what lies behind a prompt that is refused.
    """

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Start `seq`, unless the pool says that it cannot."""
        if not self.block_pool.can_allocate(self._blocks(num_tokens)):
            raise OutOfBlocks(f"no room for the {num_tokens} tokens of sequence {seq}: {self!r}")
        super().allocate(seq, num_tokens)


class LlmInferBatch(LlmInferAsking):
    """The same again, with the batched decode step as *batch*: core, admission and batch.

    `InferenceEngine.step_decode` is the engine's only way to decode several requests at once.
    """

    contract = evolve(LlmInferPool.contract, capabilities=("core", "admission", "batch"))

    def append_batch(self, seqs: Sequence[int], num_tokens: int | Sequence[int]) -> None:
        """Reserve slots for one sequence after the other, as the loop of `run_decode_batch` does.

        There each gets one token.
        """
        for seq, count in zip(seqs, np.broadcast_to(num_tokens, (len(seqs),)), strict=True):
            self.append(int(seq), int(count))
