"""transformers 5.24: what the last forward pass of a request completes never gets into the cache.

`ContinuousBatchProcessor.update_batch` says "Register the hashes of the blocks completed in this
forward pass (before the request may finish)". But the call before that one,
`update_and_check_completion`, has set the status to FINISHED already, and then
`PagedAttentionCache.mark_complete_blocks` returns at once: it takes a finished request for one that
has lost its block table, as may happen with asynchronous batches. So requests for one new token
(scores, choices, classes) publish nothing of their prompts, however long, and each of them computes
the shared instructions again; and of a longer request the last block may be missing.

Reached through the engine's own loop: by `generate_batch`, with a random model of one layer on the
CPU. The interface of the suite has no call that ends a sequence in the step that writes it, so the
suite does not find this.

Needed is transformers==5.24 with torch.
"""

import logging

from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

logging.disable(logging.WARNING)
PAGE = 16
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    vocab_size=128,
    bos_token_id=None,
    eos_token_id=None,
)


def cached_after(num_tokens, num_new_tokens):
    """How many blocks have a hash when a request of so many tokens has ended, in a new cache."""
    model = LlamaForCausalLM(config).eval()
    outputs = model.generate_batch(
        [[i % 128 for i in range(num_tokens)]],
        generation_config=GenerationConfig(
            max_new_tokens=num_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=32, max_batch_tokens=256
        ),
        persistent_manager=True,
        warmup=False,
    )
    (output,) = outputs.values()
    assert len(output.generated_tokens) == num_new_tokens, output.error
    cache = model._cached_continuous_batching_manager.batch_processor.cache
    return len(cache.cache_allocators["full_attention"].ledger.hash_to_block)


two, one = cached_after(10 * PAGE, 2), cached_after(10 * PAGE, 1)
print(f"a prompt of 10 blocks, 2 new tokens: {two} blocks are cached")
print(f"the same prompt, 1 new token: {one} blocks are cached")
assert (two, one) == (10, 0)

# The last of n new tokens is never written, so 15 tokens and 18 new ones are 32 in the cache.
later, last = cached_after(PAGE - 1, PAGE + 3), cached_after(PAGE - 1, PAGE + 2)
print(f"33 tokens are written: {later} blocks are cached; 32 are written: {last}, of 2 full ones")
assert (later, last) == (2, 1)
