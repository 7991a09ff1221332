"""Virtual time around the very machines that a real run has: what would it cost?

Agenda (clock and heap) drives Shell, which carries the effects of `schedule.Pipeline`
to simulated sampler workers, rewards and a learner, and their reports back.
"""
