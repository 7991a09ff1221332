"""A recorded run again, in virtual time: how far off is what was fitted to it?"""

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import fit, outcome, overrides, recorded
from jigsaw_jax.store import timeline


def replay(train: Train, path: str) -> dict[str, tuple[float, float]]:
    """Simulate a run with its own lengths and with costs fitted to its events.

    Args:
      train: the settings that it had.
      path: of its directory.

    Returns:
      Number to (measured, simulated), both by the same rules from the intervals, and
      as means over the rounds behind the first.

    Raises:
      CostError: the run can't be read, or has not trained.
      StuckError: the simulated run can't go on.
    """
    events = recorded.read(path)
    rounds, _ = timeline.rounds_of(events)
    num = max(sum(bool(one.learner) for one in rounds), 1)
    again = overrides.apply(fit.fitted(train, path), {"Simulation.rounds": num})
    _, trace = outcome.simulate(again, train.seed, keeps_events=True)
    measured, simulated = recorded.measured(events), recorded.measured(trace.events)
    return {name: (measured[name], simulated[name]) for name in measured}
