"""The block managers and the prefix cache of lmdeploy 0.18.0's PyTorch engine.

The engine is `lmdeploy.pytorch.paging` (Apache-2.0, Copyright 2023-2024 Shanghai AI Laboratory):
`DefaultBlockManager` and `WindowBlockManager` (block_manager/), `BlockTrie` (block_trie/), and what
its scheduler has around them: `SchedulerSession` and `SchedulerSequenceDefault` (messages.py,
strategies/ar/sequence.py), `SequenceLifecycle` (seq_states/), `RecomputeEvictionHelper`
(eviction_helper/), `_TentativePrefixMatch` (prefill_scheduler.py) and `KVSaveCoordinator`. They are
put together as `Scheduler.__init__` does it, and called as `Scheduler` calls them; nothing is
checked and nothing is repaired here.

Version 0.18.0 has no fork of a sequence: its blocks are shared by the prefix cache only. So sharing
is claimed by `SharingBlockManager` alone, whose fork is made of what the cache does for a hit.
"""
