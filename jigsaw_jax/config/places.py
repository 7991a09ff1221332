"""Checks what a configuration needs of the machine: files, run directory, isolation."""

import importlib.metadata
import pathlib

from jigsaw_jax import settings
from jigsaw_jax.config.statements import ConfigError
from jigsaw_jax.settings import fields
from jigsaw_jax.settings.paths import PACKAGE

# A run can be made longer, and be logged, evaluated, spread over processes or simulated
# otherwise, and is still itself.
_FREE = (
    "Train.updates",
    "Store.",
    "Evaluation.",
    "Cluster.",
    "Simulation.",
    "Workload.",
    "Costs.",
    "Fleet.",
    "Reward.code_isolation",
)


def check_files(train: settings.Train) -> None:
    """Refuse a configuration whose files are not there.

    Args:
      train: the run.

    Raises:
      ConfigError: a file or an installed package is missing, a Hugging Face folder is
        not whole or of another model, the policy can't be exported as one, or the
        reward function can't be imported.
    """
    if train.store.export == "hf":
        _check_export(train.decoder)
    paths = {
        "Weights.path": train.weights.path,
        "Tokenizer.path": train.tokenizer.path,
        "Data.path": train.data.path,
    }
    for name, path in paths.items():
        if path is None:
            continue
        if name == "Weights.path" and train.weights.source == "hf":
            _check_folder(path, train)
        elif path.startswith(PACKAGE):
            _check_package(name, path.removeprefix(PACKAGE))
        elif not pathlib.Path(path).is_file():
            raise ConfigError(_no_file(name, path))
    if train.reward.function is not None:
        _check_function(train.reward.function)


def check_isolation(reward: settings.Reward) -> None:
    """Refuse a run whose programs this machine can't keep, by trying.

    Args:
      reward: of the run.

    Raises:
      ConfigError: naming what is missing and the setting that accepts it.
    """
    if "code" not in reward.weights:
        return
    # Imported here: most runs start no programs.
    from jigsaw_jax.reward.sandbox import client

    try:
        client.check_isolation(reward)
    except client.IsolationError as error:
        raise ConfigError(str(error)) from None


def check_run_dir(
    run_dir: pathlib.Path, train: settings.Train, *, resume: bool
) -> None:
    """Refuse a directory that holds another run, or any run unless resuming.

    Args:
      run_dir: it need not exist.
      train: the run that asks for it.
      resume: whether to go on with what is there.

    Raises:
      ConfigError: with the first difference between the two runs.
    """
    # A process killed in its first moments leaves only a lock and a torn file.
    torn = {path.name for path in run_dir.glob(".*.part")}
    entries = {path.name for path in run_dir.glob("*")} - torn
    other = "choose another --run_dir"
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"--run_dir must be a directory, got file {run_dir}; {other}")
    if "config.gin" not in entries:
        if entries - {"run.lock", "checkpoints"}:
            raise ConfigError(
                f"--run_dir must be empty or hold a run, got {run_dir}, which has "
                f"files but no config.gin; {other}"
            )
        return
    if not resume:
        raise ConfigError(
            f"--run_dir must be empty with --resume never, got {run_dir}; {other}, "
            "or --resume auto"
        )
    # A run that was refused or killed before its first checkpoint has left nothing that
    # another could mix with.
    saved = ("step-*", "damaged-*")
    if any(path for name in saved for path in run_dir.glob(f"checkpoints/{name}")):
        _check_same_run(run_dir, train)


def _check_same_run(run_dir: pathlib.Path, train: settings.Train) -> None:
    # Imported late: the package imports this module.
    from jigsaw_jax import config

    try:
        there = config.load([str(run_dir / "config.gin")]).train
    except ConfigError as error:
        raise ConfigError(
            f"--run_dir must hold a run that this version can read, got {error}"
        ) from None
    old, new = fields.flatten(there), fields.flatten(train)
    for name in old:
        if old[name] != new[name] and not name.startswith(_FREE):
            raise ConfigError(
                f"--run_dir must be of this run, got {run_dir}, whose {name} is "
                f"{old[name]!r} instead of {new[name]!r}; choose another --run_dir"
            )


def _check_folder(path: str, train: settings.Train) -> None:
    # Imported here: it loads JAX, and most runs name no such folder.
    from jigsaw_jax.model.hf_folder import Folder

    try:
        folder = Folder(path)
        folder.check(train.decoder)
    except ValueError as error:
        raise ConfigError(f"Weights.path: {error}") from None
    longest = train.sampler.length_max
    if longest > folder.tokens_max:
        raise ConfigError(
            "Sampler.prompt_buckets and Sampler.new_tokens_max must make at most the "
            f"{folder.tokens_max:g} tokens of max_position_embeddings in {path}, got "
            f"{longest}"
        )


def _no_file(name: str, path: str) -> str:
    inside = pathlib.Path(path) / "tokenizer.json"
    if name == "Tokenizer.path" and inside.is_file():
        return f"{name} must be a file, got folder {path!r}; take {str(inside)!r}"
    return (
        f"{name} must be an existing file, got {path!r}; relative paths start at the "
        f"working directory, {pathlib.Path.cwd()}"
    )


def _check_export(decoder: settings.Decoder) -> None:
    from jigsaw_jax.model.families import family_of

    try:
        family_of(decoder)
    except ValueError as error:
        raise ConfigError(f"Store.export must be 'none': {error}") from None


def _check_function(function: str) -> None:
    # Imported here: it starts a process, and most runs have no such function.
    from jigsaw_jax.reward.function import why_unusable

    why = why_unusable(function)
    if why is not None:
        raise ConfigError(why)


def _check_package(name: str, package: str) -> None:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"{name} must name an installed package, got {package!r}; "
            f"run: pip install --no-deps {package}"
        ) from None
