"""The block manager of vLLM's V0, as vllm-block 0.1.0 has it, behind the interface.

The engine is `vllm.core`: `SelfAttnBlockSpaceManager` (block_manager.py) on `CpuGpuBlockAllocator`
and `BlockTable` (block/). The distribution's package is published as `vllm_block` and imports
itself as `vllm`. It is vLLM's V0 of early 2025; what its scheduler (core/scheduler.py) does around
the calls is followed here by name. Nothing is repaired.

Licence: the distribution says MIT; the files say Apache-2.0.
"""
