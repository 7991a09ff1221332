"""What pip installs, from either list, is the same."""

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[1]


def test_requirements_txt_repeats_the_runtime_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert listed == project["dependencies"]
