"""The page about a publication: everything on it lies in the output folder itself.

The originals beside the released images are those of the contact sheet, so that no private image is read again.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from idpgan.data.images import GAP_PX
from idpgan.errors import InputError
from idpgan.files import parse_json, read_plain
from idpgan.methods import METHODS
from idpgan.privacy.guarantee import number_from_json
from idpgan.release.artifact import Kind
from idpgan.release.received import Stated
from idpgan.release.settings import Settings
from idpgan.release.verify import open_release
from idpgan.report.charts import number
from idpgan.report.epsilons import SOUND, Spending, alarm, delta_text, epsilon_text, figures, ledger_part, why
from idpgan.report.page import MOST_BYTES, Gallery, Page, Part, Table, cells, lay_out, size_text
from idpgan.report.risk import risk_part

_NAMES = {
    "entropy_original": "entropy of the original, bits",
    "entropy_released": "entropy of the released image, bits",
    "mse": "mean squared error",
    "absolute_error": "mean absolute error",
    "relative_error": "relative error",
    "histogram_distance": "distance of the histograms",
    "ssim": "structural similarity (SSIM), 1 = equal",
}
_Shape = tuple[int, int, int]


class Sheet(NamedTuple):
    """A contact sheet: the file, the most pairs of images on it, and how many images lie in a row."""

    path: Path
    shown: int
    columns: int


def publication_page(out: Path, content: Path, form: str, sheet: Sheet, kinds: Mapping[str, Kind]) -> Page:
    """Return the page of an output folder of `idpgan publish`.

    Args:
        out: The folder.
        content: The JSON file of what was computed from the originals, of the format ``form``.
        form: Its entry "format".
        sheet: Originals beside released images.
        kinds: How each kind of release is read.

    Raises:
        InputError: If its release or its report.json cannot be read.
    """
    try:
        found = parse_json(read_plain(content, MOST_BYTES))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{content} is damaged ({error}). Restore it from a copy.") from error
    if not isinstance(found, dict) or found.get("format") != form:
        raise InputError(f"{content} was written by another version of idpgan, or by something else.")
    opened = open_release(out / "release", kinds)
    stated, settings = opened.stated, opened.settings
    described, told = opened.artifact.describe(), stated.report
    channels, height, width = map(int, described["image_shape"])
    shape, num = (channels, height, width), int(described["num"])
    release = shlex.quote(str(out / "release"))
    judged = (
        f"The method is audited by itself: idpgan audit {settings.method} --epsilon EPSILON. That the release is "
        f"consistent with its charges: idpgan verify {release}"
    )
    return Page(
        title=f"{num:,} images published by {settings.method}",
        subtitle=f"Publication {out.resolve().name}, {size_text(shape)}",
        alarm=alarm(told),
        figures=figures(told),
        why=why(told),
        parts=(
            _about(settings, stated, shape),
            risk_part(told, settings.plan.joint_events(stated.events)),
            _books(found, stated, content.name),
            _images(sheet, shape, num),
            _errors(found, content.name),
            Part("audit", "Audit and check", text=(judged,)),
        ),
    )


def _about(settings: Settings, stated: Stated, shape: _Shape) -> Part:
    """Say what was published, and how."""
    options = settings.table.get("options") or {}
    facts = [
        ("Method", f"{settings.method} ({SOUND[METHODS[settings.method].sound]})"),
        ("Folder", settings.data),
        ("Images", f"N = {settings.num_private:,} (public)"),
        ("Size", size_text(shape)),
        ("Protected unit", f"one {stated.unit}, {stated.relation}"),
        ("Options", ", ".join(f"{key} = {value}" for key, value in options.items() if value is not None) or "defaults"),
    ]
    notes = [f"Taken as public: {each}." for each in stated.report.public_assumptions]
    return Part("about", "What was published", facts=facts, notes=notes)


def _books(found: Mapping[str, Any], stated: Stated, file: str) -> Part:
    """Return the charges of this publication, and all publications of the folder up to it."""
    spending = Spending(stated.events, float(stated.document["delta"]), None, None, 0, "release/privacy.json")
    charges = ledger_part(spending, stated.report.proven)
    notes = [note for note in charges.notes if not note.startswith("Read from")]
    books, tables = found.get("ledger"), charges.tables
    if books is None:
        missing = "An older version of idpgan wrote this folder: see the folder's ledger."
        return Part("ledger", "Budget ledger", tables=tables, missing=missing, notes=notes)
    try:
        total = books["total"]
        folders = "folder, and of those around and inside it," if total.get("on_other_ledgers") else "folder"
        at_delta = f" at δ = {delta_text(total['delta'])}" if total["delta"] else ""
        text = (
            f"All publications of the {folders} together: epsilon {epsilon_text(number_from_json(total['epsilon']))}"
            f"{at_delta}, unit {total['unit']}, {total['relation']}. Later ones are not on this page but on the "
            f"ledger, {books['path']}."
        )
        rows = [
            (
                str(each["date"]).replace("T", " ").replace("+00:00", " UTC"),
                str(each["method"]),
                str(each["events"][0]["unit"]),
                "nothing" if each["epsilon"] is None else epsilon_text(number_from_json(each["epsilon"])),
                delta_text(float(each["delta"])),
                f"{each['num']:,}",
                str(each["out"]),
            )
            for each in books["publications"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} says of its ledger what idpgan did not write ({error}).") from error
    head = ("when", "method", "unit", "ε asked for", "δ", "images", "written to")
    table = Table("Publications of this folder, this one last", head, rows)
    return Part("ledger", "Budget ledger", text=(text,), tables=(table, *tables), notes=notes)


def _images(sheet: Sheet, shape: _Shape, num: int) -> Part:
    """Show originals beside released images, from the contact sheet."""
    shown = min(num, sheet.shown)
    try:
        found = cells(sheet.path.read_bytes(), shape, min(2 * shown, sheet.columns), GAP_PX)
        pairs = torch.from_numpy(np.ascontiguousarray(found[: 2 * shown])).view(shown, 2, *shape)
    except (OSError, ValueError, RuntimeError) as error:
        missing = f"{sheet.path.name} cannot be read ({error}): publish again to have it."
        return Part("images", "Images", missing=missing)
    across = min(shown, 4 if max(shape[1:]) > 40 else 8)
    released = lay_out(pairs[:, 1], across, alt=f"{shown} released images")
    real = lay_out(pairs[:, 0], across, alt=f"the {shown} originals, in the same places")
    heading = "Originals: private, nothing protects them here"
    caption = f"The same images in the same places, from {sheet.path.name}."
    galleries = (
        Gallery("Released", (released,), f"The first {shown} of {num:,}."),
        Gallery(heading, (real,), caption, private=True),
    )
    return Part("images", "Images", galleries=galleries)


def _errors(found: Mapping[str, Any], file: str) -> Part:
    """Return the errors over all images: their mean and how far they spread."""
    try:
        rows = []
        for name, mean in found["mean"].items():
            values = sorted(float(image[name]) for image in found["images"])
            middle = statistics.median(values)
            rows.append((_NAMES.get(name, name), *map(number, (float(mean), values[0], middle, values[-1]))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} holds no errors of images ({error}).") from error
    table = Table(f"Over {len(found['images']):,} images", ("", "mean", "least", "median", "most"), rows)
    notes = ("Computed from the originals without noise: no epsilon covers it.", *map(str, found.get("notes", ())))
    return Part("errors", "Errors", tables=(table,), notes=notes)
