"""``paramfleet train`` with ``runner.days``: passes over new data, day by day.

Each pass is waited for, loaded, shared by lot, scored with the model as it is, trained, and
forgotten; what is saved and published between comes from ``Course``. A training that begins
again continues after its newest complete checkpoint, which says itself where it is.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import paramfleet as fleet
from paramfleet.runner.batches import Batch, list_files, open_batches
from paramfleet.runner.config.errors import ConfigError
from paramfleet.runner.learning import Learner
from paramfleet.runner.models.model import Feeds, Model
from paramfleet.runner.online.calendar import Calendar, Pass, Place
from paramfleet.runner.online.course import Course, Plan
from paramfleet.runner.online.data.coming import Coming
from paramfleet.runner.online.data.coming_rows import ComingRows
from paramfleet.runner.online.data.pass_data import PassData, TrainingBatches
from paramfleet.runner.online.deeds import Deeds, written_of
from paramfleet.runner.online.errors import OtherPassesError
from paramfleet.runner.online.hold import held_for_training
from paramfleet.runner.online.model_folder import ModelFolder
from paramfleet.runner.online.state import OnlineState
from paramfleet.runner.online.workers import agree, check_together, settle, tell
from paramfleet.runner.scoring import score, score_all
from paramfleet.runner.showing.display import Display, metrics_text, shown
from paramfleet.runner.showing.outcome import Outcome, model_name
from paramfleet.telemetry.visual import Write, visual
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.system.clock import Clock

__all__ = ["train_by_days"]

log = logging.getLogger(__name__)

BEFORE = "last pass, before it was trained"
"""What the metrics of a result are of, where there is no test data."""

_UNWRITABLE = re.compile("[\\t\\r\\n\\0\\ud800-\\udfff]")
"""What a path may not have: what ends a field or a line, and what can't be written."""


def train_by_days(model: Model[Any], clock: Clock) -> Outcome:
    """Train all passes of the days that aren't trained yet, and report.

    ``fleet.init`` was called, and took the role of a worker.

    Raises:
        ConfigError: if a key contradicts what is there.
        NotTogetherError: if workers come and go.
        ModelFolderInUseError: if another training has the folder of what is saved.
        OtherPassesError: if the newest checkpoint isn't one that these passes go on from.
        DataMissingError: if a pass has no folder, and nothing is to be waited for.
        DataNotComeError: if the data of a pass doesn't come in time.
        FleetError: if the job failed, or a file can't be read.
    """
    config, runner = model.config, model.config.runner
    test = None
    if runner.test_data_dir:
        test = open_batches(model, list_files(config, "test_data_dir"), test=True)
    first = fleet.worker_index() == 0
    folder = config.path_of(runner.visual_path) if runner.use_visual and first else None
    check_together()
    root = _root_of(model)
    with (
        held_for_training(root) if first else nullcontext(),
        shown(interval=runner.print_interval) as display,
        visual(folder) as write,
    ):
        trainer = OnlineTrainer(model, ModelFolder(root), clock, display, write)
        started = clock.monotonic()
        trainer.run()
        fleet.finish_training()
        seconds = clock.monotonic() - started
        scores, scored_on = dict(trainer.scores), BEFORE
        if test is not None:
            scores, _ = score(model, trainer.learner.net, test, trainer.learner.device)
            scored_on = "test"
            display.say(f"test: {metrics_text(scores)}")
            write("test", scores, trainer.learner.num_steps)
    num_examples = int(fleet.metrics.sum(trainer.learner.num_examples))
    seconds = max(float(fleet.metrics.max(seconds)), 1e-9)
    outcome = Outcome(
        model=model_name(config),
        mode=runner.sync_mode if fleet.server_num() else "local",
        workers=fleet.worker_num(),
        servers=fleet.server_num(),
        epochs=1,
        metrics=scores,
        scored_on=scored_on,
        examples_per_s=num_examples / seconds,
        unit=model.unit,
        seconds=seconds,
        profile=trainer.learner.profile.result() if runner.dataset_debug else None,
        by_days=trainer.facts,
    )
    fleet.stop_worker()
    return outcome


