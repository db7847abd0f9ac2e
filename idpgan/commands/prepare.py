"""``idpgan prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.commands.command import Answer, command
from idpgan.files import pasted
from idpgan.jobs.options import PrepareOptions
from idpgan.progress import Progress

if TYPE_CHECKING:
    from idpgan.jobs.prepare import Prepared

_SHOWN = 10  # refused photos, copies; all of them are in prepared.json


@command
def prepare(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of photos.")],
    out: Annotated[Path, typer.Argument(metavar="DST", help="The folder to be.")],
    options: PrepareOptions,
    progress: Progress,
) -> Answer:
    """Make images of one size, and a metadata.csv, out of photos of any size and format.

    Faces are looked for with --align eyes alone; else they have to be in the middle. A photo that cannot be used keeps
    its row, without a file.

    Example: idpgan prepare photos faces48 --size 48 --folders person
    """
    from idpgan.jobs.prepare import prepare as prepare_photos

    done = prepare_photos(source, out, options, progress)
    return Answer(done, lambda: _tell(done, options.crop))


def _tell(done: Prepared, crop: str) -> None:
    from idpgan.data.image_files import in_folders

    channels, height, width = done.image_shape
    columns = ", ".join(("file_name", *done.columns))
    print(
        f"{done.num_photos - len(done.refused):,} of {done.num_photos:,} photos are in {done.out}, {height} x {width} "
        f"{'grey' if channels == 1 else 'color'}, with metadata.csv ({columns})."
    )
    if done.aligned:
        eyes, face, middle, none = (done.aligned[kind] for kind in ("eyes", "face", "middle", "none"))
        print(
            f"Put in place: {eyes:,} by their eyes, {face:,} by the box of the face, whose eyes were not found. "
            f"No face was found in {middle + none:,}: {'the middle was cut out' if middle else 'null records'}. "
            f"Look at {done.out / 'prepared.png'} (secret) before you go on."
        )
    else:
        cut = "the middle of each was cut out" if crop == "center" else "each was squeezed as a whole"
        print(f"No face was looked for (--align eyes does): {cut}. Look at some before you go on.")
    if done.unlabelled:
        print(f"Left out, without a label: {done.unlabelled:,} photos.")
    if done.enlarged:
        print(f"{done.enlarged:,} were smaller and have been enlarged: they are blurred.")
    if done.all_grey:
        print("None has a color: --grey makes the images a third of the size.")
    if done.left_out:
        print(f"Left out, no photos by their names: {_some(done.left_out)} ({len(done.left_out):,} in all).")
    if done.twins:
        print(f"Left out, raw files beside a readable one of the same shot: {_some(done.twins)} ({len(done.twins):,}).")
    if done.leftovers:
        print(f"Left out, in hidden folders and what systems leave behind: {in_folders(done.leftovers)} photos.")
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
    print(f"Next: idpgan init {pasted(done.out)} > config.toml")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)
