"""The page of `idpgan report` about a publication: everything on it lies in the output folder itself.

The originals beside the released images are those of the contact sheet, so that no private image is read again.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idpgan.data.images import GAP_PX
from idpgan.errors import InputError
from idpgan.files import parse_json, read_plain
from idpgan.jobs.pipeline import COLUMNS, REPORT, SHEET, SHOWN
from idpgan.jobs.publish import FORMAT
from idpgan.jobs.verify import KINDS
from idpgan.methods import METHODS
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES
from idpgan.privacy.guarantee import number_from_json
from idpgan.release.folder import PRIVACY
from idpgan.release.received import Stated, describe_release, read_privacy, read_settings
from idpgan.release.settings import Settings
from idpgan.report.charts import number
from idpgan.report.epsilons import Spending, alarm, delta_text, epsilon_text, figures, ledger_part, why
from idpgan.report.page import Gallery, Page, Part, Table, cells, lay_out

_MOST_BYTES = 1 << 27
_NAMES = {
    "entropy_original": "entropy of the original, bits",
    "entropy_released": "entropy of the released image, bits",
    "mse": "mean squared error",
    "absolute_error": "mean absolute error",
    "relative_error": "relative error",
    "histogram_distance": "distance of the histograms",
    "ssim": "structural similarity (SSIM), 1 = equal",
}


def publication_page(out: Path) -> Page:
    """Return the page of an output folder of `idpgan publish`.

    Raises:
        InputError: If its release or its report.json cannot be read.
    """
    curator, release = out / "curator", out / "release"
    found = _read(curator / REPORT)
    stated = read_privacy(release / PRIVACY)
    artifact, document, kind = describe_release(read_plain(release / CONFIG, MOST_TEXT_BYTES), KINDS)
    settings = read_settings(document, kind, artifact, stated)
    described, told = artifact.describe(), stated.report
    channels, height, width = described["image_shape"]
    shape = (int(channels), int(height), int(width))
    return Page(
        title=f"{described['num']:,} images published by {settings.method}",
        subtitle=f"Publication {out.resolve().name}, {height} x {width} pixels, {'grey' if channels == 1 else 'color'}",
        alarm=alarm(told),
        figures=figures(told),
        why=why(told),
        parts=(
            _about(settings, stated, shape),
            _books(found, stated),
            _images(curator / SHEET, shape, int(described["num"])),
            _errors(found),
            _judged(settings, out),
        ),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = parse_json(read_plain(path, _MOST_BYTES))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Restore it from a copy.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} was written by another version of idpgan, or by something else.")
    return found


def _about(settings: Settings, stated: Stated, shape: tuple[int, int, int]) -> Part:
    info = METHODS[settings.method]
    sound = {True: "sound: proven never exceeds what is asked for", False: "NOT sound", None: "promises nothing"}
    channels, height, width = shape
    options = settings.table.get("options") or {}
    facts = [
        ("Method", f"{settings.method} ({sound[info.sound]})"),
        ("Folder", settings.data),
        ("Images", f"N = {settings.num_private:,} (public)"),
        ("Size", f"{height} x {width} pixels, {'grey' if channels == 1 else 'color'}"),
        ("Protected unit", f"one {stated.unit}, {stated.relation}"),
        ("Options", ", ".join(f"{key} = {value}" for key, value in options.items() if value is not None) or "defaults"),
    ]
    return Part(
        "about",
        "What was published",
        facts=tuple(facts),
        notes=tuple(f"Taken as public: {each}." for each in stated.report.public_assumptions),
    )


def _books(found: Mapping[str, Any], stated: Stated) -> Part:
    """Return the charges of this publication, and all publications of the folder until then."""
    spending = Spending(stated.events, float(stated.document["delta"]), None, None, 0, "release/privacy.json")
    charges = ledger_part(spending, stated.report.proven)
    books = found.get("ledger")
    notes = tuple(note for note in charges.notes if not note.startswith("Read from"))
    text: tuple[str, ...] = ()
    tables = charges.tables
    try:
        if books is not None:
            total = books["total"]
            folders = "folder, and of those around and inside it," if total.get("on_other_ledgers") else "folder"
            epsilon = epsilon_text(number_from_json(total["epsilon"]))
            text = (
                f"All publications of the {folders} together: epsilon {epsilon}"
                + (f" at δ = {delta_text(total['delta'])}" if total["delta"] else "")
                + f", unit {total['unit']}, {total['relation']}. Later ones are not on this page but on the ledger, "
                f"{books['path']}.",
            )
            tables = (_publications(books["publications"]), *tables)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{REPORT} says of its ledger what idpgan did not write ({error}).") from error
    missing = None if books is not None else "An older version of idpgan wrote this folder: see the folder's ledger."
    return Part("ledger", "Budget ledger", text=text, tables=tables, missing=missing, notes=notes)


def _publications(books: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            str(each["date"]).replace("T", " ").replace("+00:00", " UTC"),
            str(each["method"]),
            str(each["events"][0]["unit"]),
            "nothing" if each["epsilon"] is None else epsilon_text(number_from_json(each["epsilon"])),
            delta_text(float(each["delta"])),
            f"{each['num']:,}",
            str(each["out"]),
        )
        for each in books
    )
    head = ("when", "method", "unit", "ε asked for", "δ", "images", "written to")
    return Table("Publications of this folder, this one last", head, rows)


def _images(sheet: Path, shape: tuple[int, int, int], num: int) -> Part:
    """Show originals beside released images, from the contact sheet."""
    heading, shown = "Images", min(num, SHOWN)
    columns = min(2 * shown, COLUMNS)
    try:
        found = cells(sheet.read_bytes(), shape, columns, GAP_PX)
        pairs = torch.from_numpy(np.ascontiguousarray(found[: 2 * shown])).view(shown, 2, *shape)
    except (OSError, ValueError, RuntimeError) as error:
        return Part("images", heading, missing=f"{sheet.name} cannot be read ({error}): publish again to have it.")
    across = 4 if max(shape[1:]) > 40 else 8
    released = lay_out(pairs[:, 1], min(shown, across), alt=f"{shown} released images")
    real = lay_out(pairs[:, 0], min(shown, across), alt=f"the {shown} originals, in the same places")
    return Part(
        "images",
        heading,
        galleries=(
            Gallery("Released", (released,), f"The first {shown} of {num:,}."),
            Gallery(
                "Originals: private, nothing protects them here",
                (real,),
                "The same images in the same places, from contact.png.",
                private=True,
            ),
        ),
    )


def _errors(found: Mapping[str, Any]) -> Part:
    """Return the errors over all images: their mean and how far they spread."""
    try:
        rows = []
        for name, mean in found["mean"].items():
            values = sorted(float(image[name]) for image in found["images"])
            middle = statistics.median(values)
            rows.append((_NAMES.get(name, name), *map(number, (float(mean), values[0], middle, values[-1]))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{REPORT} holds no errors of images ({error}).") from error
    table = Table(f"Over {len(found['images']):,} images", ("", "mean", "least", "median", "most"), tuple(rows))
    notes = ("Computed from the originals without noise: no epsilon covers it.", *map(str, found.get("notes", ())))
    return Part("errors", "Errors", tables=(table,), notes=notes)


def _judged(settings: Settings, out: Path) -> Part:
    """Say which commands judge a publication."""
    release = shlex.quote(str(out / "release"))
    return Part(
        "audit",
        "Audit and check",
        text=(
            f"The method is audited by itself: idpgan audit {settings.method} --epsilon EPSILON. That the release is "
            f"consistent with its charges: idpgan verify {release}",
        ),
    )
