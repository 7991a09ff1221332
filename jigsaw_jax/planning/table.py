"""A plan as tables for the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

_GIB = 2**30


def show(plan: dict[str, Any], console: Console) -> None:
    """Print both sides and what the estimates leave out.

    Args:
      plan: as `python -m jigsaw_jax.plan` writes it.
      console: to print to.
    """
    table = Table("", "sampler", "learner", title=plan["name"])
    sides = (plan["sampler"], plan["learner"])
    for label, cell in _ROWS:
        table.add_row(label, *(cell(side) for side in sides))
    console.print(table)
    _collectives(plan, console)
    for side in ("sampler", "learner"):
        for name, program in plan[side]["programs"].items():
            missing = program["unestimated"]
            if missing:
                runs = sum(missing.values())
                console.print(
                    f"{side} {name}: {len(missing)} kinds of operation in {runs} runs "
                    "have no cycles; they take their HBM traffic: "
                    f"{program['kernels_s'] * 1e3:.3f} ms"
                )


def _collectives(plan: dict[str, Any], console: Console) -> None:
    table = Table("program", "collective", "MB", "devices", "runs", title="Collectives")
    for side in ("sampler", "learner"):
        for name, program in plan[side]["programs"].items():
            for row in program["collectives"][:5]:
                table.add_row(
                    f"{side} {name}",
                    row["kind"],
                    f"{row['bytes'] / 1e6:,.2f}",
                    str(row["devices"]),
                    str(row["runs"]),
                )
    console.print(table)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"


def _roofline(side: dict[str, Any]) -> str:
    return " / ".join(_ms(side["roofline_s"][name]) for name in side["roofline_s"])


def _largest(side: dict[str, Any]) -> str:
    if "rows_largest" in side:
        return f"{side['rows_largest']} rows"
    return f"{side['slots_largest']} slots or {side['context_largest']} tokens"


def _time(side: dict[str, Any]) -> str:
    if "update_s" in side:
        return f"{_ms(side['update_s'])} an update of {side['micro_batches']}"
    return f"{_ms(side['decode_step_s'])} a step, prefill {_ms(side['prefill_s'])}"


def _share(side: dict[str, Any]) -> str:
    if "mfu" in side:
        return f"MFU {side['mfu']:.1%}, roofline {side['mfu_roofline']:.1%}"
    return f"{side['decode_ratio']:.2f} x reading weights and sequences once"


def _hbm(side: dict[str, Any]) -> str:
    used, limit = side["hbm_bytes"] / _GIB, side["hbm_limit_bytes"] / _GIB
    return f"{used:.2f} of {limit:.2f} GiB ({side['hbm_fraction']:.0%})"


_ROWS = (
    ("slice", lambda side: side["topology"]),
    ("HBM a chip", _hbm),
    ("operations", lambda side: f"{side['flops']:.3g}"),
    ("bytes a chip", lambda side: f"{side['bytes']:.3g}"),
    ("cycles", lambda side: f"{side['estimated_cycles']:.3g}"),
    ("compute / memory / interconnect", _roofline),
    ("bound", lambda side: side["bound"]),
    ("time", _time),
    ("tokens a second", lambda side: f"{side['tokens_per_s']:,.0f}"),
    ("of the best", _share),
    ("largest that fits", _largest),
)
