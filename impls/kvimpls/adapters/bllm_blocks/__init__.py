"""The blocks and caches of bllm-inference 0.1.0, behind the interface.

The engine (MIT licence) has two ways to its blocks. `Scheduler` reserves all blocks of a request
when it admits it, and the attention keeps keys and values in one contiguous row a batch slot:
`Requests` is that way. `PagedQwen.allocate_sequence` and `free_sequence` do the same for callers
without a scheduler, `PageTable.append_blocks` grows a table, and `PagedKVCache` and
`PagedAttention.forward_naive` write, read and attend in pages: `Sequences` is that way.

Both do what the engine's callers do around each call. They repair nothing: a fault of the engine
comes through.
"""
