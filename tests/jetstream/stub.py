"""A stand-in for JetStream with just its abstract class, made from a recorded table."""

import abc
import dataclasses
import importlib
import importlib.util
import sys
import types

from tests.jetstream import api

TOKENIZER = "jigsaw_jax.sample.jetstream_tokenizer"
ADAPTER = "jigsaw_jax.sample.jetstream_adapter"


def _engine_class(table):
    def abstract(entry):
        # Never called: a class that leaves it out cannot be made.
        method = abc.abstractmethod(lambda _self: None)
        return property(method) if entry is None else method

    names = set(table) - set(api.NOT_ABSTRACT)
    return abc.ABCMeta("Engine", (), {name: abstract(table[name]) for name in names})


def _pad_tokens(tokens, bos_id, pad_id, is_bos=True, max_prefill_length=16):
    """All to one length; the conformance test runs JetStream's own."""
    tokens = [bos_id, *tokens] if is_bos else list(tokens)
    kept = tokens[-max_prefill_length:]
    padding = [pad_id] * (max_prefill_length - len(kept))
    return kept + padding, len(tokens)


def adapter(monkeypatch, table):
    """A copy of the adapter's module that has found a JetStream of this table."""
    modules = {
        "jetstream": types.ModuleType("jetstream"),
        "jetstream.engine": types.ModuleType("jetstream.engine"),
        "jetstream.engine.engine_api": types.SimpleNamespace(
            Engine=_engine_class(table),
            ResultTokens=dataclasses.make_dataclass("ResultTokens", api.RESULT_FIELDS),
        ),
        "jetstream.engine.tokenizer_api": types.SimpleNamespace(Tokenizer=object),
        "jetstream.engine.token_utils": types.SimpleNamespace(pad_tokens=_pad_tokens),
        "jetstream.engine.tokenizer_pb2": types.SimpleNamespace(
            TokenizerParameters=types.SimpleNamespace
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return _copy(monkeypatch)


def absent(monkeypatch):
    """A copy of the adapter's module that has found no JetStream."""
    for name in ("engine_api", "tokenizer_api", "token_utils", "tokenizer_pb2"):
        monkeypatch.setitem(sys.modules, f"jetstream.engine.{name}", None)
    monkeypatch.setitem(sys.modules, "jetstream", types.ModuleType("jetstream"))
    return _copy(monkeypatch)


def _copy(monkeypatch):
    """Both modules anew; those that others have imported stay as they are."""
    package = importlib.import_module("jigsaw_jax.sample")
    for name in (TOKENIZER, ADAPTER):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # So that the adapter finds the new tokenizer.
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(package, name.rpartition(".")[2], module, raising=False)
        spec.loader.exec_module(module)
    return sys.modules[ADAPTER]
