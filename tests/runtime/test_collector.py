import gc

import pytest

from jigsaw_jax.runtime import collector


def test_the_collector_is_as_before_also_behind_an_error():
    before = gc.get_threshold()
    with pytest.raises(KeyError), collector.seldom():
        assert gc.get_threshold()[0] == collector.YOUNG_MAX
        assert gc.get_freeze_count() > 1000
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
