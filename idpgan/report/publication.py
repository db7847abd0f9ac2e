"""The page about a publication: everything on it lies in the output folder itself.

The originals beside the released images are those of the contact sheet, so that no private image is read again.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from idpgan.data.images import GAP_PX
from idpgan.errors import InputError
from idpgan.files import parse_json, read_plain
from idpgan.methods import METHODS
from idpgan.privacy.guarantee import number_from_json
from idpgan.release.artifact import Kind
from idpgan.release.statement import Settings, Statement
from idpgan.release.verify import open_release
from idpgan.report import epsilons, page
from idpgan.report.page import number

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


def publication_page(out: Path, content: Path, form: str, sheet: Sheet, kinds: Mapping[str, Kind]) -> page.Content:
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
        computed = parse_json(read_plain(content, page.MOST_BYTES))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{content} is damaged ({error}). Restore it from a copy.") from error
    if not isinstance(computed, dict) or computed.get("format") != form:
        raise InputError(f"{content} was written by another version of idpgan, or by something else.")
    opened = open_release(out / "release", kinds)
    stated, settings = opened.stated, opened.settings
    described, privacy = opened.artifact.describe(), stated.report
    channels, height, width = map(int, described["image_shape"])
    shape, num = (channels, height, width), int(described["num"])
    judged = (
        f"The method is audited by itself: idpgan audit {settings.method} --epsilon EPSILON. That the release is "
        f"consistent with its charges: idpgan verify {shlex.quote(str(out / 'release'))}"
    )
    return {
        "title": f"{num:,} images published by {settings.method}",
        "subtitle": f"Publication {out.resolve().name}, {page.size_text(shape)}",
        "alarm": epsilons.alarm(privacy),
        "figures": epsilons.figures(privacy),
        "why": epsilons.why(privacy),
        "parts": [
            _about(settings, stated, shape),
            epsilons.risk_part(privacy, settings.plan.joint_events(stated.events)),
            _ledger(computed, stated, content.name),
            {"name": "images", "heading": "Images", **_images(sheet, shape, num)},
            {"name": "errors", "heading": "Errors", **_errors(computed, content.name)},
            {"name": "audit", "heading": "Audit and check", "text": [judged]},
        ],
    }


def _about(settings: Settings, stated: Statement, shape: _Shape) -> page.Content:
    """Say what was published, and how."""
    options = settings.table.get("options") or {}
    facts = [
        ("Method", f"{settings.method} ({epsilons.SOUND[METHODS[settings.method].sound]})"),
        ("Folder", settings.data),
        ("Images", f"N = {settings.num_private:,} (public)"),
        ("Size", page.size_text(shape)),
        ("Protected unit", f"one {stated.unit}, {stated.relation}"),
        ("Options", ", ".join(f"{key} = {value}" for key, value in options.items() if value is not None) or "defaults"),
    ]
    notes = [f"Taken as public: {assumption}." for assumption in stated.report.public_assumptions]
    return {"name": "about", "heading": "What was published", "facts": facts, "notes": notes}


def _ledger(computed: page.Content, stated: Statement, file: str) -> page.Content:
    """Return the charges of this publication, and all publications of the folder up to it."""
    part = epsilons.ledger_part(stated.events, float(stated.delta), stated.report.proven)
    ledger = computed.get("ledger")
    if ledger is None:
        return part | {"missing": "An older version of idpgan wrote this folder: see the folder's ledger."}
    try:
        total = ledger["total"]
        folders = "folder, and of those around and inside it," if total.get("on_other_ledgers") else "folder"
        at_delta = f" at δ = {epsilons.delta_text(total['delta'])}" if total["delta"] else ""
        epsilon = epsilons.epsilon_text(number_from_json(total["epsilon"]))
        text = (
            f"All publications of the {folders} together: epsilon {epsilon}{at_delta}, unit {total['unit']}, "
            f"{total['relation']}. Later ones are not on this page but on the "
            f"ledger, {ledger['path']}."
        )
        rows = [
            (
                str(entry["date"]).replace("T", " ").replace("+00:00", " UTC"),
                str(entry["method"]),
                str(entry["events"][0]["unit"]),
                "nothing" if entry["epsilon"] is None else epsilons.epsilon_text(number_from_json(entry["epsilon"])),
                epsilons.delta_text(float(entry["delta"])),
                f"{entry['num']:,}",
                str(entry["out"]),
            )
            for entry in ledger["publications"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} says of its ledger what idpgan did not write ({error}).") from error
    head = ("when", "method", "unit", "ε asked for", "δ", "images", "written to")
    publications = page.table("Publications of this folder, this one last", head, rows)
    return part | {"text": [text], "tables": [publications, *part["tables"]], "missing": None}


def _images(sheet: Sheet, shape: _Shape, num: int) -> page.Content:
    """Show originals beside released images, from the contact sheet."""
    shown, file = min(num, sheet.shown), sheet.path.name
    try:
        images = page.cells(sheet.path.read_bytes(), shape, min(2 * shown, sheet.columns), GAP_PX)
        pairs = torch.from_numpy(np.ascontiguousarray(images[: 2 * shown])).view(shown, 2, *shape)
    except (OSError, ValueError, RuntimeError) as error:
        return {"missing": f"{file} cannot be read ({error}): publish again to have it."}
    across = min(shown, 4 if max(shape[1:]) > 40 else 8)
    released = {
        "heading": "Released",
        "pictures": [page.lay_out(pairs[:, 1], across, alt=f"{shown} released images")],
        "caption": f"The first {shown} of {num:,}.",
    }
    originals = {
        "heading": "Originals: private, nothing protects them here",
        "pictures": [page.lay_out(pairs[:, 0], across, alt=f"the {shown} originals, in the same places")],
        "caption": f"The same images in the same places, from {file}.",
        "private": True,
    }
    return {"galleries": [released, originals]}


def _errors(computed: page.Content, file: str) -> page.Content:
    """Return the errors over all images: their mean and how far they spread."""
    try:
        rows = []
        for name, mean in computed["mean"].items():
            values = sorted(float(image[name]) for image in computed["images"])
            middle = statistics.median(values)
            rows.append((_NAMES.get(name, name), *map(number, (float(mean), values[0], middle, values[-1]))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} holds no errors of images ({error}).") from error
    notes = ["Computed from the originals without noise: no epsilon covers it.", *map(str, computed.get("notes", ()))]
    caption = f"Over {len(computed['images']):,} images"
    return {"tables": [page.table(caption, ("", "mean", "least", "median", "most"), rows)], "notes": notes}
