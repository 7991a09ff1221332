"""Shells that drive the scheduling machines: threads, devices, clock. They decide nothing."""
