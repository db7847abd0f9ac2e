"""The sound publishers."""

from __future__ import annotations

from idpgan.publish.plan import Publisher
from idpgan.publish.sound import audits, pixels

PUBLISHERS = {"lap": Publisher(pixels.LapOptions, pixels.plan, audits.LAP)}
