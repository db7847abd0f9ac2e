"""The page of the members that attacks find most easily: private images, for the curator only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from idpgan.attacks.riskiest import Record
from idpgan.files import PRIVATE_FILE, check_writable, write_bytes_atomic
from idpgan.release.outputs import check_page
from idpgan.report.attacked_images import CAUTION
from idpgan.report.page import Gallery, Page, Part, Table, lay_out, render

FORMAT = "idpgan riskiest 1"
WARNING = (
    "A new run without these records has no proven epsilon for the original set.",
    "Which records are taken out depends on all records, and no noise hides it: the epsilon of the new run speaks of "
    "the set that is left, not of those who were taken out, nor of who would have been. And others take their place: "
    "once the most exposed are gone, the next are found (Carlini et al. 2022, The Privacy Onion Effect). What helps: a "
    "smaller epsilon, the unit person, a method with a proof. A record may go for a reason that is not on this page, "
    "such as a consent that was withdrawn.",
)


def page_beside(result: Path) -> Path:
    """Return where the page lies: beside the JSON file of the attack."""
    return result.with_name(f"{result.stem}-riskiest.html")


def check_riskiest(result: Path, num: int) -> None:
    """Refuse, before anything is computed, a place where a page of so many records must not be written.

    Raises:
        InputError: If it is in a release, or anything but an earlier page lies there.
    """
    if num:
        check_page(page_beside(result), FORMAT)
        check_writable(page_beside(result))


def write_riskiest(result: Path, records: Sequence[Record], about: str) -> list[Path]:
    """Write the page beside the JSON file of the attack, mode 0600, if there are records; return where."""
    if not records:
        return []
    path = page_beside(result)
    page = render(riskiest_page(records, about), FORMAT)
    write_bytes_atomic(path, page.encode("utf-8", "backslashreplace"), mode=PRIVATE_FILE)  # names of files are bytes
    return [path]


def riskiest_page(records: Sequence[Record], about: str) -> Page:
    """Return the page; ``about`` is what was attacked."""
    galleries, rows = [], []
    for place, record in enumerate(records, 1):
        near = f"nearest at {record.distances[0]:.1f} grey levels"
        if record.equal or record.copied:
            near = f"{'equal to' if record.equal else 'found in'} one of them ({record.copied or 'not turned'}), {near}"
        name = record.names[0] + f" and {len(record.names) - 1} equal to it" * (len(record.names) > 1)
        shown = lay_out(torch.cat([record.image, record.nearest]), 1 + len(record.nearest), alt=f"member {place}")
        galleries.append(
            Gallery(f"{place}. {name}", [shown], f"Left: the member; then generated images. {near}.", True)
        )
        rows.append((f"{place}. {name}", f"{record.distances[0]:.1f}", *(f"{x:.2%}" for x in record.levels.values())))
    attacks = list(records[0].levels) if records else []
    caption = "Distance in grey levels (root mean square), and by attack the share of others that score as high"
    table = Table(caption, ("member", "distance", *attacks), rows)
    part = Part(
        "riskiest",
        "Members and their nearest generated images",
        text=(
            f"The {len(records)} members that are found most easily: first those that are equal to a generated image, "
            "then those that stand in one after changes, "
            "then those whose score fewest others reach. Of many members some score high by chance: whether anything "
            "leaks says the attack's verdict, not this order.",
        ),
        galleries=galleries,
        tables=[table],
        notes=CAUTION,
    )
    return Page("Riskiest records", about, WARNING, (), (), [part])
