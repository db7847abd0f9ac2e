"""``idpgan recognize OUT ORIGINALS``: who is on the images that `idpgan publish` has made?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, Device, command, kept, option, print_lines, print_table
from idpgan.device import check_device
from idpgan.progress import Progress


@dataclass(frozen=True)
class RecognizeOptions:
    """How to recognize people; a script takes `reidentify.recognize_people`, which has more arguments."""

    attacks: tuple[str, ...] = option(
        ("all",), "subspace, pca-svm or network, several times, or all.", "--attack", metavar="NAME"
    )
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_device(self.device, "--device")


@command
def recognize(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="What publish has written.")],
    originals: Annotated[Path, typer.Argument(metavar="ORIGINALS", help="The folder that it was made from.")],
    options: RecognizeOptions,
    progress: Progress,
) -> Answer:
    """Name the people on images that `publish` made: who has clear pictures of them, finds whom?

    Half of each person's pictures are known, the other half is asked about as it was released. Writes attack.json and
    attack.png (rank curves) into OUT/curator: with the originals, for the curator only. An attack that fails proves
    nothing.

    Example: idpgan recognize published faces --attack pca-svm
    """
    from idpgan.commands import reidentify

    result = reidentify.recognize_people(out, originals, options.attacks, device=options.device, progress=progress)
    with kept(result.to_json()):
        written = result.write(out / "curator")

    def show() -> None:
        facts = result.facts
        title = f"{facts['method']}: {facts['num_asked']:,} images of {facts['num_people']:,} people"
        head = ("attack", "learned", "filter", "first guess", f"first {reidentify.FEW}")
        print_table(head, result.rows(), title, frame=False)
        print_lines([*result.page(), f"Curator only: {' and '.join(map(str, written))}"])

    return Answer(result, show)
