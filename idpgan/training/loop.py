"""The training loop: one iteration is one step of a method, charged before it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from idpgan.device import computing_on, set_threads
from idpgan.errors import InputError
from idpgan.files import pasted
from idpgan.privacy.event import Event
from idpgan.privacy.ledger import Budget, BudgetError, Ledger
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks
from idpgan.run import RunFolder
from idpgan.training import distributed, stats
from idpgan.training.config import TrainingConfig
from idpgan.training.distributed import Leader
from idpgan.training.kept_features import NOT_KEPT, KeptFeatures
from idpgan.training.method import Method, Tick, TickCallback
from idpgan.training.state import SavedState, StateStore, nonfinite

_DIVERGED_ABOVE = 1e8  # a mean over a tick that is larger, or not finite, stops the run; losses are of order 1 to 100


class DivergedError(InputError):
    """A statistic or a weight is too large or not finite; the last good state is kept."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended without an error.

    Attributes:
        step: Critic steps done; all of them are in the saved state.
        ended: "finished" all steps, "budget" spent, or "interrupted" by Ctrl-C or SIGTERM.
        message: One sentence for the user.
        signal: Name of the signal that interrupted it.
    """

    step: int
    ended: Literal["finished", "budget", "interrupted"]
    message: str
    signal: str | None = None


def train(
    method: Method,
    *,
    config: TrainingConfig,
    ledger: Ledger,
    run: RunFolder,
    fingerprint: Mapping[str, str],
    delta: float,
    on_tick: Sequence[TickCallback] = (),
    progress: Progress = silent,
    ranks: Ranks = ALONE,
    resumable: bool = False,
    prepare_threads: int | None = None,
) -> Outcome:
    """Train until all steps are done, the budget is spent or a signal comes; continues a run that has a saved state.

    Args:
        method: A new method; a saved state is restored into it.
        ledger: The run's durable ledger, the same object that `method` holds; on resume the one read from the run.
        fingerprint: What must be equal for a resume; see `run_fingerprint`.
        delta: Where epsilon is evaluated for the record, in [0, 1).
        on_tick: Called after each tick's state is saved.
        progress: Told of every step; its note at each tick is the epsilon charged so far.
        ranks: The processes that share the steps, seen by rank 0; the others `run_worker`.
        resumable: Whether features of private images are kept in the run's state until it ends.
        prepare_threads: Of torch in `Method.prepare`; None = as many as in the steps: those that it computes on now.

    Raises:
        DivergedError: If a statistic or a weight is not finite or beyond 1e8 at a tick.
        BudgetError: If not even the first step can be paid for.
        InputError: If the saved state is damaged or belongs to another run.
        LostRankError: If another process ends; the state saved last goes on.
    """
    set_threads(torch.get_num_threads())  # MKL takes so many too from now on, here and in a resumed run
    # Setup: continue from the saved state, or do the one-time private reads; the ledger keeps them with their charge.
    store = StateStore(run, fingerprint, ledger, ranks.size, method.computation)
    recorder = stats.Recorder(run.stats, config.batch_size)
    wide = prepare_threads or torch.get_num_threads()
    with computing_on(wide):  # the bits of features depend on it
        kept = method.kept = KeptFeatures(run.features, store.bound) if resumable else NOT_KEPT
    upkeep = _Upkeep(method, config, ledger, store, recorder, delta, Leader(ranks), kept, wide)
    signals = distributed.StopSignals(at_once=True)
    try:
        with signals:
            step = upkeep.resume_or_prepare(progress)
    except KeyboardInterrupt:
        message = (
            f"Stopped by {signals.received or 'Ctrl-C'} before {'its' if ledger.state_digest else 'the first'} steps; "
            f"{_standing(ledger, kept)}. Continue with: idpgan train --resume {pasted(run.path)}"
        )
        return Outcome(0, "interrupted", message)
    upkeep.leader.begin(method)

    if config.steps:  # a method without steps has nothing to show
        progress("training steps", step, config.steps, _charged(ledger.epsilon(delta)))
    with distributed.StopSignals() as signals:
        while step < config.steps and signals.received is None:
            # The only lines that may read private images.
            event = method.step_event()
            if event is not None:
                if ledger.affordable(event, planned=(config.steps - step) * event.count) < event.count:
                    # Before any step this is a user's mistake, not an end. (A continuation that charges steps again
                    # may find nothing left for the first of them.)
                    if step == 0 and not ledger.has_repeated:
                        raise no_step_affordable(event, ledger.target)
                    break
                ledger.charge(event)  # before the step: a failure over-counts, never under-counts
            step += 1
            upkeep.recorder.add(upkeep.leader.step(method, step))
            upkeep.ratchet()  # no state saved after this line can reproduce this step's noise
            progress("training steps", step, config.steps)

            # Maintenance: once per tick, and below at the end.
            if step % config.tick_steps == 0:
                upkeep.tick(step, on_tick, progress)
        if signals.received is not None and step < config.steps:
            upkeep.save(step)
            return _outcome(step, config.steps, ledger, run, signals.received)
        if step > upkeep.recorder.tick_step:
            upkeep.tick(step, on_tick, progress)
        upkeep.finish(step)
    return _outcome(step, config.steps, ledger, run)


def _standing(ledger: Ledger, kept: KeptFeatures) -> str:
    """Say what stands of a run that was stopped before its steps."""
    computed = ", and the features computed until then are kept" if kept.exist else ""
    released = ledger.released() is not None  # reads the file: the signal may have come before that was written
    if ledger.state_digest is not None:
        return f"the state saved last is kept{computed}"
    if released:
        return "what was released until then is kept and paid once"
    if ledger.events:
        return "what was charged until then is spent and nothing of it is kept, so it will be charged again"
    return f"nothing was released or charged{computed}"


def _outcome(step: int, steps: int, ledger: Ledger, run: RunFolder, signal: str | None = None) -> Outcome:
    """Say how a run ended after this many of its steps."""
    if signal is not None:
        message = (
            f"Stopped by {signal} after step {step:,} of {steps:,}; everything is saved. "
            f"Continue with: idpgan train --resume {pasted(run.path)}"
        )
        return Outcome(step, "interrupted", message, signal)
    if step < steps:
        message = (
            f"Stopped after step {step:,} of {steps:,}: one more would exceed the {_target(ledger.target)}. "
            "The run is complete; a larger budget or more noise per step allows more steps, in a new run."
        )
        return Outcome(step, "budget", message)
    done = f"Finished {step:,} steps." if step else "Finished: the release is made, and there is nothing to train."
    return Outcome(step, "finished", done)


@dataclass
class _Upkeep:
    """The work around the steps: resume, tick, save, and the keys of the noise."""

    method: Method
    config: TrainingConfig
    ledger: Ledger
    store: StateStore
    recorder: stats.Recorder
    delta: float
    leader: Leader
    kept: KeptFeatures
    prepare_threads: int
    saved_step: int = 0

    def resume_or_prepare(self, progress: Progress) -> int:
        """Return the step to continue from."""
        saved, self.method.progress = self.store.load(), progress
        if saved is None:
            lost = self.ledger.state_digest is not None or self.ledger.position > self.ledger.released_position
            self.recorder.truncate(0)
            with computing_on(self.prepare_threads):
                self.method.prepare()
            self.method.settle(False)
            if lost:  # steps were taken and the state is lost: all of them are repeated with fresh noise
                self.ledger.repeat(self.ledger.released_position, self.method.paid_ahead(0))
            self.ratchet()  # the key is now the same whether prepare() drew noise or loaded a release
            self.save(0)
            self.kept.erase()  # the release is kept in their place
            return 0
        self.method.load_state(saved.method)
        exact = self.method.settle(saved.exact)
        if exact:
            self.ledger.rewind(saved.ledger_position)  # later steps are paid for: repeated, not charged
        else:
            self.ledger.repeat(saved.ledger_position, self.method.paid_ahead(saved.step))
        self.recorder.load_state(saved.recorder)
        self.saved_step = saved.step
        if not exact and not all(noise.erased for noise in self.method.noises):
            for noise in self.method.noises:
                noise.rekey()
            self.save(saved.step)  # with the new keys: from here on, steps may be repeated
        return saved.step

    def ratchet(self) -> None:
        for noise in self.method.noises:
            noise.ratchet()

    def finish(self, step: int) -> None:
        """Erase the keys after the last step: the run's noise can never be drawn again, not even from its state.

        No step reads features any more, either.
        """
        self.kept.erase()
        if not all(noise.erased for noise in self.method.noises):
            for noise in self.method.noises:
                noise.erase()
            self.save(step)

    def tick(self, step: int, on_tick: Sequence[TickCallback], progress: Progress) -> None:
        """Check, record, save, show."""
        epsilon = self.ledger.epsilon(self.delta)
        first = self.recorder.tick_step + 1
        tick = self.recorder.tick(step, epsilon=epsilon, delta=self.delta, generator=self.method.product)
        unnoised = getattr(self.method, "UNNOISED", ())  # must not end a run: that is public
        for name, value in tick.stats.items():
            decides = name not in unnoised or not math.isfinite(value)
            if decides and not abs(value) <= _DIVERGED_ABOVE:  # true for NaN as well
                limit = f" (above {_DIVERGED_ABOVE:g})" if math.isfinite(value) else ""
                raise self._diverged(f"{name} is {value:g}{limit} on average over the steps {first} to {step}")
        self.save(step, tick)
        progress("training steps", step, self.config.steps, _charged(epsilon))
        for callback in on_tick:
            callback(tick)

    def save(self, step: int, tick: Tick | None = None) -> None:
        """Save the method's state, which must be finite and the same on every rank, and the ledger that names it.

        The line of a tick is written before the state: after a kill in between that line is cut off and written again.
        """
        state = self.method.state()
        checked = {name: value for name, value in state.items() if name != "prepared"}  # "prepared" never changes
        bad = nonfinite({**checked, "product": dict(self.method.product.named_parameters())})
        if bad:
            raise self._diverged(f"'{bad[0]}' holds NaN or infinity at step {step}")
        self.leader.compare(state)
        if tick is not None:
            self.recorder.write(tick)
        self.store.save(SavedState(step, state, self.ledger.position, self.recorder.state()))
        self.saved_step = step

    def _diverged(self, what: str) -> DivergedError:
        """Return the error that names the diverged value and the kept state; resuming it would end alike."""
        self.kept.erase()
        return DivergedError(
            f"Training diverged: {what}. The last good state, step {self.saved_step}, is kept in "
            f"{self.store.run.state}. Resuming it takes the same steps again, so start a new run with a lower learning "
            "rate in [method]."
        )


def no_step_affordable(event: Event, target: Budget | None) -> BudgetError:
    """Say that not even one step can be paid for."""
    why = f": {event.reason}" if event.reason else ""
    return BudgetError(
        f"The budget does not cover a single step ({_target(target)}, one step is {event.kind}{why}). "
        "Raise the target or lower the cost of a step."
    )


def _charged(epsilon: float) -> str:
    """Format the epsilon charged so far for a narrow column."""
    return f"epsilon {epsilon:.3g}" if math.isfinite(epsilon) else "epsilon infinite (no privacy)"


def _target(target: Budget | None) -> str:
    return f"target epsilon = {target.epsilon:g} at delta = {target.delta:g}" if target else ""
