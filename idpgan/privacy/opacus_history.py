"""What Opacus has counted of a training: as events of ours, and as the epsilon of its own accountants."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sized
from typing import Any

from idpgan import checks
from idpgan.errors import InputError
from idpgan.host import own_state, unwarned
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit, parse_unit

_MOST_WORK = 10_000.0  # epsilon times the root of the steps: PRV's grid then has some millions of points


@own_state()
def from_opacus(engine_or_history: Any, *, unit: Unit | str, num_private: int) -> tuple[Event, ...]:
    """Return the steps that Opacus has counted as events, for a ledger, `compose_epsilon` or a release.

    A step of ``make_private`` with Poisson sampling is a Poisson-sampled Gaussian read, zero-out-one. That it was taken
    so is the caller's word: a history holds numbers alone. It does not say how batches were drawn
    (``poisson_sampling=False`` is not priced by these events), nor that each record had one row in one pass.

    Args:
        engine_or_history: A `PrivacyEngine`, one of its accountants, or a list of (noise multiplier, sample rate,
            steps) such as ``engine.accountant.history``.
        unit: What one record of the data set is, such as "image"; "person" if it holds all of a person's images.
        num_private: N, the number of records, public.

    Raises:
        InputError: If nothing was counted, or something that these events do not price.
    """
    unit = parse_unit(str(unit))
    checks.whole(num_private, "num_private", 1)
    kind = type(engine_or_history).__name__
    if "Adaptive" in kind:
        raise InputError(f"{kind} adapts its clipping norm to private gradients, which these events do not price.")
    data = getattr(engine_or_history, "dataset", None)
    if isinstance(data, Sized) and len(data) != num_private:
        raise InputError(f"num_private = {num_private:,}, but the engine's data set has {len(data):,} records.")
    accountant = getattr(engine_or_history, "accountant", engine_or_history)
    history = getattr(accountant, "history", accountant)
    if not isinstance(history, list | tuple) or not history:
        raise InputError(
            f"{checks.described(engine_or_history)} holds no steps of Opacus. Give the PrivacyEngine after training, "
            "or a list of (noise_multiplier, sample_rate, steps)."
        )
    return tuple(_event(entry, unit, num_private) for entry in history)


def _event(entry: Any, unit: Unit, num_private: int) -> Event:
    try:
        sigma, rate, steps = entry
        sigma, rate = float(sigma), float(rate)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{entry!r} is not (noise_multiplier, sample_rate, steps), three numbers as in Opacus' history."
        ) from error
    if rate > 1:
        raise InputError(
            f"sample_rate = {rate:g} is above 1: gradients of several batches went into one step, so that a record may "
            "be in it more than once, which these events do not price. Use BatchMemoryManager instead."
        )
    if rate * num_private < 1:
        raise InputError(
            f"sample_rate = {rate:g} of num_private = {num_private:,} records draws less than one a step. Give the "
            "number of records, not that of batches."
        )
    if not 0 < sigma < math.inf:
        raise InputError(f"noise_multiplier = {sigma:g}: a step without noise protects nobody. Train with noise.")
    return Event("poisson-gaussian", unit, Relation.ZERO_OUT, sigma, checks.whole(steps, "steps", 1), rate)


@functools.lru_cache(maxsize=16)  # a report is derived several times
def opacus_epsilons(events: tuple[Event, ...], delta: float) -> dict[str, str]:
    """Return the epsilon of Opacus' accountants for Poisson-sampled Gaussian reads, as texts, by accountant."""
    with unwarned():  # about orders at the end of the range: a looser bound
        from opacus.accountants import PRVAccountant, RDPAccountant

        prv, rdp = PRVAccountant(), RDPAccountant()
        prv.history = rdp.history = [(event.noise_multiplier, event.sample_rate, event.count) for event in events]
        moments = float(rdp.get_epsilon(delta))
        composed = "no answer"
        if moments * math.sqrt(sum(event.count for event in events)) <= _MOST_WORK:  # a forged release may ask for more
            with contextlib.suppress(ValueError, RuntimeError):  # it checks itself, and gives up at extreme settings
                composed = f"{prv.get_epsilon(delta):.4g}"
    return {"PRV": composed, "RDP": f"{moments:.4g}"}
