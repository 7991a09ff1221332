"""The flax.nnx decoder, its logical axes and its weight formats."""
