"""The sampler's device side: engine, KV cache, decode loop, sampling."""
