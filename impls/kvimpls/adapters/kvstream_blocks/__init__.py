"""The block manager and the prefix cache of kvstream 0.1.0, behind the interface.

The engine is `kvstream.memory`: `BlockManager` (block_manager.py) and `PrefixKVCache`
(prefix_cache.py). They are pure Python and need no model. What their callers do around them is in
`ContinuousBatchScheduler` (scheduler/continuous_batch.py) and `KVStreamEngine.generate`
(engine.py), and is followed here by name. Nothing is checked and nothing is repaired.

Licence: the file LICENSE of the distribution is MIT (Copyright (c) Microsoft Corporation); its
classifier and its README say Apache-2.0.
"""
