import json
import random

import pytest

from tests.bench.memory import show


@pytest.mark.parametrize(("mb_in_100", "is_flat"), [(0.5, True), (2.0, False)])
def test_a_floor_that_rises_is_seen_below_what_comes_and_goes(
    tmp_path, mb_in_100, is_flat
):
    drawn = random.Random(0)
    path = tmp_path / "run.jsonl"
    with path.open("w") as lines:
        for update in range(1, 1001):
            # The first hundred grow, as a run does that takes up its work.
            floor = 200 + min(update, 100) + mb_in_100 * update / 100
            least = floor + drawn.choice((0, 60, 120)) * (update % 25 > 0)
            values = {"learner 1": least}, {"learner 1": least + 50}
            line = dict(zip(("update", "mb", "most"), (update, *values), strict=True))
            lines.write(json.dumps(line) + "\n")
    assert show(path, 1.0) == is_flat
