"""Print how many ledger transitions a second this machine makes.

Run `python -m tests.bench.ledger`; the pipeline needs 100,000.
"""

import time

from jigsaw_jax.records import GroupId, SampleId
from jigsaw_jax.schedule.ledger import Ledger
from jigsaw_jax.schedule.states import State

GROUPS = 20_000
SAMPLES = 8
PATH = (State.ADMITTED, State.RUNNING, State.WAITING_ENV, State.SCORED)


def main():
    """Take every group through its whole life and print the rate."""
    ledger = Ledger(SAMPLES)
    num_transitions = 0
    start_s = time.perf_counter()
    for index in range(GROUPS):
        group = GroupId(f"bench/{index}", 0)
        ledger.open(group)
        for sample in range(SAMPLES):
            sample_id = SampleId(group.uid, group.draw, sample)
            for state in PATH:
                ledger.move(sample_id, 0, state)
        ledger.ready(group)
        ledger.lease(group, index)
        ledger.commit(index + 1)
        num_transitions += SAMPLES * (len(PATH) + 3)
    wall_s = time.perf_counter() - start_s
    print(f"{num_transitions / wall_s:,.0f} transitions a second")


if __name__ == "__main__":
    main()
