"""One body per command: what the commands do with several rooms at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.jobs.train import Finished, follow, load_config, plan, resume, start, train_on

_NAMES = ("Finished", "follow", "load_config", "plan", "resume", "start", "train_on")
__all__ = [
    "Finished", "follow", "load_config", "plan", "resume", "start", "train_on",
]  # fmt: skip

__getattr__ = lazy_names(__name__, dict.fromkeys(_NAMES, "train"))
