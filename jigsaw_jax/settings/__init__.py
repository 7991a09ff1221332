"""Frozen settings of a run, checked where they are made; plain Python, no gin."""

from jigsaw_jax.settings.cluster import Cluster
from jigsaw_jax.settings.mesh import Mesh
from jigsaw_jax.settings.model import Decoder, Lora, Tokenizer, Weights
from jigsaw_jax.settings.objective import Objective, Optimizer
from jigsaw_jax.settings.reward import Reward
from jigsaw_jax.settings.run import Data, Evaluation, Store, Train, WarmUp
from jigsaw_jax.settings.simulation import Costs, Fleet, Simulation, Workload
from jigsaw_jax.settings.work import Learner, Pipeline, Sampler

__all__ = [
    "Cluster",
    "Costs",
    "Data",
    "Decoder",
    "Evaluation",
    "Fleet",
    "Learner",
    "Lora",
    "Mesh",
    "Objective",
    "Optimizer",
    "Pipeline",
    "Reward",
    "Sampler",
    "Simulation",
    "Store",
    "Tokenizer",
    "Train",
    "WarmUp",
    "Weights",
    "Workload",
]
