"""A configuration with the costs and lengths of a real run: what else would it take?"""

from jigsaw_jax.settings import Train
from jigsaw_jax.simulation import overrides, recorded
from jigsaw_jax.simulation.cost import Decode, Training


def fitted(train: Train, path: str) -> Train:
    """The run with costs fitted to another's events, and that one's completions.

    Args:
      train: settings to simulate. `Sampler.slots` and `steps_per_call` are those of the
        recorded run, since a decode step costs what its shape does.
      path: of the recorded run's directory.

    Returns:
      The settings, with what `simulate` supposes replaced.

    Raises:
      CostError: the run can't be read.
    """
    named = {
        "Costs.source": "run",
        "Costs.path": path,
        "Workload.lengths": "recorded",
        "Workload.record": path,
    }
    prompt = recorded.prompt_tokens(recorded.read(path))
    known = {} if prompt is None else {"Workload.prompt_tokens": prompt}
    return overrides.apply(train, {**named, **known})


def told(decode: Decode, training: Training) -> str:
    """Fitted costs in a few lines, in milliseconds."""
    (line,) = decode.lines
    said = [
        f"decode step: {1e3 * line.fixed_s:.3f} ms + {1e3 * line.sequence_s:.4f} "
        f"ms a sequence, {decode.beside:.1%} more while the learner computes",
        f"a prompt's token {1e3 * decode.prefill_token_s:.4f} ms, its entering slots "
        f"{1e3 * decode.insert_s:.2f} ms, a completion's end "
        f"{1e3 * decode.finish_s:.2f} ms; {1e3 * decode.report_s:.1f} ms until a free "
        "slot is filled",
        f"hand-off: {1e3 * training.accumulate_s:.2f} ms{_gradient(training)}, "
        f"{training.beside:.0%} more while samplers decode; "
        f"{1e3 * training.dispatch_s:.1f} ms behind the one before",
        f"step {1e3 * training.step_s:.1f} ms, publish "
        f"{1e3 * training.publish_s:.1f} ms, checkpoint "
        f"{1e3 * training.checkpoint_s:.1f} ms",
    ]
    if (written := training.writing).alone_s:
        said.append(
            f"a checkpoint is there after {written.alone_s:.2f} s beside a learner "
            f"that waits, {written.held:.0%} slower beside one that computes, which "
            f"is {written.lost:.0%} slower meanwhile"
        )
    return "\n".join(said)


def _gradient(training: Training) -> str:
    if training.micro_s:
        shapes = ", ".join(f"{n}: {1e3 * s:.1f}" for n, s in training.micro_s)
        return f" + ms a micro-batch by its rows ({shapes})"
    return (
        f" + {1e3 * training.group_s:.2f} ms a group + "
        f"{1e3 * training.token_s:.4f} ms a token"
    )
