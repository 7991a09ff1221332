"""The learner's device side: state, packing, gradient accumulation, update."""
