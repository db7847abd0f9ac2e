"""``idpgan sample``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.files import check_writable
from idpgan.host import own_state
from idpgan.models.config import Purpose
from idpgan.progress import Progress, silent
from idpgan.release.export import card_of, export_samples

__all__ = ["card_of", "draw"]


@own_state()
def draw(
    source: Path,
    num: int,
    out: Path,
    *,
    labels: Sequence[int] | str | None = None,
    seed: int | None = None,
    soft_labels: bool = False,
    purpose: str = Purpose.LOOKING,
    device: str = "cpu",
    module: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Draw images from a released generator and write them with a card of their own; see `export_samples`."""
    if purpose not in list(Purpose):
        raise InputError(f"--for {purpose} is unknown: {', '.join(Purpose)}.")
    where = resolve_device(device, "--device", float64=False)
    check_writable(out)
    return export_samples(
        source,
        num,
        out,
        labels=labels,
        seed=seed,
        soft_labels=soft_labels,
        purpose=Purpose(purpose),
        device=where,
        module=module,
        progress=progress,
    )
