"""Host decisions as deterministic state machines: `apply(event) -> effects`."""
