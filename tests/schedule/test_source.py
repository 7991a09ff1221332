import json

import pytest

from jigsaw_jax.records import PromptsOffered, RequestPrompts
from jigsaw_jax.schedule.source import Source


def offer(source, *uids, is_end=False):
    source.offer(PromptsOffered(now_s=0.0, uids=uids, is_end=is_end))


def test_it_asks_for_what_is_missing_and_not_for_what_is_on_its_way():
    source = Source()
    assert source.top_up(3) == RequestPrompts(num=3)
    assert source.top_up(3) is None
    assert source.top_up(4) == RequestPrompts(num=1)
    offer(source, "a", "b", "c")
    assert source.top_up(4) is None
    assert source.take(2) == [("a", 0), ("b", 1)]
    assert source.top_up(4) == RequestPrompts(num=2)
    assert source.position == 3


@pytest.mark.parametrize(("uids", "is_end"), [(("a",), False), (("a", "b"), True)])
def test_data_ends_with_fewer_prompts_than_asked_or_by_word(uids, is_end):
    source = Source()
    source.top_up(2)
    assert not source.can_give(2)
    offer(source, *uids, is_end=is_end)
    assert source.can_give(2)
    assert not source.is_exhausted
    assert source.top_up(9) is None
    assert len(source.take(9)) == len(uids)
    assert source.is_exhausted


def test_a_restored_source_goes_on_behind_what_it_was_offered():
    source = Source()
    source.top_up(3)
    offer(source, "a", "b", "c")
    source.take(1)
    source.top_up(5)
    restored = Source()
    restored.restore(json.loads(json.dumps(source.snapshot())))
    assert restored.waiting() == (("b", 1), ("c", 2))
    assert restored.top_up(5) == RequestPrompts(num=3)
    offer(restored, "d", "e", "f")
    assert restored.take(9)[-1] == ("f", 5)
