"""How a run spreads over processes and hosts."""

import dataclasses

from jigsaw_jax.settings import check
from jigsaw_jax.settings.mesh import Mesh
from jigsaw_jax.settings.objective import Objective
from jigsaw_jax.settings.work import Pipeline, Sampler

# Bytes of a completion's head on the wire; and of one token: id, version, logprob and
# entropy.
SAMPLE_HEAD_BYTES = 256
TOKEN_BYTES = 16
CARRIERS = ("shared", "line", "ray", "transfer", "folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """What `--cluster` starts and how long it waits; a run in one process reads none.

    The devices of a worker are those that `Mesh` gives to its side.

    Attributes:
      samplers: how many; 0 takes one for every worker or node but the learner's.
      learner_hosts: of the learner's slice, a process on each; 0 takes what the slices
        of the Ray cluster have, and 1 with local:N.
      sampler_hosts: of every sampler's slice, as above.
      cores: CPU cores that the workers' processes are pinned to, one each by turns;
        empty pins none.
      heartbeat_s: without a word for so long, a worker is lost and killed.
      building_s: the same while it builds and compiles, when answers come late.
      startup_s: from its hiring until it has joined, a first compilation included.
      losses_max: workers lost in a row, without an update between, before the run
        gives up.
      role_switch_after: rounds after which the first sampler stops sampling and takes
        groups to sum their gradients; 0 is never.
      queue_bytes_max: of completions between samplers and learner; a round that could
        need more is refused.
      store_bytes: of the object store that local:N starts, for weights and gradient
        sums; completions are in the learner's process.
      carriers: of weights between processes, the first choice first: "shared" (memory
        that all map, on one machine), "line" (a connection to each sampler, beside what
        the learner does next), "ray" (Ray's store), "transfer" (JAX's transfer server)
        and "folder". The next is tried where one fails (docs/weights.md). Empty is
        "shared" and then "ray" with local:N, "line" and then "ray" elsewhere.
      carrier_folder: of "folder", seen by every host; empty is the run directory's own.
      carrier_s: what a carrier may take for a version before the next is tried.
    """

    samplers: int = 0
    learner_hosts: int = 0
    sampler_hosts: int = 0
    cores: tuple[int, ...] = ()
    heartbeat_s: float = 10.0
    building_s: float = 60.0
    startup_s: float = 1800.0
    losses_max: int = 5
    role_switch_after: int = 0
    queue_bytes_max: int = 4_000_000_000
    store_bytes: int = 256_000_000
    carriers: tuple[str, ...] = ()
    carrier_folder: str = ""
    carrier_s: float = 120.0

    def __post_init__(self) -> None:
        check.at_least("Cluster.samplers", self.samplers, 0)
        check.at_least("Cluster.learner_hosts", self.learner_hosts, 0)
        check.at_least("Cluster.sampler_hosts", self.sampler_hosts, 0)
        check.at_least("Cluster.heartbeat_s", self.heartbeat_s, 1.0)
        check.at_least("Cluster.building_s", self.building_s, self.heartbeat_s)
        check.at_least("Cluster.startup_s", self.startup_s, self.building_s)
        check.at_least("Cluster.losses_max", self.losses_max, 1)
        check.at_least("Cluster.role_switch_after", self.role_switch_after, 0)
        check.at_least("Cluster.queue_bytes_max", self.queue_bytes_max, 1)
        # Ray's own least.
        check.at_least("Cluster.store_bytes", self.store_bytes, 80_000_000)
        check.above("Cluster.carrier_s", self.carrier_s, 0)
        for name in self.carriers:
            check.one_of("Cluster.carriers", name, CARRIERS)
        if len(set(self.carriers)) < len(self.carriers):
            raise ValueError(
                f"Cluster.carriers must name each once, got {self.carriers!r}"
            )
        if any(core < 0 for core in self.cores):
            raise ValueError(
                f"Cluster.cores must be numbers of cores, got {self.cores!r}"
            )
        if self.role_switch_after and max(self.learner_hosts, self.sampler_hosts) > 1:
            raise ValueError(
                "Cluster.role_switch_after must be 0 with slices of several hosts, got "
                f"{self.role_switch_after!r}"
            )
        if self.role_switch_after and self.samplers == 1:
            raise ValueError(
                "Cluster.samplers must leave one that samples where "
                "Cluster.role_switch_after is set, got 1; take 2"
            )


def check_cluster(
    cluster: Cluster,
    pipeline: Pipeline,
    sampler: Sampler,
    objective: Objective,
    mesh: Mesh,
) -> None:
    """Refuse what can't be spread as asked.

    Args:
      cluster: how the run spreads.
      pipeline: its rounds.
      sampler: its completions.
      objective: what is optimised.
      mesh: devices of both sides.

    Raises:
      ValueError: a round that does not fit the queue, a mesh that does not divide over
        the hosts, or a change of role under a pipeline whose gradients can't be summed
        in two places.
    """
    for side, num_hosts, devices in (
        ("learner", cluster.learner_hosts, mesh.learner_devices),
        ("sampler", cluster.sampler_hosts, mesh.sampler_devices),
    ):
        if num_hosts and devices % num_hosts:
            raise ValueError(
                f"Cluster.{side}_hosts must divide the {devices} {side} devices of "
                f"Mesh, got {num_hosts!r}"
            )
    if cluster.sampler_hosts > 1 and "transfer" in cluster.carriers:
        raise ValueError(
            "Cluster.carriers must not have 'transfer' with sampler slices of several "
            f"hosts, got {cluster.carriers!r}"
        )
    need = queue_bytes(pipeline, sampler)
    if need > cluster.queue_bytes_max:
        raise ValueError(
            f"Cluster.queue_bytes_max must be at least {need} (the groups under way at "
            f"their longest), got {cluster.queue_bytes_max!r}"
        )
    if not cluster.role_switch_after:
        return
    rules = {
        "Pipeline.mode must not be 'async'": pipeline.mode != "async",
        "Pipeline.reduction must be 'arrival' (sums are made in two places)": (
            pipeline.reduction == "arrival"
        ),
        "Objective.needs must be 'group' and no reference be needed": (
            objective.needs == "group" and not objective.needs_reference
        ),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ValueError(
                f"{rule} where Cluster.role_switch_after is set, got "
                f"{cluster.role_switch_after!r}; take 0"
            )


def queue_bytes(pipeline: Pipeline, sampler: Sampler) -> int:
    """Bytes of all completions that can be under way at once, at their longest.

    Admission opens no further group, so this bounds the queue without a second valve.
    """
    groups = pipeline.groups_per_round
    if pipeline.mode == "async":
        groups = (pipeline.staleness_max + 1) * pipeline.groups_per_update
    per_sample = SAMPLE_HEAD_BYTES + TOKEN_BYTES * sampler.new_tokens_max
    return groups * pipeline.samples_per_group * per_sample
