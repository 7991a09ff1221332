"""What a run asks of the sampler's cache, over several of its settings."""

from jigsaw_jax.settings import check
from jigsaw_jax.settings.objective import Objective
from jigsaw_jax.settings.work import Sampler


def check_cache(
    sampler: Sampler, objective: Objective, *, replicas: int, is_canonical: bool
) -> None:
    """Refuses a cache that can't be shared out, and one that bends numbers unseen.

    Args:
      sampler: the engine.
      objective: what is optimised.
      replicas: of the sampler's weights.
      is_canonical: sampler and learner are to have equal bits.

    Raises:
      ValueError: replicas without pages for each; int8 where the old policy is taken to
        be exact, or where equal bits are asked for.
    """
    if replicas > 1:
        _check_replicas(sampler, replicas)
    if is_canonical and (sampler.cache != "slots" or sampler.kv_dtype is not None):
        raise ValueError(
            "Sampler.cache must be 'slots' and Sampler.kv_dtype None where "
            f"Decoder.canonical_tile is set, got {sampler.cache!r} and "
            f"{sampler.kv_dtype!r}"
        )
    is_recomputed = objective.old_policy == "recompute"
    if sampler.kv_dtype is not None and is_recomputed and objective.mismatch is None:
        raise ValueError(
            "Objective.mismatch must be 'truncate' or 'mask' where "
            f"Sampler.kv_dtype is {sampler.kv_dtype!r} and Objective.old_policy is "
            "'recompute' (the sampler's policy is then not the old one), got None"
        )


def _check_replicas(sampler: Sampler, replicas: int) -> None:
    if sampler.cache != "pages":
        raise ValueError(
            "Sampler.cache must be 'pages' where Mesh.sampler_data is above 1, "
            f"got {sampler.cache!r}"
        )
    name = "Mesh.sampler_data"
    check.divides(name, replicas, "Sampler.slots", sampler.slots)
    check.divides(name, replicas, "Sampler.num_pages", sampler.num_pages)
    if sampler.num_pages:
        check.at_least(
            f"Sampler.num_pages / {name}",
            sampler.num_pages // replicas,
            sampler.pages_per_slot,
        )
