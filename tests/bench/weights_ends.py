"""The two processes of `tests.bench.weights`: a learner, and a sampler that decodes."""

import dataclasses
import gc
import mmap
import os
import resource
import sys
import threading
from typing import Any

import jax
import numpy as np
import ray

from jigsaw_jax import mesh as meshes
from jigsaw_jax import model, settings
from jigsaw_jax.model import decoder as decoders
from jigsaw_jax.records import SampleId
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster.actor import SWITCH_S
from jigsaw_jax.runtime.cluster.rig import let_go
from jigsaw_jax.runtime.weights import FolderCarrier, Receiver, Sender, snapshot
from jigsaw_jax.runtime.weights.arena import Arena
from jigsaw_jax.runtime.weights.carriers.lines import LineCarrier
from jigsaw_jax.runtime.weights.carriers.ray_objects import RayCarrier
from jigsaw_jax.runtime.weights.carriers.shared import SharedCarrier
from jigsaw_jax.runtime.weights.carriers.transfer import TransferCarrier
from jigsaw_jax.runtime.weights.checksum import checksum
from jigsaw_jax.runtime.weights.placement import Host
from jigsaw_jax.sample.loop import SampleLoop, SampleRequest
from tests.sample import tiny

TIMEOUT_S = 300
USUAL_STEPS = 500
MESH = settings.Mesh(fsdp=4, sampler_tensor=2)
# A layer has 14 MB in float32, the ends 113 MB.
BULK = settings.Decoder(
    vocab_size=49152,
    num_layers=1,
    model_dim=576,
    hidden_dim=1536,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    scan_layers=False,
    tied_head=True,
)


def bulk(mbytes):
    """A decoder of about so many MB, in float32; and shapes and axes of its leaves."""
    sizes = []
    for layers in (1, 2):
        decoder = dataclasses.replace(BULK, num_layers=layers)
        shapes = jax.eval_shape(lambda d=decoder: model.init_params(d, 0))
        sizes.append(sum(leaf.size * 4 for leaf in jax.tree.leaves(shapes)))
    layers = max(1, round((mbytes * 1e6 - sizes[0]) / (sizes[1] - sizes[0])) + 1)
    decoder = dataclasses.replace(BULK, num_layers=layers)
    shapes = jax.eval_shape(lambda: model.init_params(decoder, 0))
    return shapes, decoders.logical_axes(decoder)


def wanted(mbytes, mesh):
    """What a sampler of this mesh is sent."""
    shapes, axes = bulk(mbytes)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {
        "bulk": meshes.abstract(shapes, meshes.sharding_tree(mesh, axes, shapes)),
        "tiny": jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one),
            tiny.params(),
        ),
    }


def start(end, *args, node="") -> Any:
    """A `Learner` or `Sampler` in a process of its own, on the node that has this."""
    resources = {node: 0.1} if node else {}
    return ray.remote(num_cpus=0, resources=resources)(end).remote(*args)


def wait(ref) -> Any:
    return ray.get(ref, timeout=TIMEOUT_S)


def carriers_of(names, folder):
    made = {
        "shared": SharedCarrier,
        "line": lambda: LineCarrier(ray.util.get_node_ip_address(), clock=Clock()),
        "made": Made,
        "ray": lambda: RayCarrier(Clock()),
        "transfer": lambda: TransferCarrier(
            f"{ray.util.get_node_ip_address()}:0", clock=Clock()
        ),
        "folder": lambda: FolderCarrier(folder, is_durable=False),
    }
    return {name: made[name]() for name in names}


class Made:
    """A line on which a version is offered when all of it has been made."""

    name = "made"

    def __init__(self):
        line = LineCarrier(ray.util.get_node_ip_address(), clock=Clock())
        self.put, self.get, self.drop = line.put, line.get, line.drop


class SharedMemory:
    """A file in memory that two processes see."""

    def __init__(self, path, num_bytes):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, num_bytes)
        self.pages = np.frombuffer(mmap.mmap(file, num_bytes), np.uint8)
        os.close(file)


