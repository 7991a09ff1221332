"""The weight channel between runtimes: versions from a learner's mesh to samplers'.

Learner: `Sender.publish(params, version) -> Offer`. Sampler: `Receiver.receive(offer)`
returns the tree on its own mesh. docs/weights.md has the rest.
"""

from jigsaw_jax.runtime.weights.carriers.carrier import Carrier
from jigsaw_jax.runtime.weights.carriers.folder import FolderCarrier
from jigsaw_jax.runtime.weights.errors import (
    BaseVersionError,
    CarrierError,
    CorruptError,
    MismatchError,
    StaleError,
    WeightError,
)
from jigsaw_jax.runtime.weights.offer import Offer, merge
from jigsaw_jax.runtime.weights.receiver import Receiver
from jigsaw_jax.runtime.weights.sender import Sender

__all__ = [
    "BaseVersionError",
    "Carrier",
    "CarrierError",
    "CorruptError",
    "FolderCarrier",
    "MismatchError",
    "Offer",
    "Receiver",
    "Sender",
    "StaleError",
    "WeightError",
    "merge",
]
