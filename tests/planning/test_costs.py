import pytest

from jigsaw_jax.planning import costs, hlo, trips
from jigsaw_jax.planning.chips import CHIPS
from tests.planning import recorded

CHIP = CHIPS["v5e"]
ROW = 2 * 8 * 128
MATRIX = 2 * 128 * 128


def _loop(module, name):
    for computation in module.computations.values():
        if name in computation.instructions:
            return computation, computation.instructions[name]
    raise AssertionError(name)


def test_a_line_is_read_with_its_shapes_memory_operands_and_cycles():
    module = hlo.parse(recorded.SCAN)
    fusion = module.computations["body"].instructions["fusion.1"]
    assert module.entry == "main"
    assert fusion.opcode == "fusion"
    assert fusion.cycles == 3000
    assert fusion.operands == (
        "get-tuple-element.7",
        "get-tuple-element.5",
        "get-tuple-element.6",
    )
    assert fusion.called("calls") == "fused_computation.1"
    assert fusion.source == "jit(step)/while/body/dot_general"
    assert [s.dims for s in fusion.shapes] == [(8, 128)]
    assert fusion.num_bytes == ROW
    x = module.computations["main"].instructions["x"]
    assert [shape.is_in_hbm for shape in x.shapes] == [False]


@pytest.mark.parametrize(("name", "count"), [("while.2", 28), ("while.1", 2)])
def test_trips_are_bound_minus_start_over_step(name, count):
    module = hlo.parse(recorded.SCAN)
    assert trips.trip_count(module, *_loop(module, name)) == count


def test_a_count_that_xla_wrote_down_wins():
    text = recorded.SCAN.replace(
        "condition=%cond, body=%body",
        'condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"7"}}',
    )
    module = hlo.parse(text)
    assert trips.trip_count(module, *_loop(module, "while.2")) == 7


def test_a_scanned_layer_counts_once_a_trip():
    cost = costs.Walk(hlo.parse(recorded.SCAN), CHIP, 4).cost()
    assert cost.cycles == 28 * 3000
    assert cost.collectives == {
        ("all-reduce", ROW, 4): 28,
        ("collective-permute", ROW, 4): 56,
    }
    assert not cost.uncounted


def test_bytes_are_those_of_the_layers_slice_and_none_of_the_chips_own_memory():
    cost = costs.Walk(hlo.parse(recorded.SCAN), CHIP, 4).cost()
    # The matmul reads one layer's matrix and writes a row; the sum reads and writes
    # one; each of two permutations has its operand, and its result twice.
    a_layer = (MATRIX + ROW) + 2 * ROW + 2 * 3 * ROW
    assert cost.hbm_bytes == 28 * a_layer


NESTED = """
%renamed (param_0: bf16[128,128]) -> bf16[128,128] {
  %param_0 = bf16[128,128]{1,0} parameter(0)
  ROOT %bitcast.1 = bf16[128,128]{1,0} bitcast(%param_0)
}

%fused (param_1: bf16[8,128], param_2: bf16[128,128]) -> bf16[8,128] {
  %param_1 = bf16[8,128]{1,0:S(1)} parameter(0)
  %param_2 = bf16[128,128]{1,0} parameter(1)
  %inner = bf16[128,128]{1,0} fusion(%param_2), kind=kLoop, calls=%renamed
  ROOT %product = bf16[8,128]{1,0} convolution(%param_1, %inner), dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[8,128], weight: bf16[128,128]) -> bf16[8,128] {
  %x = bf16[8,128]{1,0:S(1)} parameter(0)
  %weight = bf16[128,128]{1,0} parameter(1)
  ROOT %fusion.1 = bf16[8,128]{1,0:S(1)} fusion(%x, %weight), kind=kOutput, calls=%fused
}
"""


def test_a_weight_counts_that_a_nested_fusion_only_renames():
    assert costs.Walk(hlo.parse(NESTED), CHIP, 1).cost().hbm_bytes == MATRIX


def test_time_adds_synchronous_collectives_and_hides_asynchronous_ones():
    cost = costs.Walk(hlo.parse(recorded.SCAN), CHIP, 4).cost()
    hop, link = 1e-6, CHIP.link_bytes_s
    permute = 2 * (hop + ROW / link)
    reduce = 2 * (2 * hop + ROW * 3 / 4 / (2 * link))
    a_layer = 3000 / CHIP.clock_hz + permute + reduce
    assert cost.time_s == pytest.approx(28 * a_layer)


def test_a_loop_of_unknown_count_is_listed_and_runs_as_often_as_told():
    text = recorded.SCAN.replace("constant(28)", "constant(true)")
    walk = costs.Walk(
        hlo.parse(
            text.replace(
                "s32[]{:T(128)} constant(true)",
                "s32[]{:T(128)} copy(%get-tuple-element.4)",
            )
        ),
        CHIP,
        4,
        open_trips=5,
    )
    cost = walk.cost()
    assert cost.cycles == 5 * 3000
    assert cost.uncounted == ["while.2"]


def test_a_collective_beside_fusions_counts_once_and_a_scatter_is_no_all_reduce():
    cost = costs.Walk(hlo.parse(recorded.KERNELS), CHIP, 8).cost()
    whole = 2 * 2048 * 1024
    assert cost.collectives == {
        ("all-gather", whole, 8): 1,
        ("reduce-scatter", whole, 8): 1,
    }


def test_a_kernel_without_cycles_is_listed_and_takes_its_traffic():
    cost = costs.Walk(hlo.parse(recorded.KERNELS), CHIP, 8).cost()
    part = 2 * 256 * 1024
    assert cost.unestimated == {"tpu_custom_call": 1}
    assert cost.kernels_s == pytest.approx(2 * part / CHIP.hbm_bytes_s)
    # The branch that sorts is not taken.
    assert cost.cycles == 1500
    wire = 7 / 8 * 8 * part / (2 * CHIP.link_bytes_s) + 4e-6
    # The gather runs beside the kernels and takes longer; the scatter is added.
    assert cost.time_s == pytest.approx(2 * wire)
