"""Chat templates: a prompt rendered into special tokens and plain text.

A template is text from a model file, so it runs in Jinja's immutable sandbox. What the
user wrote is plain text even where it spells a special token: such spellings are marked
before the template sees them and unmarked after the rendered text has been cut.
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

_MARKERS = [chr(code) for code in range(0xE000, 0xF900)]


class Piece(NamedTuple):
    """A part of a rendered prompt.

    text: its characters.
    is_special: it is the spelling of one special token, and not plain text.
    """

    text: str
    is_special: bool


class ChatTemplate:
    """One model's template, ending where the assistant begins to speak.

    `names` are texts that templates may mention, such as "bos_token". There is no
    clock in the sandbox: templates that would write today's date take their fallback.
    A template that is no Jinja is a ValueError.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Collection[str],
        names: Mapping[str, str],
        system: str | None = None,
    ) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template can't be read: {error}") from None
        self._names = dict(names)
        self._system = system
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        any_special = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._cut = re.compile(f"({any_special})")
        # A look-ahead finds spellings that overlap, too.
        self._start = re.compile(f"(?s)(?=(?:{any_special}))(.)")

    def render(self, content: str) -> tuple[Piece, ...]:
        """The pieces of a chat whose only user message is `content`.

        Args:
          content: the user's message.

        Returns:
          Special tokens and the plain text between them, in order. Neighbouring
          plain text is one piece, as a tokenizer that knows the specials sees it.

        Raises:
          ValueError: the template refuses the messages, or cannot be rendered.
        """
        everything = content + (self._system or "")
        marker = next(mark for mark in _MARKERS if mark not in everything)
        messages = [{"role": "user", "content": self._marked(content, marker)}]
        if self._system is not None:
            system = self._marked(self._system, marker)
            messages.insert(0, {"role": "system", "content": system})
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=True, **self._names
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refuses the prompt: {error}") from None
        return tuple(
            Piece(part.replace(marker, ""), bool(index % 2))
            for index, part in enumerate(self._cut.split(text))
            if part
        )

    def _marked(self, text: str, marker: str) -> str:
        return self._start.sub(lambda match: match[1] + marker, text)


class _Generation(jinja2.ext.Extension):
    """The tags around what an assistant wrote in some templates; they write nothing."""

    # Jinja declares it so, and reads it of the class.
    tags: set[str] = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """What is between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
