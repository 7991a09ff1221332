"""Texts that the TPU compiler printed for our programs, cut down to a few lines.

SCAN: 28 layers whose body has one product, one synchronous reduction, and an inner
loop in which a permutation runs.
KERNELS: a gather that runs beside a fusion (both fusions repeat it), a scattered
reduction, a Pallas call without cycles and a conditional.
"""

import pathlib

HERE = pathlib.Path(__file__).parent
SCAN = (HERE / "scan.hlo").read_text()
KERNELS = (HERE / "kernels.hlo").read_text()
