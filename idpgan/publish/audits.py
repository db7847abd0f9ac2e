"""How publishers are audited: through their own plans, on small constructed neighbors. No data is needed."""

from __future__ import annotations

from collections.abc import Sequence

from idpgan.audit.cases import USUAL_RUNS, AuditCase, guarantees
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import PAIRS, Pair
from idpgan.audit.statistics import Maker
from idpgan.methods import METHODS
from idpgan.privacy.guarantee import Guarantee, Relation, Unit
from idpgan.publish.plan import Options, Planner, Recipe, Shape

LAWS = {"discrete-laplace": "laplace", "rounded-gaussian": "gaussian"}
PURE = ("discrete-laplace", "laplace")
_SHAPE = (8, 6)  # more rows than columns, so that the column space is a proper subspace


def case_of(
    name: str,
    plan: Recipe,
    pair: Pair,
    makers: Sequence[Maker],
    request: Request,
    *notes: str,
    runs: int = USUAL_RUNS,
) -> AuditCase:
    """Return the case of a whole planned release, post-processing included; an unprotected read has no proof."""
    claimed, proven = guarantees(request, *plan.events)
    events = plan.events
    if not events[0].is_private:
        adjacency, events = (claimed.unit, claimed.relation), ()
        claimed = Guarantee(request.epsilon, 0.0, *adjacency, plan.claim)
        proven = Guarantee(float("inf"), 0.0, *adjacency, "nothing is proven")
    return AuditCase(name, pair, claimed, proven, plan.release, tuple(makers), notes=notes, events=events, runs=runs)


def publisher_entry(
    name: str,
    planner: Planner,
    options: Options,
    *makers: Maker,
    units: tuple[Unit, ...],
    pair: str = "extremes",
    shape: Shape = _SHAPE,
) -> Entry:
    """Return the entry of a publisher, attacked by the statistics that ``makers`` make.

    Args:
        options: Options of the publisher; if they have a ``law``, a request chooses it.
        units: Possible units, the default first.
        pair: Default neighbors.
        shape: Shape of the audited image.
    """
    noisy = "law" in type(options).model_fields
    fewer = ", ".join(f"{key} = {value}" for key, value in options.model_dump(exclude_defaults=True).items())

    def build(request: Request) -> AuditCase:
        unit, law = request.unit or units[0], LAWS[request.law or "discrete-laplace"]
        chosen = options.model_copy(update={"law": law}) if noisy else options
        delta = (request.delta or 0.0) if METHODS[name].sound else 0.0
        notes = [f"an image of {shape[0]} x {shape[1]} pixels"]
        if fewer:
            notes.append(f"{fewer} instead of the default: what is attacked, rank and column space, is the same")
        plan = planner(shape, unit, request.epsilon, delta, chosen)
        return case_of(name, plan, PAIRS[request.pair or pair](shape, unit), makers, request, *notes)

    known = {"pair": (pair, *(other for other in PAIRS if other != pair))}
    if not noisy:
        return Entry(build, units, (Relation.REPLACE_ONE,), options=known)
    return Entry(build, units, (Relation.REPLACE_ONE,), delta=1e-5, options={**known, "law": tuple(LAWS)}, pure=PURE)
