"""transformers 5.24: a request for several sequences fails all, where one token is left to compute.

`Scheduler._schedule_request` keeps the last token of a prompt with children back, so that they
are forked before it: the budget becomes `len(request_tokens) - 1`. Where the prefix cache has all
but one token, that is zero, and the request is scheduled for no tokens. Alone in its batch (as
when it is the only one that waits) it makes a forward pass of no tokens, which raises in the
attention; the generation thread ends, and every request that is there fails with it. A prompt of
one block and a token that comes twice is enough; so is a prompt of one token, without any cache.

Reached through the engine's own loop: by `generate_batch`, with a random model of one layer on the
CPU. The allocator does what it was asked for, so that the suite does not find this.

Needed is transformers==5.24 with torch.
"""

import logging

from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

logging.disable(logging.CRITICAL)
PAGE = 16
model = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=128,
        bos_token_id=None,
        eos_token_id=None,
    )
).eval()


def ask(num_tokens):
    """Two sequences of four new tokens each for a prompt; the sequences, and the errors."""
    outputs = model.generate_batch(
        [[i % 128 for i in range(num_tokens)]],
        generation_config=GenerationConfig(
            max_new_tokens=4,
            num_return_sequences=2,
            do_sample=True,
            eos_token_id=-1,
            pad_token_id=0,
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=32, max_batch_tokens=256
        ),
        persistent_manager=True,
        warmup=False,
    ).values()
    return sum(len(one.generated_tokens) == 4 for one in outputs), {one.error for one in outputs}


assert ask(PAGE + 1) == (2, {None})
print("a prompt of a block and a token, two sequences: both are there")
done, errors = ask(PAGE + 1)
print(f"the same again, with the block cached: {done} are there, {errors}")
assert done == 0
assert all("0 elements" in error for error in errors)

done, errors = ask(1)
assert done == 0
assert all("0 elements" in error for error in errors)
print(f"and a prompt of one token, two sequences: {done} are there")
