"""An engine over four devices, of one process or of two.

python -m tests.sample.two_hosts ADDRESS NUM_PROCESSES PROCESS

Prints every completion; one is paused in the middle, and goes on.
"""

import json
import sys

import jax

from jigsaw_jax import mesh as meshes
from jigsaw_jax import settings
from jigsaw_jax.model import decoder as model
from jigsaw_jax.records import SampleId
from jigsaw_jax.sample.engine import Engine
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest, key_words

DECODER = settings.Decoder(
    vocab_size=64,
    num_layers=1,
    model_dim=16,
    hidden_dim=32,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    init_scale=0.3,
)
SAMPLER = settings.Sampler(
    slots=4,
    prompt_buckets=(8,),
    new_tokens_max=6,
    steps_per_call=2,
    cache="pages",
    page_size=4,
    num_pages=32,
)
DEVICES = 4


def request(index):
    sample_id = SampleId("u", 0, index)
    return SampleRequest(
        id=sample_id,
        attempt=0,
        prompt_tokens=tuple(range(1, 4 + index % 2)),
        key_words=key_words(0, "p", sample_id),
        new_tokens_max=SAMPLER.new_tokens_max,
    )


def sample(decoder=DECODER):
    """Tokens and logprobs by sample."""
    shape = settings.Mesh(sampler_data=2, sampler_tensor=2, shared=True)
    mesh = meshes.sampler_mesh(shape, meshes.host_devices(DEVICES))
    engine = Engine(decoder, SAMPLER, mesh, stop_tokens=())
    params = engine.load_params(model.init_params(decoder, 0))
    loop = SampleLoop(engine, params, version=0)
    for index in range(5):
        loop.submit(request(index))
    finished = list(loop.step().finished)
    loop.pause(SampleId("u", 0, 1), 0)
    finished += loop.step().finished
    loop.resume(SampleId("u", 0, 1), 0)
    while not loop.is_idle:
        finished += loop.step().finished
    rows = [
        [s.id.sample, s.segments[0].tokens, s.segments[0].logprobs] for s in finished
    ]
    return json.loads(json.dumps(sorted(rows)))


def main(address, num_processes, process):
    jax.config.update("jax_num_cpu_devices", DEVICES // num_processes)
    jax.distributed.initialize(
        address,
        num_processes,
        process,
        coordinator_bind_address=address,
        shutdown_timeout_seconds=5,
    )
    print(json.dumps(sample()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
