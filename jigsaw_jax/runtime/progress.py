"""What a person watches: a live table on a terminal, one plain line an update else."""

import sys
from typing import Any

from jigsaw_jax.runtime.clock import Clock


class Progress:
    """Prints how the run goes; `rich` is only imported for a terminal."""

    def __init__(
        self, updates: int, clock: Clock, *, is_terminal: bool | None = None
    ) -> None:
        self._updates = updates
        self._clock = clock
        self._started: tuple[float, int] | None = None
        self._live: Any = None
        self._is_terminal = sys.stdout.isatty() if is_terminal is None else is_terminal

    def say(self, text: str) -> None:
        """One line of news."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def start(self, updates_done: int) -> None:
        """The first round begins, or a later one of a run that goes on."""
        self._started = (self._clock.now_s(), updates_done)
        if updates_done:
            self.say(f"going on after update {updates_done}/{self._updates}")
        if self._is_terminal:
            self._open_live(updates_done)

    def show(self, record: dict[str, Any]) -> None:
        """An update is done; `record` is its line of metrics.jsonl."""
        done = record["update"] + 1
        left_s = self._left_s(done)
        fields = {
            "round": str(record["round"] + 1),
            "reward": f"{record['reward/mean']:.3f}",
            "tokens/s": f"{record['pipeline/goodput_tokens_per_s']:,.0f}",
            "learner waits": f"{100 * record['pipeline/trainer_wait_ratio']:.0f} %",
            "left": _clock_text(left_s),
        }
        if self._live is None:
            parts = "  ".join(f"{name} {value}" for name, value in fields.items())
            self.say(f"update {done}/{self._updates}  {parts}")
            return
        self._live.update(self._task, completed=done, **_columns(fields))

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left_s(self, done: int) -> float:
        if self._started is None:
            return 0.0
        start_s, first = self._started
        per_update_s = (self._clock.now_s() - start_s) / max(done - first, 1)
        return per_update_s * max(self._updates - done, 0)

    def _open_live(self, updates_done: int) -> None:
        from rich import progress

        names = ("round", "reward", "tokens/s", "learner waits", "left")
        shown = [
            progress.TextColumn(f"{name} {{task.fields[{_key(name)}]}}")
            for name in names
        ]
        self._live = progress.Progress(
            progress.TextColumn("update {task.completed}/{task.total}"),
            progress.BarColumn(bar_width=24),
            *shown,
        )
        blank = _columns(dict.fromkeys(names, "-"))
        self._task = self._live.add_task(
            "train", total=self._updates, completed=updates_done, **blank
        )
        self._live.start()


def _key(name: str) -> str:
    return name.replace("/", "_").replace(" ", "_")


def _columns(fields: dict[str, str]) -> dict[str, str]:
    return {_key(name): value for name, value in fields.items()}


def _clock_text(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
