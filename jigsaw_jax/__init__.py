"""Reinforcement learning with verifiable rewards on JAX, streamed group by group."""
