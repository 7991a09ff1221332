import pytest

from jigsaw_jax.planning import collectives, hlo
from jigsaw_jax.planning.chips import CHIPS

CHIP = CHIPS["v5e"]
MB = 1_000_000


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        # 0.9 MB cross two links of 45 GB/s in 5 hops of a microsecond.
        ("all-gather", 5e-6 + 1e-5),
        ("reduce-scatter", 5e-6 + 1e-5),
        ("all-reduce", 2 * (5e-6 + 1e-5)),
        # A tenth of 10 MB goes to each of ten, by 2.5 hops in the mean.
        ("all-to-all", 5e-6 + 2.5 * MB / 9e10),
        ("collective-permute", 1e-6 + MB / 4.5e10),
    ],
)
def test_seconds_of_a_megabyte_on_ten_chips(kind, seconds):
    one = collectives.Collective(kind=kind, num_bytes=MB, group=10, is_async=False)
    assert one.seconds(CHIP) == pytest.approx(seconds)


def test_one_device_needs_no_time():
    one = collectives.Collective(
        kind="all-reduce", num_bytes=MB, group=1, is_async=False
    )
    assert one.seconds(CHIP) == 0


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,4]<=[8]", 4),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 4),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", 8),
    ],
)
def test_the_group_is_read_in_each_way_that_xla_writes_it(groups, size):
    text = f"""\
ENTRY %main (a: bf16[8]) -> bf16[8] {{
  %a = bf16[8]{{0}} parameter(0)
  ROOT %r = bf16[8]{{0}} all-reduce(%a), replica_groups={groups}, to_apply=%s
}}
"""
    item = hlo.parse(text).computations["main"].instructions["r"]
    found = collectives.read(item, 16, 8)
    assert (found.kind, found.num_bytes, found.group) == ("all-reduce", 16, size)
