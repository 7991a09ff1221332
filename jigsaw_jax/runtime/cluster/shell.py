"""A run over many processes: the control loop, begun again when its learner is lost.

Head (Ray) > Fleet (processes) > one life of: Control > ClusterCrew > Roster
                                    ^                       |
                                    +--- learner lost: from the last checkpoint
"""

import dataclasses
import pathlib
import shutil
from typing import Any

from jigsaw_jax.runtime import signals
from jigsaw_jax.runtime.clock import Clock
from jigsaw_jax.runtime.cluster import carriers
from jigsaw_jax.runtime.cluster.head import Head
from jigsaw_jax.runtime.cluster.sites import Sites
from jigsaw_jax.runtime.cluster.surroundings import of_workers
from jigsaw_jax.runtime.control import Control
from jigsaw_jax.runtime.crew import CrewLostError
from jigsaw_jax.runtime.inputs import open_inputs
from jigsaw_jax.runtime.progress import Progress
from jigsaw_jax.runtime.seat import Seat
from jigsaw_jax.settings import Train
from jigsaw_jax.store.run_dir import RunDir


class ClusterRuntime:
    """Runs one `Train` with a process for each worker.

    Args:
      train: the run.
      address: "local:N", "auto", or where a Ray cluster's head listens.
      run_dir: where the run leaves everything; the learner's host must see it too.
      resume: go on from the last checkpoint where there is one.
      operative: the configuration as text, for the run directory.

    Raises:
      ClusterError: an address that can't be meant.
    """

    def __init__(
        self,
        train: Train,
        address: str,
        *,
        run_dir: pathlib.Path,
        resume: bool,
        operative: str,
    ) -> None:
        self._train = train
        self._run_dir = run_dir
        self._resume = resume
        self._operative = operative
        self._clock = Clock()
        self._head = Head(address, train)
        self._sites = Sites(self._head, train, self._clock)
        self._has_dir = False

    def run(self) -> int:
        """Train; 0 when the run ended or was stopped, 1 when it can't go on."""
        # Before Ray, whose start takes a while.
        RunDir(self._run_dir).check_free()
        problems = open_inputs(self._train)
        # Ray has handlers of its own, and its import must not be cut off.
        with signals.leaving_at_once():
            self._head.open()
            # Imported with Ray, which is an extra.
            from jigsaw_jax.runtime.cluster.crew import ClusterCrew
            from jigsaw_jax.runtime.cluster.fleet import Fleet
            from jigsaw_jax.runtime.cluster.roster import Roster

        told = self._told()
        head = self._head
        fleet = self.fleet = Fleet(
            told,
            self._clock,
            check=head.check,
            host=head.host,
            environment=of_workers(told, is_local=bool(head.num_local)),
        )

        def gather(seat: Seat) -> ClusterCrew:
            who = "another learner" if fleet.epoch else "the learner and the samplers"
            seat.progress.say(f"starting {who}")
            roster = Roster(seat, fleet, self._sites)
            crew = ClusterCrew(seat, fleet=fleet, roster=roster, problems=problems)
            try:
                crew.gather()
            except BaseException:
                crew.close()
                raise
            return crew

        try:
            return self._lives(gather)
        finally:
            fleet.close()
            self._head.close()
            # In a directory that another run has, it would be that one's.
            if self._has_dir and not self._train.cluster.carrier_folder:
                shutil.rmtree(told.cluster.carrier_folder, ignore_errors=True)

    def _told(self) -> Train:
        """The settings as workers are given them."""
        cluster = carriers.resolve(
            self._train.cluster,
            run_dir=self._run_dir,
            samplers=self._sites.open(Progress(self._train.updates, self._clock).say),
            is_local=self._head.num_local > 0,
        )
        return dataclasses.replace(self._train, cluster=cluster)

    def _lives(self, gather: Any) -> int:
        is_stopping = False
        while True:
            control = self.control = Control(
                self._train,
                gather,
                run_dir=self._run_dir,
                resume=self._resume,
                operative=self._operative,
                holds_state=False,
            )
            self._has_dir = True
            try:
                return control.run(is_stopping=is_stopping)
            except CrewLostError as error:
                control.say(f"{error}; going on from the last checkpoint")
            is_stopping = control.is_stopping
            self._resume = True
