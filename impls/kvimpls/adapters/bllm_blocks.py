"""The blocks and caches of bllm-inference 0.1.0, behind the interface.

The engine (MIT licence) has two ways to its blocks. `Scheduler` reserves all blocks of a request
when it admits it, and the attention keeps keys and values in one contiguous row a batch slot:
`Requests` is that way. `PagedQwen.allocate_sequence` and `free_sequence` do the same for callers
without a scheduler, `PageTable.append_blocks` grows a table, and `PagedKVCache` and
`PagedAttention.forward_naive` write, read and attend in pages: `Sequences` is that way.

Both do what the engine's callers do around each call. They repair nothing: a fault of the engine
comes through.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import torch
from attrs import evolve

from kvimpls.adapters.engines import engine
from kvimpls.adapters.small import HEAD_DIM, KV_HEADS, one_thread
from kvspec import (
    Contract,
    Exact,
    Geometries,
    Geometry,
    InvalidLength,
    OutOfBlocks,
    SequenceExists,
    ToMax,
    UnknownSequence,
)

# Only models of transformers are looked for there, and none is run here.
with engine("bllm-inference", "0.1.0", bare=("bllm",), stand_ins=("transformers", "flash_attn")):
    PagedAttention: Any = import_module("bllm.attention.paged_attention").PagedAttention
    BlockAllocator: Any = import_module("bllm.core.block_allocator").BlockAllocator
    InferenceConfig: Any = import_module("bllm.core.config").InferenceConfig
    PagedCacheConfig: Any = import_module("bllm.core.config").PagedCacheConfig
    PagedKVCache: Any = import_module("bllm.core.kv_cache").PagedKVCache
    PageTable: Any = import_module("bllm.core.page_table").PageTable
    PagedQwen: Any = import_module("bllm.models.qwen").PagedQwen
    InferenceRequest: Any = import_module("bllm.scheduler.request").InferenceRequest
    Scheduler: Any = import_module("bllm.scheduler.scheduler").Scheduler


def _cache_config(geometry: Geometry) -> Any:
    """The engine's settings of a cache for a model of one layer, small and exact in its sums."""
    return PagedCacheConfig(
        num_layers=1,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=geometry.block_size,
        num_blocks=geometry.num_blocks,
        dtype=torch.float32,
        device="cpu",
    )


def _inference_config(geometry: Geometry) -> Any:
    # The engine has no setting for sequences without a limit: so long as the pool is, then.
    return InferenceConfig(max_seq_len=geometry.max_tokens or geometry.capacity)


def _page_table(config: Any, inference: Any) -> Any:
    """The engine's tables for its batch, as both its scheduler and its model have them."""
    return PageTable(
        max_batch_size=inference.max_batch_size,
        max_blocks_per_seq=inference.max_blocks_per_seq(config.block_size),
        block_size=config.block_size,
        device="cpu",
    )


