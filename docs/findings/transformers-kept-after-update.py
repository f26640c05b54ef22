"""transformers 5.24: after the model's weights changed, a kept manager still serves the old blocks.

A manager that is kept (`persistent_manager=True`) gets `ContinuousBatchProcessor.reset` "for a new
generation loop". It frees all requests with `free_all_requests()`, whose `clear_ledgers` is left at
False, so that every complete block stays cached. Where the weights were changed in between (a step
of training, another adapter), the next request with the same prompt reads keys and values of the
model that was, silently. No public method empties the cache. For `pause`, "typically to update" the
model, "keeping its cache" is at least said.

Reached through the engine's own loop: by `generate_batch`, with random models of two layers on the
CPU. No operation of the suite says that all contents have lost their meaning, so the suite does
not find this.

Needed is transformers==5.24 with torch.
"""

import logging

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

logging.disable(logging.WARNING)


def model(seed):
    """A random model, whose weights are large enough for its tokens to depend on them."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=128,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def ask(one, sharing):
    """Eight tokens after a prompt of four blocks and a token."""
    outputs = one.generate_batch(
        [list(range(65))],
        generation_config=GenerationConfig(
            max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=32, max_batch_tokens=256, allow_block_sharing=sharing
        ),
        persistent_manager=True,
        warmup=False,
    )
    (output,) = outputs.values()
    return output.generated_tokens


right = ask(model(1), sharing=True)
print(f"a new manager:                           {right}")
for sharing in (False, True):
    kept = model(0)
    ask(kept, sharing)
    kept.load_state_dict(model(1).state_dict())
    tokens = ask(kept, sharing)
    print(f"one kept over an update, sharing {sharing!s:5}:  {tokens}")
    assert (tokens == right) == (not sharing)
