from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jigsaw_jax.records import SampleId
from jigsaw_jax.schedule.lengths import Lengths
from jigsaw_jax.schedule.requests import Requests

ORDER = st.integers(0, 7)


class RequestsMachine(RuleBasedStateMachine):
    """Against a plain list that is sorted anew for each question."""

    is_longest_first = True

    def __init__(self):
        super().__init__()
        self.lengths = Lengths()
        self.requests = Requests(self.lengths if self.is_longest_first else None)
        # Arrival, order and sample of what waits; groups of O; groups that were begun.
        self.waiting = []
        self.unserved = set()
        self.begun = set()
        self.clock = 0
        self.draws = dict.fromkeys(range(8), 0)

    def rank(self, order):
        arrival, _, sample = min(entry for entry in self.waiting if entry[1] == order)
        estimate = self.lengths.estimate(sample.uid)
        if arrival < 0:
            return (-1, 0.0, arrival)
        if not self.is_longest_first:
            return (0, 0.0, arrival)
        if estimate is None:
            return (order in self.begun, 0.0, arrival)
        return (2, -estimate, arrival)

    def naive_first(self, orders):
        orders = {order for _, order, _ in self.waiting if order in orders}
        return min(orders, key=self.rank, default=None)

    @rule(order=ORDER, num=st.integers(1, 3))
    def add(self, order, num):
        if any(entry[1] == order for entry in self.waiting):
            return
        draw = self.draws[order] = self.draws[order] + 1
        samples = [SampleId(f"p{order}", draw, i) for i in range(num)]
        self.requests.add(order, samples)
        for sample in samples:
            self.clock += 1
            self.waiting.append((self.clock, order, sample))
        self.unserved.add(order)

    @rule(width=st.integers(0, 9))
    def pop(self, width):
        order = self.requests.first_of(self.requests.frontier(width))
        if order is None:
            order = self.requests.first()
        if order is None:
            return
        entry = min(entry for entry in self.waiting if entry[1] == order)
        assert self.requests.take(order) == [entry[2]]
        self.waiting.remove(entry)
        self.begun.add(order)

    @rule(order=ORDER, index=st.integers(5, 6))
    def put_back(self, order, index):
        sample = SampleId(f"p{order}", 0, index)
        if order not in self.unserved or any(e[2] == sample for e in self.waiting):
            return
        self.requests.put_back(order, sample)
        first = min((arrival for arrival, _, _ in self.waiting), default=0)
        self.waiting.append((min(first, 0) - 1, order, sample))

    @rule(index=st.integers(0, 20))
    def withdraw(self, index):
        if self.waiting:
            entry = self.waiting.pop(index % len(self.waiting))
            self.requests.withdraw(entry[1], entry[2])

    @rule(order=ORDER)
    def remove(self, order):
        self.requests.remove(order)
        self.unserved.discard(order)
        self.begun.discard(order)
        self.waiting = [entry for entry in self.waiting if entry[1] != order]

    @rule(order=ORDER, length=st.integers(1, 99))
    def learn(self, order, length):
        self.lengths.add(f"p{order}", length)
        self.requests.rank(order)

    @invariant()
    def agrees(self):
        orders = sorted(self.unserved)
        assert self.requests.first() == self.naive_first(set(orders))
        for width in (1, 3):
            frontier = self.requests.frontier(width)
            assert frontier == orders[:width]
            first = self.requests.first_of(frontier)
            assert first == self.naive_first(set(frontier))


class ArrivalMachine(RequestsMachine):
    """First come, first served."""

    is_longest_first = False


TestRequests = RequestsMachine.TestCase
TestArrivals = ArrivalMachine.TestCase
TestRequests.settings = TestArrivals.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
)