def _keys_and_values(values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as the engine's tensors, each of shape `[rows, num_kv_heads, head_dim]`."""
    rows = torch.tensor(values, dtype=torch.float32)
    keys, numbers = rows.view(len(rows), 2, KV_HEADS, HEAD_DIM).unbind(1)
    return keys, numbers


def _rows(keys: torch.Tensor, values: torch.Tensor) -> Any:
    """The inverse: rows of the keys of all heads, and then their values."""
    return torch.cat([keys.flatten(1), values.flatten(1)], dim=1).numpy()


class Requests:
    """`Scheduler` with its allocator, page table and contiguous cache: core and store.

    The rows of a token lie where the engine's own steps write them: at the position that
    `SchedulerOutput` names. A sequence is a request. An empty prompt cannot be prefilled, so one is
    submitted with its first tokens. How long it will get is not known here, so it asks for all that
    `max_seq_len` allows.

    Source: bllm-inference 0.1.0, scheduler/scheduler.py, scheduler/request.py and, for the calls'
    surroundings, engine/inference_engine.py and attention/paged_attention.py.
    """

    contract: Contract = Contract(
        # Not sharing: BlockAllocator has "no reference counting". Not admission: can_allocate says
        # yes or no, and the answer "never" is add_request's, which is a deed.
        capabilities=("core", "store"),
        # Scheduler._try_admit_requests allocates for expected_total_len, "prompt + max generation".
        reservation=ToMax(),
        # Ids are uuid4 in InferenceEngine.generate, and nothing looks whether one is in use; tokens
        # are lists, of which no length is negative; nobody asks for a request that is not there.
        misuse="callers_duty",
        # InferenceConfig.max_seq_len has no value for "no limit".
        geometries=Geometries(max_tokens="required"),
    )

    width = 2 * KV_HEADS * HEAD_DIM
    dtype = "float32"

    def __init__(self, geometry: Geometry) -> None:
        config, inference = _cache_config(geometry), _inference_config(geometry)
        self.max_seq_len: int = inference.max_seq_len
        self.page_table: Any = _page_table(config, inference)
        self.allocator: Any = BlockAllocator(config.num_blocks, config.block_size)
        self.scheduler: Any = Scheduler(config, inference, self.allocator, self.page_table)
        self.kv_cache: Any = PagedKVCache(config)
        self.requests: dict[int, Any] = {}  # None for one that has no tokens yet
        self.positions: dict[int, list[int]] = {}  # where the engine writes each token

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.requests}
        return f"{type(self).__name__}({tables}, {self.scheduler.get_stats()})"

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Submit a request with a prompt of `num_tokens`, to be admitted at once."""
        request = self._admitted(num_tokens) if num_tokens else None
        self.requests[seq] = request
        self.positions[seq] = list(range(num_tokens))  # InferenceEngine._run_prefill: from 0 on

    def _admitted(self, num_tokens: int) -> Any:
        request = InferenceRequest(
            request_id=str(uuid4()),
            prompt_tokens=range(num_tokens),
            max_new_tokens=max(0, self.max_seq_len - num_tokens),
        )
        # InferenceEngine.generate: add_request, whose refusal marks the request as failed; then
        # _step, in which Scheduler.schedule admits it or leaves it in the queue, from which
        # abort_request takes it.
        if not self.scheduler.add_request(request):
            raise OutOfBlocks(request.error_message)
        self.scheduler.schedule()
        if request.sequence.batch_slot < 0:
            self.scheduler.abort_request(request.request_id)
            raise OutOfBlocks(f"it waits: {self.num_free_blocks()} blocks are free")
        return request

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for tokens of `seq` that were generated one after the other."""
        request = self.requests[seq]
        if request is None:
            if num_tokens:
                self.allocate(seq, num_tokens)
            return
        for _ in range(num_tokens):
            self._generated(request)
            # InferenceEngine._step runs the next decode at the position that schedule() names.
            output = self.scheduler.schedule()
            place = output.decode_requests.index(request)
            self.positions[seq].append(output.decode_start_positions[place])

    def _generated(self, request: Any) -> None:
        # Scheduler.process_outputs, without its conditions for stopping: the caller ends it.
        state = request.sequence
        if not state.prompt_processed:
            state.prompt_processed = True
            state.cache_position = state.prompt_len
        state.append_token(0)

    def free(self, seq: int) -> None:
        """End `seq`: a request that is finished, or aborted."""
        request = self.requests.pop(seq)
        del self.positions[seq]
        if request is not None:
            self.scheduler._complete_request(request)  # of process_outputs, and of abort_request

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        request = self.requests[seq]
        if request is None:
            return []
        blocks: list[int] = self.page_table.get_physical_blocks(request.sequence.batch_slot)
        return blocks

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as free."""
        count: int = self.allocator.num_free_blocks
        return count

    def write(self, seq: int, start: int, values: Any) -> None:
        """Write rows where the engine's own steps write them.

        As `PagedAttention.forward`: the prompt from position 0 on, then each token of a decode at
        the position that the scheduler gave it.
        """
        keys, numbers = _keys_and_values(values)
        for row in range(len(keys)):
            self.kv_cache.write_contiguous(
                layer_idx=0,
                start_pos=self.positions[seq][start + row],
                keys=keys[row : row + 1],
                values=numbers[row : row + 1],
                batch_idx=self.requests[seq].sequence.batch_slot,
            )

    def read(self, seq: int) -> Any:
        """The rows that a decode attends to: all from position 0 on."""
        length = len(self.positions[seq])
        if length == 0:
            return torch.zeros(0, self.width).numpy()
        slot = self.requests[seq].sequence.batch_slot
        return _rows(*self.kv_cache.read_contiguous(0, length, slot))


class PlacedRequests(Requests):
    """The same requests, whose rows lie where the suite's caller asks for them: core and store.

    `write_contiguous` takes any "starting position in sequence". So the cache and its slots are
    judged apart from the positions that the scheduler gives.
    """

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for generated tokens of `seq`, at the positions that follow."""
        length = len(self.positions[seq])
        super().append(seq, num_tokens)
        self.positions[seq] = list(range(length + num_tokens))


