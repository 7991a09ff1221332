"""How long a prompt's completions are, as far as finished ones tell."""

# The weight of the newest completion: the policy drifts, so old ones fade.
NEWEST = 0.25
# Prompts that are remembered; beyond them the one that was longest unheard of goes.
PROMPTS_MAX = 65_536


class Lengths:
    """A running mean of sampled tokens by prompt; epochs of one prompt share it."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def add(self, uid: str, num_tokens: int) -> None:
        """A completion of the prompt has finished."""
        prompt = _prompt(uid)
        mean = self._means.pop(prompt, float(num_tokens))
        self._means[prompt] = mean + NEWEST * (num_tokens - mean)
        if len(self._means) > PROMPTS_MAX:
            del self._means[next(iter(self._means))]

    def estimate(self, uid: str) -> float | None:
        """Sampled tokens that a completion will have; None of an unknown prompt."""
        return self._means.get(_prompt(uid))


def _prompt(uid: str) -> str:
    """A uid "pipeline/row/epoch" without its epoch; any other is taken whole."""
    return uid.rsplit("/", 1)[0] if uid.count("/") == 2 else uid
