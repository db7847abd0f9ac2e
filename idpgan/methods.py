"""The facts of every method: one row of ``idpgan methods``. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class MethodInfo:
    """One row of ``idpgan methods``.

    Attributes:
        name: As written in ``method.name`` (a GAN or a classifier), or passed to `idpgan.publish.release` (a publisher)
            or `idpgan.obfuscate.make_obfuscator` (an obfuscator).
        family: "gan", "classifier", "publisher" or "obfuscator".
        units: The guarantee's possible units, the default first; names of `idpgan.privacy.Unit`.
        sound: Whether proven <= claimed (or asked for) for every setting; None if nothing is promised.
        claimed: The epsilon that the method states, None if it states none.
        proven: The epsilon that our accountant proves; "inf" is none.
        reason: One sentence: why `proven` is what it is.
    """

    name: str
    family: str
    units: tuple[str, ...]
    relation: str
    sound: bool | None
    claimed: str | None
    proven: str
    reason: str

    @property
    def nothing_to_audit(self) -> str | None:
        """Why there is no guarantee to audit, one sentence; None where one is claimed or proven."""
        if self.claimed is not None or self.proven != "inf":
            return None
        return f"{self.reason}, so there is no guarantee to audit."

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {**asdict(self), "units": list(self.units)}