class OnlineTrainer:
    """One worker of a training by days.

    Args:
        model: What to train.
        folder: Gets what is saved.
        clock: For speeds and waits.
        display: Shows how far it is.
        write: Gets curves.

    Raises:
        ConfigError: if a key contradicts what is there.
        OtherPassesError: if the newest checkpoint isn't one that these passes go on from.
        FleetError: if the tables can't be joined, or a checkpoint not be loaded.
    """

    def __init__(
        self,
        model: Model[Any],
        folder: ModelFolder,
        clock: Clock,
        display: Display,
        write: Write,
    ) -> None:
        runner = model.config.runner
        self._model = model
        self._runner = runner
        self._clock = clock
        self._display = display
        self._write = write
        self._calendar = Calendar.of(runner)
        self._folder = folder
        written = written_of(self._folder)  # what is wrong there ends it before anybody joins
        self.learner = Learner(model, clock)
        self._batches = TrainingBatches(model)
        self._ahead = fleet.prefetch(self._batches, self.learner.net)
        self._rows = ComingRows(self._looked_up, fleet.prefetch_rows, display.say)
        self._state = OnlineState(self._calendar)
        fleet.register_for_checkpointing(runner_days=self._state, runner_pass=self._ahead)
        self.learner.begin()
        self._is_inside = False
        """Whether the next pass was begun before the checkpoint that was loaded."""
        place, base_key = self._go_on()
        plan = Plan(
            checkpoint_per_pass=runner.checkpoint_per_pass,
            save_delta_frequency=runner.save_delta_frequency,
            save_first_base=runner.save_first_base,
        )
        self._course = Course(
            self._calendar, plan, place=place, base_key=base_key, written=written
        )
        self._state.is_at(place, base_key=self._course.base_key)
        self._deeds = Deeds(
            self._folder, self._state, in_sync=runner.sync_mode == "sync", say=display.say
        )
        self._coming = Coming(model, clock, display)
        self._pads = runner.shares_steps or bool(runner.a_sync_configs.get("max_staleness"))
        self.scores: Mapping[str, float] = {}
        """The metrics of the last pass, before it was trained."""
        self._num_passes = 0

    @property
    def facts(self) -> dict[str, Any]:
        """Return how far it is, as the result has it."""
        place = self._course.place
        day, number = place or (None, 0)
        return {"passes": self._num_passes, "day": day, "pass": number}

    def run(self) -> None:
        """Train until the last day's end, or until the job is to end.

        Raises:
            FleetError: what went wrong.
        """
        course = self._course
        if (not_read := self._calendar.not_read) and fleet.is_first_worker():
            facts = {"folders": list(not_read), "reason": "they make no whole pass"}
            log.warning("worker.folders_not_read", extra=facts)
            self._display.say(f"not read of each day: {', '.join(not_read)}")
        while (deed := course.next()) is not None:
            if deed.kind != "train":
                key = self._deeds.do(deed, course)
                course.done(deed, key=key)
                continue
            coming = course.next_pass
            assert coming is not None, "it is to be trained"
            files = self._coming.wait(coming)
            if files is None:
                course.stop()
                continue
            if not self._train(coming, files):  # no checkpoint can be of a place now
                remedy = "the next training continues after the newest checkpoint"
                log.warning("worker.pass_cut", extra={"part": str(coming), "remedy": remedy})
                break
            course.done(deed)
        agree()  # what worker 0 saves is written

    def _go_on(self) -> tuple[Place | None, int]:
        """Load what to begin with; return its place, and the key of its base.

        Raises:
            OtherPassesError: if it isn't one that these passes go on from.
            FleetError: if it can't be loaded.
        """
        resumed = fleet.resumed_from()
        newest = None
        if resumed is None or fleet.restart_count():
            newest = self._newest()
        if newest is not None:
            fleet.load_model(newest)
        elif resumed is None:
            if self._runner.model_init_path:
                fleet.load_model(self._model.config.path_of(self._runner.model_init_path))
            return None, 0
        path, saved = str(newest or resumed), self._state.loaded
        if saved is None:
            rule = "has no place of a training by days: give it as runner.model_init_path"
            raise OtherPassesError(path=path, rule=rule)
        saved.check(self._calendar, path)
        self._is_inside = saved.inside
        self._display.say(f"continues {_where(saved.place, inside=saved.inside)}: {path}")
        return saved.place, saved.base_key

    def _newest(self) -> str | None:
        found = self._folder.newest() if fleet.is_first_worker() else None
        path: str | None = agree(newest=None if found is None else str(found))[0]["newest"]
        return path

    def _train(self, coming: Pass, files: Sequence[str]) -> bool:
        """Score and train a pass; return whether all of it was trained."""
        data = self._coming.take(coming, files)
        began = self._clock.monotonic()
        tell(**_facts(coming), state="loading")
        num_examples = data.load()
        read_s = self._clock.monotonic() - began
        self._coming.prefetch(self._calendar.after(coming.place))
        self._rows.begin(self._coming.ahead)
        if not num_examples:
            if fleet.is_first_worker():
                extra = {"part": str(coming), "files": len(files)}
                log.warning("worker.pass_is_empty", extra=extra)
            self._display.say(f"{coming}: it has no examples, and is left out")
            data.release()
            self._state.is_at(coming.place, base_key=self._course.base_key)
            return True
        used = self._used_of(data)
        # A model that has seen a part of the pass can't be judged by it.
        self.scores = {} if used else self._score(coming, data)
        scored_s = self._clock.monotonic() - began - read_s
        is_whole, trained = self._learn(coming, data, used=used)
        data.release()
        self._num_passes += is_whole
        told = [f"before {metrics_text(self.scores)}" if self.scores else "not scored"]
        told += [f"trained {metrics_text(trained)}"] if trained else []
        told += [f"{num_examples:,} {self._model.unit}"]
        train_s = self._clock.monotonic() - began - read_s - scored_s
        times = f"read {read_s:.1f} s, scored {scored_s:.1f} s, trained {train_s:.1f} s"
        self._display.say(f"{coming}: {'; '.join([*told, times])}")
        self._deeds.monitor = metrics_text(self.scores)
        if fleet.is_first_worker():
            seconds = {"read_s": read_s, "score_s": scored_s, "train_s": train_s}
            facts = {n: round(s, 3) for n, s in seconds.items()} | {"examples": num_examples}
            log.info("worker.pass_trained", extra={"part": str(coming), **facts})
        return is_whole

    def _score(self, coming: Pass, data: PassData) -> Mapping[str, float]:
        """Return how good the model is on a pass that it hasn't seen, over all workers."""
        tell(**_facts(coming), state="scoring")
        fleet.average_buffers()
        found, _ = score_all(
            self._model, self.learner.net, data.to_score(), self.learner.device
        )
        if (loss := self.learner.last_loss) is not None:
            fleet.report(loss=loss, examples=0, **{f"before_{n}": v for n, v in found.items()})
        self._write("before", found, self.learner.num_steps)
        return found

    def _used_of(self, data: PassData) -> int:
        """Return how many steps of a pass were taken before the checkpoint that was loaded."""
        is_inside, self._is_inside = self._is_inside, False
        if not is_inside:
            return 0
        used = self._batches.place_in(data)
        if all(each["fits"] for each in agree(fits=used is not None)):
            return used or 0
        reason = "it is of other files, batches or workers, or of another seed"
        facts = {"reason": reason, "remedy": "the pass starts from its beginning"}
        log.warning("worker.position_not_taken", extra=facts)
        return 0

    def _learn(
        self, coming: Pass, data: PassData, *, used: int
    ) -> tuple[bool, Mapping[str, float]]:
        """Take the steps of a pass; return whether all were taken, and the metrics."""
        tell(**_facts(coming), state="training")
        course = self._course
        self._state.is_at(course.place, base_key=course.base_key, inside=True)
        steps = data.num_batches
        if self._pads:
            steps = int(fleet.util.all_reduce(steps, "max"))
        self._batches.begin(data, steps=steps, used=used)
        before = self.learner.num_steps
        metrics = self.learner.learn(
            self._rows.beside(self._ahead, steps=steps - used),
            part=str(coming),
            first=used + 1,
            display=self._display,
            write=self._write,
        )
        left = steps - used - (self.learner.num_steps - before)
        if self._pads:  # who saw first that the job ends has the others' steps not wait for it
            self._take_empty(left, self._batches.without_rows())
        settle()
        fleet.average_buffers()
        whole = all(said["whole"] for said in agree(whole=left <= 0))
        self._state.is_at(coming.place if whole else course.place, base_key=course.base_key)
        return whole, {name: metric.merged() for name, metric in metrics.items()}

    def _looked_up(self, batch: Batch) -> list[tuple[str, NDArray[np.int64]]] | None:
        """Return what a batch looks up, by table; None if that isn't known."""
        with torch.random.fork_rng(devices=()):  # it is trained later
            feeds = self._model.create_feeds(batch)
        wanted = self._ahead.looked_up(feeds)
        return None if wanted is None else [(each.table.name, each.rows.ids) for each in wanted]

    def _take_empty(self, count: int, empty: Feeds) -> None:
        for _ in range(count):
            self.learner.step(empty, {})


def _where(place: Place | None, *, inside: bool) -> str:
    """Return in words where a checkpoint is."""
    if place is None:
        return "within the first pass" if inside else "before the first pass"
    if not place.number:
        first = "within" if inside else "before"
        return f"with day {place.day}, {first} its first pass"
    after = "within the pass after" if inside else "after"
    return f"{after} day {place.day}, pass {place.number}"


def _facts(coming: Pass) -> dict[str, Any]:
    return {"day": coming.place.day, "pass": coming.place.number}


def _root_of(model: Model[Any]) -> Path:
    """Return the folder of all that is saved.

    Raises:
        ConfigError: if it is none that lists can be kept in.
    """
    config = model.config
    name = config.runner.model_save_path
    rule = ""
    if isinstance(place_of(name), Address):
        rule = "must be a folder of this machine: bases and deltas go to no address"
    elif _UNWRITABLE.search(str(config.path_of(name))):
        rule = (
            "must have no tabs, no ends of lines, and only what UTF-8 can write: lists name "
            "what is in it"
        )
    if rule:
        key = "runner.model_save_path"
        raise ConfigError(where=str(config.path), key=key, value=repr(name), rule=rule)
    return config.path_of(name)
