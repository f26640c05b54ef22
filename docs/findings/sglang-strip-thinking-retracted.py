"""sglang 0.5.23: with --strip-thinking-cache, a request that was retracted frees cached pages.

A retracted request is prefilled again with its prompt and what it has generated so far, and
`checkpoint_kv_cache` puts all of that into the radix tree: `cache_protected_len` is beyond the
prompt then. When it finishes, `Req.owned_kv_len` is the prompt's length, because its thinking is
not to be cached. `RadixCache.checkpoint(up_to=)` sets `cache_protected_len` back to that, and
`release_kv_cache` frees the rest of the row, of which the tree has a part: these pages are free
and cached at once. The next request gets them and writes into them, while the tree gives them to
others for their old contents.

The default tree of 0.5.23 is `UnifiedRadixCache`, whose `checkpoint_into_tree` asserts that
`cache_protected_len` does not go back, and would stop there (read, not run). `RadixCache` is the
tree under `FlexKVRadixCache` and `PureSWARadixCache`.

Shown with the engine's own `checkpoint`, `release_kv_cache`, `owned_kv_len` (its text, as the
module of `Req` is not loaded here), allocator and tree. The steps are those of the scheduler:
prefill after the retraction, checkpoint, finish.

Needed are the Python files of sglang==0.5.23, and torch, transformers and msgspec; no model.
"""

import importlib.machinery
import os
import sys
from array import array
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

PLACE = Path(os.environ.get("KVSPEC_WILD", "build/wild"), "sglang")
BARE = "sglang sglang.srt sglang.srt.configs sglang.srt.managers sglang.srt.mem_cache"
UNUSED = "orjson pybase64 starlette triton zmq sglang.kernels sglang.srt.disaggregation"
UNUSED += " sglang.srt.distributed sglang.srt.layers sglang.srt.observability"


class Unused(ModuleType):
    """A module for GPUs, servers or metrics, from which names are imported and not used."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class Finder:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in UNUSED.split()):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Unused(spec.name)

    def exec_module(self, module):
        pass


sys.path.insert(0, str(PLACE))
sys.meta_path.insert(0, Finder())
for name in BARE.split():  # packages without their __init__
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = [str(Path(place, *name.split("."))) for place in sys.path]

import torch

common = import_module("sglang.srt.mem_cache.common")
base = import_module("sglang.srt.mem_cache.base_prefix_cache")
paged = import_module("sglang.srt.mem_cache.allocator")
pools = import_module("sglang.srt.mem_cache.memory_pool")
radix = import_module("sglang.srt.mem_cache.radix_cache")
params = import_module("sglang.srt.mem_cache.cache_init_params")

# The options of a server that was started with --strip-thinking-cache.
common.get_serving = lambda: SimpleNamespace(strip_thinking_cache=True)
common.get_spec = lambda: SimpleNamespace(speculative_algorithm=None)

PAGE = 4
pool = pools.ReqToTokenPool(8, 64, "cpu", enable_memory_saver=False)
allocator = paged.PagedTokenToKVPoolAllocator(
    16 * PAGE, PAGE, torch.float16, "cpu", kvcache=None, need_sort=False
)
tree = radix.RadixCache(params.CacheInitParams(False, pool, allocator, PAGE))


class Request:
    """What the functions here read of a `Req`; its prompt, and what it has generated."""

    extra_key = cache_salt = priority = None
    skip_radix_cache_insert = False

    def __init__(self, prompt, generated, reasoning_tokens):
        self.origin_input_ids = array("q", prompt)
        self.full_untruncated_fill_ids = array("q", prompt + generated)
        self.reasoning_tokens = reasoning_tokens
        self.finished_len = None
        self.kv = SimpleNamespace(
            holds_kv=False, is_kv_released=True, cache_protected_len=0, cache_inserted_len=0,
            kv_committed_len=0, kv_allocated_len=0, swa_evict_floor=0, req_pool_idx=None,
        )  # fmt: skip
        self.kv.get_evicted_seqlen = lambda component: 0
        self.kv.swa_dead_lo = lambda page: self.kv.cache_protected_len
        self.kv.mark_kv_released = lambda: None

    def finished(self):
        return True

    def refresh_fill_ids(self):
        """They are complete."""

    def owned_kv_len(self):
        """As in schedule_batch.py, first statement, for this option."""
        if self.reasoning_tokens > 0:
            return min(self.kv.kv_committed_len, len(self.origin_input_ids))
        return self.kv.kv_committed_len

    def prefill(self):
        """alloc_for_extend for a request that finds nothing in the cache."""
        size = len(self.full_untruncated_fill_ids)
        self.last_node = tree.root_node
        self.lock = tree.lock(self.last_node)
        [self.kv.req_pool_idx] = pool.alloc([self])
        lens = torch.tensor([0]), torch.tensor([size])
        slots = allocator.alloc_extend(lens[0], lens[0], lens[1], lens[1], torch.tensor([-1]), size)
        pool.write((self.kv.req_pool_idx, slice(0, size)), slots.int())
        self.kv.holds_kv, self.kv.is_kv_released = True, False
        self.kv.kv_allocated_len = self.kv.kv_committed_len = size


def pages(tensor):
    return set((tensor // PAGE).tolist())


# A prompt of 10 tokens; 8 were generated, in thinking, when the request was retracted.
request = Request(list(range(10)), list(range(10, 18)), reasoning_tokens=8)
request.prefill()
tree.checkpoint(request, up_to=18)  # checkpoint_kv_cache, after the prefill
print(f"prefilled again: the tree has {tree.total_size()} of 18 tokens")
assert request.kv.cache_protected_len == 16

common.release_kv_cache(request, tree, checkpoint=True)
cached, free = pages(tree.all_values_flatten()), pages(allocator.free_pages * PAGE)
print(f"finished: pages {sorted(cached)} are cached, and {sorted(cached & free)} are free as well")
assert len(cached & free) == 2
total = allocator.available_size() + tree.evictable_size()
print(f"available and evictable are {total} tokens, of a pool of {allocator.size}")
assert total > allocator.size

taken = pages(allocator.alloc(len(cached & free) * PAGE))
key = radix.RadixKey(array("q", range(17)))
hit = tree.match_prefix(base.MatchPrefixParams(key=key))
found = pages(tree.path_device_indices(hit.last_device_node))
print(f"another request gets pages {sorted(taken)}, and a third one finds {sorted(found)} cached")
assert taken & found
