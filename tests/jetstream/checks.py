"""One check of our engine under JetStream itself; `conformance` starts each.

JetStream's driver kills its process at any exception in one of its threads, so each
check has a process of its own. Only here is the package imported.
"""

import asyncio
import inspect
import queue
import socket
import sys
import threading
import types
import unittest

import grpc
import jax
import jax.numpy as jnp
from jetstream.core import config_lib, orchestrator, server_lib
from jetstream.core.proto import jetstream_pb2 as messages
from jetstream.core.proto import jetstream_pb2_grpc as stubs
from jetstream.engine import engine_api
from jetstream.engine import mock_engine as mock

from jigsaw_jax.sample import jetstream_adapter
from tests.jetstream import api, served
from tests.jetstream.served import TOKENIZER, Request


def _adapter(ours):
    return jetstream_adapter.ReleaseEngine(ours, served.params(), TOKENIZER)


def _driver(ours, *, interleaved):
    """A driver whose prefill and generate engines are the same, or two."""
    generate = _adapter(ours)
    prefill = generate if interleaved else _adapter(ours)
    return orchestrator.Driver(
        prefill_engines=[prefill],
        generate_engines=[generate],
        prefill_params=[prefill.load_params()],
        generate_params=[generate.load_params()],
        interleaved_mode=interleaved,
    )


def _message(request, **content):
    # JetStream puts BOS before the prompt.
    tokens = messages.DecodeRequest.TokenContent(token_ids=request.prompt[1:])
    content = content or {"token_content": tokens}
    return messages.DecodeRequest(max_tokens=request.max_tokens, **content)


async def _completion(decode, message):
    """Token ids and text of one stream."""
    tokens, text = [], ""
    async for response in decode(message):
        (sample,) = response.stream_content.samples
        tokens += sample.token_ids
        text += sample.text
    return tuple(tokens), text


async def _completions(decode, requests):
    found = await asyncio.gather(*[_completion(decode, _message(r)) for r in requests])
    return [tokens for tokens, _ in found]


def _run(driver, streams):
    """What the streams of a driver give, which is stopped."""

    async def whole():
        found = await streams
        # While this loop lives: the last stream has ended, but not yet its thread.
        driver.stop()
        return found

    return asyncio.run(whole())


def _equal(found, expected):
    wrong = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    for i in wrong:
        print(f"request {i}: got {found[i]}, our loop returns {expected[i]}")
    assert not wrong, f"{len(wrong)} of {len(found)} requests differ"


def _serve(*, interleaved):
    ours = served.engine(served.stop_token())
    requests = served.requests(24)
    expected = served.by_our_loop(ours, requests)
    # Some end by the stop token, some by their cap, some by the engine's.
    assert len(set(map(len, expected))) > 3, expected
    driver = _driver(ours, interleaved=interleaved)
    client = orchestrator.LLMOrchestrator(driver=driver)
    _equal(_run(driver, _completions(client.Decode, requests)), expected)


def contract():
    """The recorded table is the package's, and our engine is one of its engines."""
    package = engine_api.Engine
    public = {name for name in vars(package) if not name.startswith("_")}
    assert public == set(api.RELEASE), public ^ set(api.RELEASE)
    abstract = set(api.RELEASE) - set(api.NOT_ABSTRACT)
    assert package.__abstractmethods__ == abstract
    for name, entry in api.RELEASE.items():
        member = inspect.getattr_static(package, name)
        assert isinstance(member, property) == (entry is None), name
        if entry is not None:
            given = list(inspect.signature(member).parameters.values())[1:]
            given = [
                p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            ]
            required = tuple(p.name for p in given if p.default is p.empty)
            optional = tuple(p.name for p in given if p.default is not p.empty)
            assert (set(required), optional) == (set(entry[0]), entry[1]), name
    fields = tuple(inspect.signature(engine_api.ResultTokens).parameters)
    assert fields == api.RESULT_FIELDS
    engine = _adapter(served.engine())
    assert isinstance(engine, engine_api.Engine)
    params, state = engine.load_params(), engine.init_decode_state()
    _, result = engine.generate(params, state)
    assert isinstance(result, engine_api.ResultTokens)


def interleaved():
    """24 greedy requests to 4 slots, one engine for prefill and decode."""
    _serve(interleaved=True)


def disaggregated():
    """24 greedy requests, prefixes transferred from one engine to another."""
    _serve(interleaved=False)


