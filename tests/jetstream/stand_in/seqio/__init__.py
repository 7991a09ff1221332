"""Stands in for seqio, which would bring TensorFlow along."""
