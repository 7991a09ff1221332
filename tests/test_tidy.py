"""Style rules that no linter knows; modelled on TigerBeetle's tidy test."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MODULES = sorted((ROOT / "jigsaw_jax").rglob("*.py"))
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
SUFFIX = re.compile(r"[a-z0-9]_([A-Z]+)$")


def _functions(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [n for n in ast.walk(tree) if isinstance(n, kinds)]


def _annotated_dims(annotation):
    """Dimensions of `Float[Array, "B T"]` as "BT", or None; `| None` is looked through.

    A scalar, `Float[Array, ""]`, has no dimension and so no suffix.
    """
    if isinstance(annotation, ast.BinOp):
        return _annotated_dims(annotation.left) or _annotated_dims(annotation.right)
    if not isinstance(annotation, ast.Subscript):
        return None
    items = getattr(annotation.slice, "elts", [])
    is_array = len(items) == 2 and isinstance(items[1], ast.Constant)
    if is_array and isinstance(items[1].value, str):
        return items[1].value.replace(" ", "") or None
    return None


def _annotated_names(tree):
    """Every (name, annotation) of arguments and annotated variables and fields."""
    for function in _functions(tree):
        args = function.args
        for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]:
            yield f"{function.name}({arg.arg})", arg.arg, arg.annotation
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.target.id, node.annotation


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_module_and_functions_are_short(path):
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES_MAX
    for function in _functions(ast.parse(text)):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{function.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_suffix_of_an_array_equals_its_annotated_dimensions(path):
    for where, name, annotation in _annotated_names(ast.parse(path.read_text())):
        suffix, dims = SUFFIX.search(name), _annotated_dims(annotation)
        if suffix or dims:
            assert (suffix and suffix[1]) == dims, f"{where} is annotated {dims}"
