"""When workers synchronize: which fragments' exchanges begin and end after a step.

Up to ``begin_step`` all fragments are exchanged after each step (post-local SGD: Lin et al.,
"Don't Use Large Mini-Batches, Use Local SGD", 2018). Then each is exchanged once a period of
``k_steps``, the first fragment at its end and the others spread over it (Streaming DiLoCo:
Douillard et al., 2025, algorithm 2). An exchange ends ``overlap_steps`` after it began, and
always before the next one of its fragment. It is a function of the number of steps and of
the arguments of ``choose``, so that workers in lockstep need no messages about it.
"""

from typing import Any, Literal, NamedTuple

from paramfleet.training.localsgd.core.intervals import AdaptiveInterval
from paramfleet.training.localsgd.core.settings import LocalSgdSettings

__all__ = ["Action", "Schedule"]


class Action(NamedTuple):
    """What is to be done with a fragment, in the order in which it is returned."""

    kind: Literal["begin", "end"]
    fragment: int


class Schedule:
    """Steps of one worker.

    Args:
        settings: Of all workers.
    """

    def __init__(self, settings: LocalSgdSettings) -> None:
        self._settings = settings
        self._adaptive = (
            None
            if settings.interval == "fixed"
            else AdaptiveInterval(
                settings.interval, first=settings.k_steps, most=settings.max_k_steps
            )
        )
        self._offsets = [
            number * settings.k_steps // settings.fragments
            for number in range(settings.fragments)
        ]
        # Fleet compares with the first step; a rate that warms up is better compared with
        # where that ends, which is what begin_step is for.
        self._reference_step = (
            settings.begin_step if settings.interval == "paper" else min(1, settings.begin_step)
        )
        self._under_way: dict[int, int] = {}
        self._last = settings.begin_step
        self._newest = 0
        self.step = 0
        """Steps taken."""
        self.k_steps = settings.k_steps
        if self._adaptive is not None:
            self.k_steps = min(settings.k_steps, settings.max_k_steps)
        """The period that now holds."""

    @property
    def wants_loss(self) -> bool:
        """Whether ``choose`` is to be called for the synchronization that has just begun."""
        return self._adaptive is not None and (
            self.step > self._settings.begin_step or self.step == self._reference_step
        )

    @property
    def needs_losses(self) -> bool:
        """Whether ``wants_loss`` may ever be true."""
        return self._adaptive is not None

    def after_step(self) -> list[Action]:
        """Count a step; return what follows it."""
        self.step += 1
        actions = self._due(self._settings.overlap_steps)
        begun = self._beginning()
        for fragment in begun:
            if fragment in self._under_way:
                actions.append(self._end(fragment))
            actions.append(Action("begin", fragment))
            self._under_way[fragment] = self._newest = self.step
        if not self._settings.overlap_steps:
            actions += [self._end(fragment) for fragment in begun]
        return actions

    def choose(self, *, loss: float, rate: float) -> int:
        """Set the period from the workers' loss after a synchronization; return it.

        Args:
            loss: The mean of the workers'.
            rate: The learning rate.

        Raises:
            LossError: if the loss isn't finite and more than 0.
        """
        assert self._adaptive is not None
        self.k_steps = self._adaptive.choose(step=self.step, loss=loss, rate=rate)
        return self.k_steps

    def join(self, step: int) -> None:
        """Begin as far as the others are: a worker that comes late has no first steps.

        Args:
            step: Steps that they have taken.
        """
        self.step = self._newest = step
        self._last = max(step, self._settings.begin_step)

    def end_early(self, fragment: int) -> Action:
        """Return the end of a fragment's exchange that is under way, before it is due."""
        return self._end(fragment)

    def end_all(self) -> list[Action]:
        """Return the ends of the exchanges that are under way."""
        return self._due(0)

    def close(self) -> list[Action]:
        """Return what makes all workers agree: the exchanges under way, then one of all."""
        actions = self.end_all()
        if self._newest < self.step or self._settings.fragments > 1:
            fragments = range(self._settings.fragments)
            actions += [Action("begin", number) for number in fragments]
            actions += [Action("end", number) for number in fragments]
        self._last = self._newest = self.step
        return actions

    def state_dict(self) -> dict[str, Any]:
        """Return numbers that ``load_state_dict`` takes; nothing may be under way."""
        assert not self._under_way
        reference = self._adaptive.reference if self._adaptive else None
        return {
            "step": self.step,
            "k_steps": self.k_steps,
            "last": self._last,
            "newest": self._newest,
            "reference": reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was asked."""
        self.step, self.k_steps = int(state["step"]), int(state["k_steps"])
        self._last, self._newest = int(state["last"]), int(state["newest"])
        if self._adaptive and state["reference"] is not None:
            loss, rate = state["reference"]
            self._adaptive.reference = (float(loss), float(rate))

    def _beginning(self) -> list[int]:
        """Return the fragments whose exchange begins after this step."""
        behind = self.step - self._settings.begin_step
        if behind <= 0:
            self._last = self.step
            return list(range(self._settings.fragments))
        if self._settings.fragments > 1:
            return [
                number
                for number, offset in enumerate(self._offsets)
                if (behind - offset) % self.k_steps == 0
            ]
        if self.step - self._last != self.k_steps:
            return []
        self._last = self.step
        return [0]

    def _due(self, age: int) -> list[Action]:
        """Return the ends of the exchanges that are this old."""
        old = [number for number, at in self._under_way.items() if self.step - at >= age]
        return [self._end(number) for number in sorted(old)]

    def _end(self, fragment: int) -> Action:
        del self._under_way[fragment]
        return Action("end", fragment)