class Effort:
    """What a process has spent between two calls, of whichever of its threads."""

    def __init__(self):
        self.start_s = Clock().now_s()
        self.used = resource.getrusage(resource.RUSAGE_SELF)

    def spent(self):
        """Seconds, seconds of its cores, pages that it touched for the first time."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "s": Clock().now_s() - self.start_s,
            "cpu_s": used.ru_utime
            + used.ru_stime
            - self.used.ru_utime
            - self.used.ru_stime,
            "faults": used.ru_minflt - self.used.ru_minflt,
        }


def timed(function, *args):
    effort = Effort()
    function(*args)
    return effort.spent()


class Learner:
    """Four devices; has two trees and publishes them in turn."""

    def __init__(self, mbytes, names, folder, encoding):
        jax.config.update("jax_num_cpu_devices", 4)
        mesh = meshes.learner_mesh(MESH, [*jax.devices(), None, None])
        shapes, axes = bulk(mbytes)
        places = meshes.sharding_tree(mesh, axes, shapes)
        chance = np.random.default_rng(0)

        def draw(shape, place):
            values = chance.random(shape.shape, np.float32) - np.float32(0.5)
            return jax.device_put(values, place)

        self.trees = [
            {"bulk": jax.tree.map(draw, shapes, places), "tiny": tiny.params(seed)}
            for seed in range(2)
        ]
        self.senders = {
            name: Sender(
                "bench",
                [carrier],
                encoding=encoding,
                wanted=wanted(mbytes, meshes.distant_sampler_mesh(MESH)),
                clock=Clock(),
            )
            for name, carrier in carriers_of(names, folder).items()
        }
        self.sums = [sums(tree) for tree in self.trees]

    def boxes(self):
        """(place of the leaf, index, bytes) of all shards, as copied by `copy`."""
        boxes = snapshot.take(self.trees[0], 0, as_bf16=False).boxes
        self.taken = [box.data_u8 for box in boxes]
        self.whole = np.concatenate(self.taken)
        return [(box.leaf, box.index, box.words.nbytes) for box in boxes]

    def copy(self, path, by_shards):
        """Into shared memory: what it takes."""
        shared = SharedMemory(path, len(self.whole))
        if by_shards:
            # The same mapping as the last time, which has been written to.
            self.shared = getattr(self, "shared", shared)
            return timed(self._copy_shards)
        return timed(np.copyto, shared.pages, self.whole)

    def _copy_shards(self):
        start = 0
        for shard in self.taken:
            self.shared.pages[start : start + len(shard)] = shard
            start += len(shard)

    def publish(self, name, version):
        self.effort = Effort()
        offer = self.senders[name].publish(self.trees[version % 2], version)
        start_s, put = self.effort.start_s, self.effort.spent()
        return start_s, put["s"], self.sums[version % 2], offer

    def spent(self):
        """What it has spent on the last version, also behind `publish`."""
        return self.effort.spent()


class Sampler:
    """Two devices, and a thread that decodes a small model when told to."""

    def __init__(self, mbytes, names, folder, encoding, threads):
        # As in every worker of a run.
        sys.setswitchinterval(SWITCH_S)
        jax.config.update("jax_num_cpu_devices", 2)
        devices = [None] * 4 + jax.devices()
        own = wanted(mbytes, meshes.sampler_mesh(MESH, devices))
        self.receivers = {
            name: Receiver(
                "bench",
                own,
                [carrier],
                keep_base=encoding == "delta",
                threads=threads,
                clock=Clock(),
            )
            for name, carrier in carriers_of(names, folder).items()
        }
        # Each carrier's own: one isn't to pay for memory that another gives back.
        self.trees = {}
        self.decoding = Decoding()
        leaves = jax.tree.leaves(own)
        self.host = Host(leaves, [leaf.dtype for leaf in leaves], Arena())

    def copy(self, path, boxes, by_shards):
        """Out of shared memory: what it takes."""
        shared = SharedMemory(path, sum(size for _, _, size in boxes))
        if not by_shards:
            return timed(shared.pages.copy)
        self.shared = getattr(self, "shared", shared)
        return timed(self._copy_shards, boxes)

    def _copy_shards(self, boxes):
        start = 0
        for leaf, index, size in boxes:
            self.host.write(leaf, index, self.shared.pages[start : start + size])
            start += size

    def decode(self, is_on):
        self.decoding.turn(is_on)

    def receive(self, name, published):
        start_s, put_s, want, offer = published
        effort = Effort()
        tree = self.receivers[name].receive(offer)
        # As in every sampler of a run.
        old, self.trees[name] = jax.tree.leaves(self.trees.get(name)), tree
        let_go(old)
        if self.decoding.is_on:
            self.decoding.swap(tree["tiny"])
        got = effort.spent()
        end_s = Clock().now_s()
        return {
            "total_s": end_s - start_s,
            "put_s": put_s,
            "offer_s": effort.start_s - start_s - put_s,
            "got": got,
            "stall": self.decoding.stall(start_s, end_s),
            "switch_s": self.decoding.switch_s,
            "is_equal": sums(tree) == want,
        }


class Decoding:
    """Steps a small engine without a pause; notes when each step ended."""

    def __init__(self):
        self.engine = tiny.engine(new_tokens_max=12, steps_per_call=5)
        self.loop = SampleLoop(self.engine, self.engine.load_params(tiny.params()), 0)
        self.ends_s = []
        self.is_on = False
        self.switch_s = 0.0
        self.pending = None
        self.swapped = threading.Event()

    def turn(self, is_on):
        self.is_on = is_on
        if is_on:
            self.thread = threading.Thread(target=self._run)
            self.thread.start()
            # Compiled, and with steps to compare with.
            while len(self.ends_s) < USUAL_STEPS:
                threading.Event().wait(0.05)
            # As in every worker of a run.
            gc.collect()
            gc.freeze()
        else:
            self.thread.join()
            self.ends_s.clear()

    def swap(self, params):
        """Load on this thread, switch between two steps of the other."""
        self.swapped.clear()
        self.pending = jax.block_until_ready(self.engine.load_params(params))
        self.swapped.wait()

    def stall(self, start_s, end_s):
        """Longest time between two steps beyond the median; the steps' slow-down."""
        ends_s = np.array(self.ends_s)
        gaps = np.diff(ends_s)
        during = (ends_s[1:] > start_s) & (ends_s[:-1] < end_s)
        if not during.any() or during.all():
            return None
        usual_s = float(np.median(gaps[~during]))
        return {
            "longest_s": float(gaps[during].max()) - usual_s,
            "usual_s": usual_s,
            "slower": float(np.median(gaps[during])) / usual_s,
        }

    def _run(self):
        clock, number = Clock(), 0
        while self.is_on:
            while self.loop.num_free:
                self.loop.submit(
                    SampleRequest(
                        id=SampleId(uid=str(number), draw=0, sample=0),
                        attempt=0,
                        prompt_tokens=(1, 2, 3),
                        key_words=(number, 1),
                        temperature=1.0,
                        top_k=0,
                        top_p=1.0,
                        new_tokens_max=12,
                    )
                )
                number += 1
            if self.pending is not None:
                version = self.loop.version + 1
                self.switch_s = timed(self.loop.set_params, self.pending, version)["s"]
                self.pending = None
                self.swapped.set()
            self.loop.step()
            self.ends_s.append(clock.now_s())


def sums(tree):
    return [
        checksum(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))
        for leaf in jax.tree.leaves(tree)
    ]