class LimitedRequests(Requests):
    """The same requests, with lengths beyond `max_seq_len` among them: core.

    The suite asks for such lengths where misuse raises. What no caller of the engine can do (give
    an id twice, name an unknown request, have a list of a negative or broken length, generate more
    than `max_new_tokens`) is refused here; the length of a prompt is the engine's to judge.
    """

    contract = evolve(
        Requests.contract,
        capabilities=("core",),
        misuse="raises",
        # max_seq_len counts for the engine in blocks only (InferenceConfig.max_blocks_per_seq), so
        # that a little more goes unnoticed in a last block. With blocks of one token it does not.
        geometries=Geometries(block_sizes=(1,), max_tokens="required"),
    )

    def allocate(self, seq: int, num_tokens: int) -> None:
        """Submit a request of any length; the engine's `ValueError` is an `InvalidLength`."""
        if seq in self.requests:
            raise SequenceExists(seq)
        if type(num_tokens) is not int or num_tokens < 0:
            raise InvalidLength(num_tokens)
        try:
            super().allocate(seq, num_tokens)
        except ValueError as error:  # of PageTable.set_mapping, through Scheduler.schedule
            raise InvalidLength(str(error)) from error
        except OutOfBlocks as error:  # add_request looks at the pool first, and fails it for good
            if num_tokens > self.max_seq_len:
                raise InvalidLength(str(error)) from error
            raise

    def append(self, seq: int, num_tokens: int) -> None:
        """Generate tokens of `seq`, at most `max_new_tokens`."""
        if seq not in self.requests:
            raise UnknownSequence(seq)
        if type(num_tokens) is not int or num_tokens < 0:
            raise InvalidLength(num_tokens)
        if self.positions[seq] and len(self.positions[seq]) + num_tokens > self.max_seq_len:
            raise InvalidLength(num_tokens)
        try:
            super().append(seq, num_tokens)
        except ValueError as error:
            raise InvalidLength(str(error)) from error

    def free(self, seq: int) -> None:
        """End a request that is there."""
        if seq not in self.requests:
            raise UnknownSequence(seq)
        super().free(seq)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of a request that is there."""
        if seq not in self.requests:
            raise UnknownSequence(seq)
        return super().block_table(seq)


class Sequences:
    """The calls for sequences without a scheduler, in pages: core, reservation, store, attention.

    `PagedQwen` is a model, of which `allocate_sequence` and `free_sequence` use the four parts
    that are put together here as its `__init__` does. A sequence of no tokens has no blocks yet.

    Source: bllm-inference 0.1.0, models/qwen.py, core/page_table.py, core/kv_cache.py and
    attention/paged_attention.py.
    """

    contract: Contract = Contract(
        # Not sharing and not admission, as above.
        capabilities=("core", "reservation", "store", "attention"),
        # PagedQwen.allocate_sequence: blocks for "total expected length (prompt + generation)".
        # PageTable.append_blocks adds more where there was none.
        reservation=Exact(),
        # The slot in the batch is the caller's to choose, and PageTable checks only that there is
        # such a slot: set_mapping overwrites one in use. No length is checked, and write_batch
        # takes the table's -1, "an unallocated block", for an index like others.
        misuse="callers_duty",
    )

    width = 2 * KV_HEADS * HEAD_DIM
    dtype = "float32"
    n_heads = 2 * KV_HEADS
    n_kv_heads = KV_HEADS
    d_k = HEAD_DIM
    d_v = HEAD_DIM

    def __init__(self, geometry: Geometry) -> None:
        config, inference = _cache_config(geometry), _inference_config(geometry)
        self.page_table: Any = _page_table(config, inference)
        self.allocator: Any = BlockAllocator(config.num_blocks, config.block_size)
        self.kv_cache: Any = PagedKVCache(config)
        self.model: Any = SimpleNamespace(
            cache_config=config,
            block_allocator=self.allocator,
            page_table=self.page_table,
            kv_cache=self.kv_cache,
        )
        self.attention: Any = PagedAttention(
            self.n_heads, self.n_kv_heads, HEAD_DIM, config.block_size, use_flex_attention=False
        )
        self.free_slots = set(range(inference.max_batch_size))  # as BatchManager._free_slots
        self.slots: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.limits: dict[int, int | None] = {}

    def __repr__(self) -> str:
        tables = {seq: self.block_table(seq) for seq in self.slots}
        return f"{type(self).__name__}({tables}, free={self.num_free_blocks()})"

    def allocate(self, seq: int, num_tokens: int, *, limit: int | None = None) -> None:
        """Start `seq` with blocks for `limit` tokens, or for those that it has."""
        slot = min(self.free_slots)  # BatchManager.get_free_slot
        self._begun(slot, num_tokens, limit)
        self.free_slots.remove(slot)
        self.slots[seq], self.lengths[seq], self.limits[seq] = slot, num_tokens, limit

    def _begun(self, slot: int, num_tokens: int, limit: int | None) -> None:
        total = num_tokens if limit is None else limit
        if num_tokens and not PagedQwen.allocate_sequence(self.model, slot, total):
            raise OutOfBlocks(f"{self.num_free_blocks()} blocks are free")

    def append(self, seq: int, num_tokens: int) -> None:
        """Reserve slots for `num_tokens` more tokens of `seq`."""
        slot, length = self.slots[seq], self.lengths[seq]
        if length == 0:
            self._begun(slot, num_tokens, self.limits[seq])
        else:
            held = self.page_table.get_num_blocks(slot)
            needed = self.model.cache_config.blocks_needed(length + num_tokens) - held
            if not self.allocator.can_allocate(needed):  # as PagedQwen.allocate_sequence asks
                raise OutOfBlocks(f"{self.num_free_blocks()} blocks are free")
            self.page_table.append_blocks(slot, self.allocator.allocate(needed))
        self.lengths[seq] = length + num_tokens

    def free(self, seq: int) -> None:
        """End `seq`."""
        slot = self.slots.pop(seq)
        del self.lengths[seq], self.limits[seq]
        PagedQwen.free_sequence(self.model, slot)
        self.free_slots.add(slot)

    def block_table(self, seq: int) -> list[int]:
        """A snapshot of the blocks of `seq`."""
        blocks: list[int] = self.page_table.get_physical_blocks(self.slots[seq])
        return blocks

    def num_free_blocks(self) -> int:
        """The blocks that the engine counts as free."""
        count: int = self.allocator.num_free_blocks
        return count

    def write(self, seq: int, start: int, values: Any) -> None:
        """Write rows through the page table, which is told how long the sequence now is."""
        keys, numbers = _keys_and_values(values)
        slot = self.slots[seq]
        self.kv_cache.write_batch(0, self.page_table, [slot], [start], keys[None], numbers[None])
        self.page_table.set_seq_length(slot, start + len(keys))

    def read(self, seq: int) -> Any:
        """All rows of `seq`, as `PagedAttention.forward_naive` reads them."""
        table = self.page_table.get_batch_page_table([self.slots[seq]])
        length = self.lengths[seq]
        keys, values = self.kv_cache.read_paged(0, table, torch.tensor([length]), length)
        return _rows(keys[0], values[0])

    def attend(self, seq: int, query: Any) -> Any:
        """The attention of the last position of `seq`, by the engine's own reading of pages."""
        rows = torch.tensor(query, dtype=torch.float32)[None, None]
        slots = [self.slots[seq]]
        with one_thread():
            output = self.attention.forward_naive(rows, self.kv_cache, self.page_table, 0, slots)
        return output[0, 0].numpy()


class ContiguousSequences(Sequences):
    """The same calls, with rows in the contiguous cache, as `PagedAttention.forward` writes them.

    `PagedQwen.free_sequence` clears that cache, not the pages. Attention is left out: a decode
    writes and attends in one call.
    """

    contract = evolve(Sequences.contract, capabilities=("core", "reservation", "store"))

    def write(self, seq: int, start: int, values: Any) -> None:
        """Write rows into the sequence's slot of the batch."""
        self.kv_cache.write_contiguous(0, start, *_keys_and_values(values), self.slots[seq])

    def read(self, seq: int) -> Any:
        """All rows of `seq`."""
        slot = self.slots[seq]
        return _rows(*self.kv_cache.read_contiguous(0, self.lengths[seq], slot))
