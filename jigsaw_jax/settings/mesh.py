"""Which devices the two sides of a run have."""

import dataclasses

from jigsaw_jax.settings import check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mesh:
    """Devices of the learner and of the sampler.

    Attributes:
      data: learner devices on the data axis.
      fsdp: learner devices on the fsdp axis.
      tensor: learner devices on the tensor axis.
      sampler_data: replicas of the sampler's weights, each with its share of the slots
        and their pages; above 1 with Sampler.cache = "pages" alone.
      sampler_tensor: devices of each replica, on its tensor axis.
      shared: sampler and learner take turns on the same devices.
      sampler_topology: slice that `plan` compiles the sampler for, as "v5e:2x4".
      learner_topology: slice that `plan` compiles the learner for.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    sampler_data: int = 1
    sampler_tensor: int = 1
    shared: bool = False
    sampler_topology: str | None = None
    learner_topology: str | None = None

    def __post_init__(self) -> None:
        for name in ("data", "fsdp", "tensor", "sampler_data", "sampler_tensor"):
            check.at_least(f"Mesh.{name}", getattr(self, name), 1)

    @property
    def learner_devices(self) -> int:
        """How many devices the learner's mesh has."""
        return self.data * self.fsdp * self.tensor

    @property
    def sampler_devices(self) -> int:
        """How many devices the sampler's mesh has."""
        return self.sampler_data * self.sampler_tensor

    @property
    def num_devices(self) -> int:
        """How many devices learner and sampler need together."""
        if self.shared:
            return max(self.learner_devices, self.sampler_devices)
        return self.learner_devices + self.sampler_devices
