"""sync: a step is one step of the whole job, run by the pservers."""

from paramfleet.job import dense_plan, fetch_dense
from paramfleet.modes.sender import StepGradients
from paramfleet.modes.served import ServedMode
from paramfleet.pservers import both
from paramfleet.requests import Write

__all__ = ["SyncMode"]


class SyncMode(ServedMode):
    """Every step is one step of the whole job: equal to one process with the whole batch."""

    def step(self, *, examples: int) -> None:
        """Push, wait until every worker's push is applied, and take the new dense values.

        What is pulled for the next step goes out right behind the push: it names the step
        that it needs, and the pservers answer when they are so far.
        """
        gradients = self._gradients(examples=examples)
        writes = self._writes(gradients)
        step, job = self._step + 1, self._job
        push = self._push_alone(gradients, writes)
        with job.times.during("push"):
            if job.pservers.divides:
                job.communicator.wait(push)
                del gradients, writes, push  # gigabytes, and as many are about to come
                self.ahead.send_next(step=step)
                fetch = fetch_dense(
                    job, self._blocks, min_step=step, wire=self._wire, ask=self._pull
                )
                values = job.communicator.wait(fetch)
            else:
                plan = dense_plan(job, self._blocks, wire=self._wire)
                stepping = job.communicator.submit(both(push, self._pull(plan, step)))
                self.ahead.send_next(step=step)
                values = plan.join(stepping.result())
        self._step = step
        self._install(values)

    async def _push_alone(self, gradients: StepGradients, writes: list[Write]) -> None:
        """Push; what the training thread waits for after that is the others' pushes."""
        await self._push(gradients, writes)
        self._job.times.switch("barrier")

    def _min_step(self) -> int:
        return self._step
