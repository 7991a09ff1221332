"""Adapters and export over processes, and over two hosts, as in one process."""

import jax
import numpy as np
import pytest

from tests.runtime.compared import arrays, beside_one_process, summary
from tests.runtime.slice.adapters_runs import train_of
from tests.runtime.test_local import rollouts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs, the first in this process as `whole`, and its state's shapes."""
    folder = tmp_path_factory.mktemp("adapters")
    return beside_one_process("slice.adapters_runs", train_of(), folder)


@pytest.mark.parametrize("name", ["processes", "hosts"])
def test_adapters_train_bit_for_bit_as_in_one_process(runs, name):
    folder, abstract = runs
    assert len(rollouts(folder / "whole")) == 4 * 4 * 3
    assert rollouts(folder / name) == rollouts(folder / "whole")
    found = arrays(folder / name, abstract)
    # Adapters alone are published and kept, and they have moved.
    moved = [np.asarray(leaf) for leaf in jax.tree.leaves(found["published"])]
    assert any(leaf.any() for leaf in moved)
    jax.tree.map(
        np.testing.assert_array_equal, found, arrays(folder / "whole", abstract)
    )
    hosts = [worker["hosts"] for worker in summary(folder / name)["workers"]]
    assert hosts == [1 + (name == "hosts")] * 2


@pytest.mark.parametrize("name", ["processes", "hosts"])
def test_the_export_is_the_same_file_for_file(runs, name):
    folder, _ = runs
    whole, found = (
        {
            str(path.relative_to(one / "export")): path.read_bytes()
            for path in (one / "export").rglob("*")
            if path.is_file()
        }
        for one in (folder / "whole", folder / name)
    )
    assert "model.safetensors" in whole
    assert found == whole
