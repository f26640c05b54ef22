"""The engine's own modules, as it was published."""

from importlib import import_module
from typing import Any

from kvimpls.adapters.engines import engine

# The packages whose __init__ imports servers and models, and the model agent, which a module here
# imports for its annotations.
with engine(
    "lmdeploy",
    "0.18.0",
    bare=(
        "lmdeploy",
        "lmdeploy.vl",
        "lmdeploy.pytorch",
        "lmdeploy.pytorch.disagg",
        "lmdeploy.pytorch.disagg.conn",
        "lmdeploy.pytorch.strategies",
        "lmdeploy.pytorch.strategies.ar",
    ),
    stand_ins=("lmdeploy.pytorch.engine",),
):
    config: Any = import_module("lmdeploy.pytorch.config")
    messages: Any = import_module("lmdeploy.pytorch.messages")
    managers: Any = import_module("lmdeploy.pytorch.paging.block_manager")
    trie: Any = import_module("lmdeploy.pytorch.paging.block_trie")
    eviction: Any = import_module(
        "lmdeploy.pytorch.paging.eviction_helper.recompute_eviction_helper"
    )
    loads: Any = import_module("lmdeploy.pytorch.paging.kv_load_coordinator")
    saves: Any = import_module("lmdeploy.pytorch.paging.kv_save_coordinator")
    prefill: Any = import_module("lmdeploy.pytorch.paging.prefill_scheduler")
    lifecycle: Any = import_module("lmdeploy.pytorch.paging.seq_states")
    states: Any = import_module("lmdeploy.pytorch.paging.state_manager")
    strategy: Any = import_module("lmdeploy.pytorch.strategies.ar.sequence")
