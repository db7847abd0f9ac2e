"""The publisher `dither`.

Guarantee. Neighbors differ in one pixel of one image. Every pixel is rounded by itself and goes through randomized
response (`RandomizedResponse`), so one pixel costs its pure epsilon and no other pixel knows of it.
"""

from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry
from idpgan.audit.neighbors import PAIRS
from idpgan.audit.statistics import Nearness
from idpgan.privacy import Relation, Unit
from idpgan.privacy.mechanisms import RandomizedResponse
from idpgan.publish.plan import Options, Publisher, Recipe

SHAPE = (4, 4)  # of the audited image


def plan(shape, unit, epsilon, delta, options):
    """Return what is released and what it costs, before an image is read."""
    mechanism = RandomizedResponse(2, epsilon, unit)

    def release(images, noise):
        return mechanism(images.round().long(), noise).to(images.dtype)

    return Recipe((mechanism.event,), release)


def audit_case(request):
    """Return the case of ``idpgan audit``: the publisher itself on two images that differ in one pixel."""
    audited = plan(SHAPE, Unit.PIXEL, request.epsilon, 0.0, Options())
    pair = PAIRS[request.pair or "extremes"](SHAPE, Unit.PIXEL)
    claimed, proven = guarantees(request, *audited.events)
    statistics, events = (Nearness,), audited.events
    return AuditCase("dither", pair, claimed, proven, audited.release, statistics, entrywise=True, events=events)


AUDIT = Entry(audit_case, (Unit.PIXEL,), (Relation.REPLACE_ONE,), options={"pair": tuple(PAIRS)})
PUBLISHERS = {"dither": Publisher(Options, plan, AUDIT)}
