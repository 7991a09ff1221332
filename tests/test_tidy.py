"""Style rules that no linter knows; modelled on TigerBeetle's tidy test."""

import ast
import json
import pathlib
import re

import gin
import gin.config
import pytest

from jigsaw_jax import config

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


# Calls that run text, or that rebuild objects from bytes, and so run what those name.
RUNNING = {
    "__import__",
    "eval",
    "exec",
    "os.popen",
    "os.system",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
}
RUNNING_MODULES = {
    "cloudpickle",
    "code",
    "codeop",
    "dill",
    "marshal",
    "pickle",
    "shelve",
}
RUNNING_OPTIONS = {"shell", "allow_pickle"}
# The text that Python runs inside the sandbox, which no other module imports.
INSIDE = ROOT / "jigsaw_jax/reward/sandbox/inside.py"


def _running(tree):
    """What in a module could run text or bytes that a model or a task wrote."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (n for n in names if n.partition(".")[0] in RUNNING_MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            is_running = (node.module or "").partition(".")[0] in RUNNING_MODULES
            yield from (n for n in names if is_running or n in RUNNING)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("builtins.")
            if name in RUNNING or name == "compile":
                yield name
            for keyword in node.keywords:
                value = keyword.value
                # A shell that a variable may switch on counts as one.
                is_off = isinstance(value, ast.Constant) and not value.value
                if keyword.arg in RUNNING_OPTIONS and not is_off:
                    yield f"{name}({keyword.arg}=...)"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_model_or_a_task_wrote_is_never_run(path):
    found = list(_running(ast.parse(path.read_text())))
    if path == INSIDE:
        assert sorted(set(found)) == ["compile", "eval", "exec"]
    else:
        assert found == []


def test_the_text_that_runs_programs_is_imported_by_no_module():
    for path in MODULES:
        assert "import inside" not in path.read_text()
        assert "sandbox.inside import" not in path.read_text()


@pytest.mark.parametrize(
    "line",
    [
        "eval(text)",
        "builtins.exec(text)",
        "import pickle",
        "from pickle import loads as f",
        "from os import system",
        "subprocess.run(text, shell=True)",
        "subprocess.run(text, shell=wanted)",
        "np.load(path, allow_pickle=True)",
        "compile(text, '', 'exec')",
        "__import__(name)",
    ],
)
def test_a_line_that_would_run_text_is_found(line):
    assert list(_running(ast.parse(line)))


def test_lines_that_only_look_like_it_are_not_found():
    text = "re.compile(x)\nast.literal_eval(x)\nlowered.compile()\nf(shell=False)"
    assert list(_running(ast.parse(text))) == []


# Files that a run names; overlays (model, task, mesh) are only included.
CONFIGS = [
    path
    for folder in ("configs", "configs/bench", "configs/sim")
    for path in ROOT.glob(f"{folder}/*.gin")
]
RUNS = sorted(path for path in CONFIGS if path.name != "base.gin")
# What models share is none by itself.
PARTIAL = {ROOT / "configs/model/defaults.gin"}
OVERLAYS = sorted(set(ROOT.rglob("configs/*/*.gin")) - set(RUNS) - PARTIAL)
# Stands in for what a file leaves to the user.
CHOICES = {
    "Data.path": "'problems.jsonl'",
    "Weights.path": "'model.gguf'",
    "Tokenizer.path": "'model.gguf'",
}


def _choices(path, macro="%gin.REQUIRED"):
    """Bindings for what `path`, or a task or model it includes, leaves to choose."""
    text = path.read_text()
    included = re.findall(r'^include "(.*)"', text, flags=re.MULTILINE)
    text += "".join(
        (ROOT / name).read_text() for name in included if "base" not in name
    )
    return [f"{n} = {v}" for n, v in CHOICES.items() if f"{n} = {macro}" in text]


@pytest.fixture
def gin_state(monkeypatch):
    """Gin's private tables, empty before and after."""
    monkeypatch.chdir(ROOT)
    gin.clear_config()
    yield gin.config
    gin.clear_config()


@pytest.mark.parametrize("path", RUNS, ids=lambda p: str(p.relative_to(ROOT)))
def test_gin_itself_uses_every_binding_of_a_run_and_agrees_with_load(path, gin_state):
    bindings = [f"settings.{choice}" for choice in _choices(path)]
    imports = ["from __gin__ import dynamic_registration"]
    imports += ["from jigsaw_jax import settings"]
    gin.parse_config_files_and_bindings([str(path)], imports + bindings)
    train = config.run()
    bound = {(k, p) for k, ps in gin_state._CONFIG.items() for p in ps}
    used = {(k, p) for k, ps in gin_state._OPERATIVE_CONFIG.items() for p in ps}
    assert bound
    assert not bound - used
    assert config.load([str(path)], _choices(path)).train == train


PARTS = {
    "model": ("decoder", "weights", "tokenizer"),
    "task": ("data", "reward"),
    "mesh": ("mesh",),
}


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda p: str(p.relative_to(ROOT)))
def test_an_overlay_replaces_all_that_another_of_its_kind_bound(path):
    start = [str(ROOT / "configs/base.gin"), str(ROOT / "configs/model/tiny_char.gin")]
    others = [str(p) for p in OVERLAYS if p.parent == path.parent and p != path]
    rest = ["Train.updates = 1", "Learner.rows = 32", *_choices(path)]
    if path.parent.name == "mesh":
        # A model that the devices of every mesh divide.
        rest += ["Decoder.vocab_size = 128", "Decoder.num_heads = 32"]
    alone = config.load([*start, str(path)], rest).train
    behind_others = config.load([*start, *others, str(path)], rest).train
    for part in PARTS[path.parent.name]:
        assert getattr(alone, part) == getattr(behind_others, part)


def test_base_leaves_only_what_a_run_must_choose():
    text = (ROOT / "configs/base.gin").read_text()
    required = re.findall(r"settings\.(\w+\.\w+) = %gin.REQUIRED", text)
    with pytest.raises(config.ConfigError, match="must be chosen by the run"):
        config.load([str(ROOT / "configs/base.gin")])
    config.load([str(ROOT / "configs/base.gin")], [f"{name} = 2" for name in required])


NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_a_notebook_is_kept_without_outputs_and_with_stable_ids(path):
    book = json.loads(path.read_text())
    for cell in book["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    assert book["metadata"]["kernelspec"]["name"] == "python3"


def test_there_are_the_two_notebooks_of_the_readme():
    assert {path.name for path in NOTEBOOKS} == {
        "bring_your_own_task.ipynb",
        "quickstart.ipynb",
    }
