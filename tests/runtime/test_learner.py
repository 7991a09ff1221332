from unittest import mock

from jigsaw_jax.runtime import learner
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.intervals import Silent
from jigsaw_jax.runtime.threads import Turns
from jigsaw_jax.train.learner import Learner


def test_memory_is_given_back_before_a_save_but_not_before_each(monkeypatch):
    done = []
    monkeypatch.setattr(learner, "give_back_freed", lambda: done.append("give back"))
    clock = mock.create_autospec(Clock, instance=True)
    worker = learner.LearnerWorker(
        mock.create_autospec(Learner, instance=True),
        turns=Turns(is_shared=False),
        journal=Silent(),
        clock=clock,
        post=done.append,
        is_published=True,
    )
    for clock.now_s.return_value in (5.0, 12.0, 15.0, 24.0):
        worker.save(lambda *_: done.append("save"))
    assert done == ["give back", "save", "save", "give back", "save", "save"]
