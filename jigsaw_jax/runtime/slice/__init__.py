"""A worker of several hosts: a `jax.distributed` job that executes one ordered log."""
