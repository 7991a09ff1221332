"""What a decode step reads of the sampler's cache, by arithmetic on the settings."""

from jigsaw_jax.model import paged
from jigsaw_jax.planning.costs import Kernel
from jigsaw_jax.settings import Train, sizes

# Of HBM's bandwidth that the paged kernel reaches in a decode step. No figure of it on
# these chips is published; a later kernel of the same authors reaches 0.86 at its best
# (arXiv 2604.15464, on TPU7x).
BANDWIDTH = 0.7


def mean_tokens(train: Train) -> float:
    """Places of a slot that a decode step reads.

    A cache of slots is read whole. Of pages the kernel reads those up to the slot's
    end. Prompts and completions are taken to be as long as they may, and a slot is
    filled again as soon as it ends, so a completion is half there on average.
    """
    sampler = train.sampler
    if sampler.cache == "slots":
        return float(sampler.length_max)
    return sampler.prompt_buckets[-1] + sampler.new_tokens_max / 2


def token_bytes(train: Train) -> float:
    """Keys and values of one token on one chip that has them, all layers."""
    heads, tensor = train.decoder.num_kv_heads, train.mesh.sampler_tensor
    held = heads
    if train.sampler.cache == "pages":
        held = paged.cached_heads(heads, tensor)
    spread = tensor if held % tensor == 0 else 1
    return sizes.token_bytes(train) * held / heads / spread


def step_bytes(train: Train) -> float:
    """Keys and values that a step has to read on one chip."""
    slots = train.sampler.slots / train.mesh.sampler_data
    return slots * mean_tokens(train) * token_bytes(train)


def kernels(train: Train) -> tuple[Kernel, ...]:
    """The kernel of a decode step: it reads whole blocks, so half a one in vain."""
    slots = train.sampler.slots / train.mesh.sampler_data
    page = train.sampler.page_size
    block = max(paged.KERNEL_TOKENS // page, 1) * page
    a_layer = token_bytes(train) / train.decoder.num_layers
    size = slots * (mean_tokens(train) + block / 2) * a_layer
    return (Kernel("ragged_paged_attention_kernel", size, BANDWIDTH),)