def edges():
    """Prompts that are empty, too long or bring their BOS; text."""
    ours = served.engine(served.stop_token())
    long = tuple(range(1, 50))
    bos = served.BOS
    prompts = [(), long, (7,), (bos, 7, 8)]
    meant = [(bos,), long[-32:], (bos, 7), (bos, 7, 8)]
    expected = served.by_our_loop(ours, [Request(prompt, 6) for prompt in meant])
    driver = _driver(ours, interleaved=True)
    client = orchestrator.LLMOrchestrator(driver=driver)

    async def one_by_one():
        found = []
        for prompt in prompts:
            message = _message(Request((bos, *prompt), 6))
            found.append((await _completion(client.Decode, message))[0])
        text = messages.DecodeRequest.TextContent(text="Grüße")
        message = _message(Request((), 6), text_content=text)
        return found, await _completion(client.Decode, message)

    found, (tokens, text) = _run(driver, one_by_one())
    _equal(found, expected)
    prompt = TOKENIZER.encode_prompt("Grüße")[0]
    _equal([tokens], served.by_our_loop(ours, [Request(prompt, 6)]))
    assert text == "".join(TOKENIZER.decode((token,)) for token in tokens)


class _SlowGenerateThread(queue.Queue):
    """Gives a slot that found no request back late, when the last one may be free."""

    def put(self, item, block=True, timeout=None):
        if threading.current_thread().name.startswith("generate") and not block:
            threading.Event().wait(0.02)
        super().put(item, block, timeout)


def last_slot():
    """The last slot is freed between the generate thread's look and its assertion."""
    orchestrator.queue = types.SimpleNamespace(
        Queue=_SlowGenerateThread, Empty=queue.Empty, Full=queue.Full
    )
    ours = served.engine(served.stop_token())
    requests = served.requests(12, seed=2)
    expected = served.by_our_loop(ours, requests)
    starts = []
    init_decode_state = ours.init_decode_state
    ours.init_decode_state = lambda: starts.append(1) or init_decode_state()
    driver = _driver(ours, interleaved=True)
    client = orchestrator.LLMOrchestrator(driver=driver)

    async def one_by_one():
        return [await _completion(client.Decode, _message(r)) for r in requests]

    found = _run(driver, one_by_one())
    _equal([tokens for tokens, _ in found], expected)
    assert len(starts) > 1, "the generate thread must have failed and started again"


def server():
    """24 requests through the gRPC server."""
    ours = served.engine(served.stop_token())
    requests = served.requests(24, seed=1)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    config = config_lib.ServerConfig(
        interleaved_slices=("cpu=1",),
        interleaved_engine_create_fns=(lambda _devices: _adapter(ours),),
    )
    running = server_lib.run(
        port=port,
        config=config,
        devices=[None],
        credentials=grpc.local_server_credentials(),
    )

    async def ask():
        credentials = grpc.local_channel_credentials()
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            return await _completions(stubs.OrchestratorStub(channel).Decode, requests)

    found = asyncio.run(ask())
    running.stop()
    _equal(found, served.by_our_loop(ours, requests))


class _LittleWork:
    """jax.numpy for the mock engine, which multiplies 4096 x 4096 ones to pass time."""

    def __getattr__(self, name):
        return getattr(jnp, name)

    def ones(self, shape, **kwargs):
        return jnp.ones((8, 8) if shape == (4096, 4096) else shape, **kwargs)


def _run_tests(module):
    mock.jnp = _LittleWork()
    ran = unittest.main(module=None, argv=["unittest", module], exit=False).result
    assert ran.testsRun, f"{module} must have tests"
    assert ran.wasSuccessful(), f"{module} failed"


def mock_engine():
    """JetStream's own tests of its mock engine."""
    _run_tests("jetstream.tests.engine.test_mock_engine")


def own_orchestrator():
    """JetStream's own tests of its orchestrator."""
    _run_tests("jetstream.tests.core.test_orchestrator")


CHECKS = (
    contract,
    interleaved,
    disaggregated,
    edges,
    last_slot,
    server,
    mock_engine,
    own_orchestrator,
)

if __name__ == "__main__":
    # JetStream's mock engine wants exactly one.
    assert jax.device_count() == 1
    jetstream_adapter.mend_release(orchestrator)
    {check.__name__: check for check in CHECKS}[sys.argv[1]]()
