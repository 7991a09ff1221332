"""Compiles what a run will call, before it is timed."""

from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.state import DecodeState, SlotRequest
from jigsaw_jax.types import Params


def warm_up(engine: Engine, params: Params, *, multi_turn: bool = True) -> None:
    """Calls every program once in every shape; nothing compiles later.

    Args:
      engine: whose programs.
      params: as `Engine.load_params` returned them.
      multi_turn: whether slots will be extended or extracted.
    """
    running = _every_call(engine, params, engine.init_decode_state(), multi_turn)
    for num_slots in reversed(engine.sampler.slots_draining):
        running = engine.resized(running, [], num_slots)
        engine.resized(running, [], engine.max_concurrent_decodes)
        running = _every_call(engine, params, running, multi_turn)


def _every_call(
    engine: Engine, params: Params, running: DecodeState, multi_turn: bool
) -> DecodeState:
    """The calls on a state of this many slots; all are free after them."""
    buckets = engine.sampler.prompt_buckets
    request = SlotRequest(slot=0, key_words=(0, 0), new_tokens_max=1)
    for size in buckets:
        prefix = engine.prefill_prompt(params, [0] * size)
        running = engine.insert_many(prefix, running, [request])
    if multi_turn:
        for size in buckets:
            running = engine.extend(params, running, 0, [0] * size)
        running = engine.insert_snapshot(running, 0, engine.extract(running, 0))
    running = engine.release(running, 0)
    running, _ = engine.generate_steps(params, running)
    return running
