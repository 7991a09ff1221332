"""Where in a completion the program is."""

FENCE = "```"
_LANGUAGES = frozenset({"", "py", "python", "python3"})


def extract_program(text: str) -> str | None:
    """The last closed fenced block that is Python or names no language, or None.

    A block that was never closed counts as text, so that a completion cut off in its
    program has none. Time is linear in the length, whatever a model writes.
    """
    program = None
    language: str | None = None
    block: list[str] = []
    for line in text.splitlines():
        mark = line.strip()
        if language is None:
            if mark.startswith(FENCE):
                language = mark.removeprefix(FENCE).strip().lower()
                block = []
        elif mark == FENCE:
            if language in _LANGUAGES:
                program = "\n".join(block) + "\n"
            language = None
        else:
            block.append(line)
    return program
