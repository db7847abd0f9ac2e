"""Methods that read private images once: one release on the ledger, and all that follows is post-processing.

`prepare` pays for the release, `_release` makes it, and `_take_released` goes on from what was released, now or in an
earlier part of the run. Such a method still costs what its steps cost, if it has any that read (diffusion).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.privacy import Event
from idpgan.private.people import refuse_people_in_two_parts
from idpgan.training.method import Method


class ReleasedOnce(Method):
    """A method whose `prepare` pays for one release of what is read of the private images, and keeps its result.

    Args:
        split: The private part is read in `prepare` and dropped there; the public part is read freely.
        ledger: Charged once, together with what that read releases.
        noise: Source of noise and coins; None = the operating system's.
    """

    _private: Images | None

    def _set_up(self, split: Split) -> None:
        refuse_people_in_two_parts(self.plan.unit, split)
        self._private, self._public = split.private, split.public
        self._released: dict[str, Tensor] = {}

    @property
    def release_events(self) -> Sequence[Event]:
        """The price of the release: all that is planned, where nothing else is."""
        events: Sequence[Event] = self.plan.events
        return events

    def prepare(self) -> None:
        """Release what `release_events` pay for, drop the private images, and go on from what was released."""
        released = self.ledger.release(self.release_events, self._release, noise=self.noise)
        self.noise.ratchet()
        self._take_released(released)

    def _release(self) -> dict[str, Tensor]:
        """Read the private images, and return what is released of them."""
        raise NotImplementedError

    def _take_private(self) -> Images:
        """Hand the private images over, once."""
        private, self._private = self._private, None
        if private is None:
            raise RuntimeError("the private images were dropped after the release.")
        return private

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take what was released, now or in an earlier part of the run; the private images are no longer needed."""
        self._released, self._private = released, None

    def state(self) -> dict[str, Any]:
        """Return what was released, if anything, whether it is private, and what `SAVED` names."""
        return {**super().state(), "prepared": self._released or None, "private_noise": self.noise.private}

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, and refuse a release that is less private than this run says.

        Raises:
            ConfigError: If the saved release was made with a fixed noise seed, and this run's noise is secret.
        """
        self._take_released(state.get("prepared") or {})
        super().load_state(state)
        if self.noise.private and not state.get("private_noise", True):
            raise ConfigError("the saved release was made with a fixed noise seed and is not private; start a new run.")
