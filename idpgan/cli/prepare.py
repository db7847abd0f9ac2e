"""``idpgan prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idpgan.cli.output import AsJson, Quiet, print_json
from idpgan.jobs.options import sides
from idpgan.progress import shown

if TYPE_CHECKING:
    from idpgan.jobs.prepare import Prepared

_SHOWN = 10  # refused photos, copies; all of them are in prepared.json


def prepare(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of photos.")],
    out: Annotated[Path, typer.Argument(metavar="DST", help="The folder to be.")],
    size: Annotated[str, typer.Option(metavar="SIDE|HxW", help="Height and width in px: 48, or 112x92.")],
    grey: Annotated[bool, typer.Option("--grey", help="Drop the colors.")] = False,
    crop: Annotated[
        str, typer.Option(metavar="center|none", help="center: cut the middle; none: squeeze the whole photo.")
    ] = "center",
    folders: Annotated[
        str | None, typer.Option(metavar="label|person|none", help="What the subfolders of SRC are.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Columns file_name, labels, person; default: SRC/metadata.csv."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make images of one size, and a metadata.csv, out of photos of any size and format.

    No face is looked for: it has to be in the middle. A photo that cannot be read keeps its row, without a file.

    Example: idpgan prepare photos faces48 --size 48 --folders person
    """
    height_width = sides(size)

    from idpgan.jobs.prepare import prepare as prepare_photos

    with shown(quiet or as_json) as progress:
        choices: dict[str, Any] = {"crop": crop, "folders": folders}  # checked there
        done = prepare_photos(source, out, height_width, grey=grey, labels=labels, progress=progress, **choices)
    if as_json:
        print_json(done.to_json())
    else:
        _tell(done, crop)


def _tell(done: Prepared, crop: str) -> None:
    channels, height, width = done.image_shape
    columns = ", ".join(("file_name", *done.columns))
    print(
        f"{done.num_photos - len(done.refused):,} of {done.num_photos:,} photos are in {done.out}, {height} x {width} "
        f"{'grey' if channels == 1 else 'color'}, with metadata.csv ({columns})."
    )
    cut = "the middle of each was cut out" if crop == "center" else "each was squeezed as a whole"
    print(f"No face was looked for: {cut}. Look at some before you go on.")
    if done.enlarged:
        print(f"{done.enlarged:,} were smaller and have been enlarged: they are blurred.")
    if done.all_grey:
        print("None has a color: --grey makes the images a third of the size.")
    if done.left_out:
        print(f"Left out, no photos by their names: {_some(done.left_out)} ({len(done.left_out):,} in all).")
    if done.refused:
        print(f"Refused: {len(done.refused):,}. Each keeps its row, and stands as a null record:")
        for name, reason in done.refused[:_SHOWN]:
            print(f"  {name} {reason}")
    if done.duplicates:
        copies = sum(map(len, done.duplicates)) - len(done.duplicates)
        print(
            f"{copies:,} photos are exact copies of others and were kept, as in: "
            f"{_some(tuple(' = '.join(group[:3]) for group in done.duplicates[:3]))}."
        )
        if done.shared:
            print(f"  {done.shared:,} of these groups lie under more than one person: are these one person?")
    if len(done.refused) > _SHOWN or done.duplicates:
        print(f"All of them: {done.out / 'prepared.json'}")
    print(f"Next: idpgan init {done.out} > config.toml")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)
