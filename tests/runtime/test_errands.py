"""Work in parts, and the turns in between."""

import queue
import types
from unittest import mock

from jigsaw_jax.data.source import PromptSource
from jigsaw_jax.records import Prompt, RequestPrompts
from jigsaw_jax.runtime import inputs
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.errands import Errands
from tests.runtime.test_local import make_train


def test_one_part_goes_at_once_and_each_other_behind_what_has_come():
    loop, done = queue.SimpleQueue(), []

    def work(name, parts):
        for part in range(parts):
            done.append((name, part))
            if part < parts - 1:
                yield

    errands = Errands(loop.put)
    errands.add(work("a", 1))
    assert done == [("a", 0)]
    assert loop.empty()
    errands.add(work("b", 3))
    loop.put("heard")
    # What is added meanwhile waits for all of it.
    errands.add(work("c", 2))
    assert done[1:] == [("b", 0)]
    turns = []
    while not loop.empty():
        turn = loop.get()
        turns.append(turn)
        if turn is errands:
            errands.go_on()
    assert turns == [errands, "heard", errands, errands, errands]
    assert done[1:] == [("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]


def test_prompts_read_in_parts_are_offered_whole_and_in_the_order_of_the_data(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(inputs, "READ_MAX", 3)
    control = Control(
        make_train(), lambda _: None, run_dir=tmp_path, resume=False, operative=""
    )
    offered = []

    class Asking:
        """Asks for one more while eight are read, and for two in answer to those."""

        version = round = 0
        next_prompt_index = 5

        def apply(self, event):
            offered.append(event.uids)
            self.next_prompt_index += len(event.uids)
            return [RequestPrompts(num=2)] if len(offered) == 1 else []

    def prompt(position):
        return Prompt(uid=f"u{position}", tokens=(1,), text="", answer="", task="")

    source = mock.Mock(spec=PromptSource)
    source.prompt.side_effect = prompt
    control._crew = types.SimpleNamespace(pipeline=Asking(), source=source)
    control._carry([RequestPrompts(num=8)])
    control._carry([RequestPrompts(num=1)])
    assert offered == []
    while not control._events.empty():
        control._take([control._events.get()])
    assert [len(uids) for uids in offered] == [8, 1, 2]
    uids = [uid for some in offered for uid in some]
    assert uids == [f"u{position}" for position in range(5, 16)]
    assert all(control._payloads.prompt(uid).uid == uid for uid in uids)
    control._record.abandon()
