import contextlib
import gc
import weakref

from jigsaw_jax.runtime import collector


def test_the_collector_is_as_before_also_behind_an_error():
    before = gc.get_threshold()
    with contextlib.suppress(KeyError), collector.seldom():
        assert gc.get_threshold()[0] == collector.YOUNG_MAX
        assert gc.get_freeze_count() > 1000
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_refers_to_itself_is_found_by_tidying():
    with collector.seldom():
        node = Kept()
        node.append(node)
        seen = weakref.ref(node)
        del node
        assert seen() is not None
        collector.tidy()
        assert seen() is None


class Kept(list):
    """A list that can be referred to weakly."""


def test_much_that_is_under_way_is_not_looked_at_all_at_once():
    looks = []
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    try:
        with collector.seldom():
            looks.clear()
            under_way = [[] for _ in range(collector.TIDY_MAX + 1)]
            collector.tidy()
            assert looks == []
            # Not later either, but they are freed as ever.
            assert gc.get_count()[0] < collector.TIDY_MAX
            seen = weakref.ref(Kept(under_way))
            assert seen() is None
            del under_way
            collector.tidy()
            assert looks == ["start", "stop"]
    finally:
        gc.callbacks.pop()
