"""What a record says is due."""

import dataclasses

from jigsaw_jax import settings
from jigsaw_jax.records import Group, GroupId, Prompt
from jigsaw_jax.runtime import record as record_module
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.evaluation import Result
from jigsaw_jax.runtime.record import Record
from jigsaw_jax.store.rollouts import Logged
from tests.runtime.test_local import make_train

RESULT = Result(
    accuracy=0.5, pass_at={1: 0.5}, problems=4, missing=0, version_min=0, version_max=0
)


def open_record(train, path):
    return Record(
        train,
        path,
        resume=True,
        operative="",
        clock=Clock(),
        spell=lambda _: ("", []),
        fail=lambda _: None,
    )


def test_a_group_whose_completions_are_gone_by_now_has_no_rows(tmp_path):
    record = open_record(make_train(), tmp_path)
    prompt = Prompt(uid="u", tokens=(1,), text="", answer="", task="")
    group = Group(id=GroupId("u", 0), order=0, prompt=prompt, samples=(), scores=())
    assert record._rows(0, Logged(group, advantages=(0.5,)), lambda one: one) == []
    record.abandon()


def test_what_an_update_trained_is_let_go_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(record_module, "LET_GO_MAX", 2)
    record = open_record(make_train(), tmp_path)
    prompt = Prompt(uid="u", tokens=(1,), text="", answer="", task="")
    record._ended += [
        Group(id=GroupId("u", 0), order=order, prompt=prompt, samples=(), scores=())
        for order in range(5)
    ]
    assert [len(record._ended) for _ in record.let_go()] == [3, 1]
    assert record._ended == []
    record.abandon()


def test_an_evaluation_is_due_until_it_has_ended(tmp_path):
    evaluation = settings.Evaluation(every=4)
    train = dataclasses.replace(make_train(updates=8), evaluation=evaluation)
    record = open_record(train, tmp_path)
    record.evaluated(0, RESULT)
    assert not record.is_evaluation_due(3)
    # A run that is killed while this one is under way asks for it again.
    assert record.is_evaluation_due(4)
    assert record.is_evaluation_due(5)
    record.evaluated(4, RESULT)
    assert not record.is_evaluation_due(5)
    record.abandon()
