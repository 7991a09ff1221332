"""Everything that touches files: checkpoints, journal, metrics, traces, rollouts."""
