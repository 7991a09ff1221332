"""The weights that a run starts from."""

import pathlib

import jax
import numpy as np

from jigsaw_jax import config, model
from jigsaw_jax import mesh as meshes
from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.runtime.build import first_params

BENCH = pathlib.Path(__file__).parents[2] / "configs/bench/tiny_qwen3.gin"


def test_a_run_starts_from_a_folder_whose_leaves_lie_as_the_learner_has_them(tmp_path):
    names = ["Weights.source = 'hf'", f"Weights.path = '{tmp_path}/model'"]
    sizes = ["Mesh.shared = True", "Mesh.fsdp = 2", "Mesh.tensor = 2"]
    train = config.load([str(BENCH)], [*names, *sizes]).train
    params = model.init_params(train.decoder, 5)
    export_folder(tmp_path / "model", train.decoder, params)
    mesh = meshes.learner_mesh(train.mesh, jax.devices())
    first = first_params(train, mesh)
    jax.tree.map(np.testing.assert_array_equal, first, params)
    wanted = meshes.sharding_tree(mesh, model.logical_axes(train.decoder), params)
    for leaf, sharding in zip(
        jax.tree.leaves(first), jax.tree.leaves(wanted), strict=True
    ):
        assert leaf.sharding == sharding
