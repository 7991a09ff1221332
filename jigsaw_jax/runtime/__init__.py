"""Shells that drive the scheduling machines with threads, devices and a clock."""
