import dataclasses
from typing import Any

import pytest

from jigsaw_jax.settings import Mesh, Store, fields


@pytest.mark.parametrize(
    ("value", "hint", "fitted"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (3, int | float, 3),
        (3, float | None, 3.0),
        (None, float | None, None),
        (True, bool, True),
        ("a", str | None, "a"),
        ([1, 2], tuple[int, ...], (1, 2)),
        ((), tuple[int, ...], ()),
        ((1, 2), tuple[float, ...], (1.0, 2.0)),
        ({"a": 1}, dict, {"a": 1}),
    ],
)
def test_a_value_that_loses_nothing_fits(value, hint, fitted):
    result = fields.fit(value, hint)
    assert result == fitted
    assert type(result) is type(fitted)
    if isinstance(fitted, tuple):
        assert [type(item) for item in result] == [type(item) for item in fitted]


@pytest.mark.parametrize(
    ("value", "hint", "kind"),
    [
        (3.0, int, "int"),
        (True, int, "int"),
        (True, float, "float"),
        (1, bool, "bool"),
        ("3", int, "int"),
        (3, str, "str"),
        (None, str, "str"),
        ("x", float | None, "float or None"),
        ((1, "x"), tuple[int, ...], "tuple[int, ...]"),
        ("ab", tuple[str, ...], "tuple[str, ...]"),
        ([], dict, "dict"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(value, hint, kind):
    with pytest.raises(TypeError) as caught:
        fields.fit(value, hint)
    assert str(caught.value) == f"must be {kind}, got {value!r}"


def test_nested_settings_flatten_to_class_and_field():
    @dataclasses.dataclass(frozen=True)
    class Outer:
        mesh: Any
        store: Any
        name: str = "n"

    flat = fields.flatten(Outer(Mesh(tensor=2), Store(checkpoint_every=7)))
    assert flat["Mesh.tensor"] == 2
    assert flat["Store.checkpoint_every"] == 7
    assert flat["Outer.name"] == "n"
    assert len(flat) == len(vars(Mesh())) + len(vars(Store())) + 1


def test_defaults_leave_out_what_has_none():
    @dataclasses.dataclass(frozen=True)
    class Some:
        needed: int
        plain: int = 3
        made: dict = dataclasses.field(default_factory=lambda: {"a": 1})

    assert fields.defaults(Some) == {"plain": 3, "made": {"a": 1}}
