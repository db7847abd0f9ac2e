"""``idpgan sample``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, Certificate, Device, PrivateKey, command
from idpgan.progress import Progress


@command
def sample(
    source: Annotated[Path, typer.Argument(metavar="RUN|RELEASE", help="Run, release folder or .safetensors.")],
    num: Annotated[int, typer.Option(help="Number of images.")],
    out: Annotated[Path, typer.Option(metavar="DIR|FILE.npz", help="A new folder of PNGs, or an .npz file.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Classes to draw: names or numbers, as cat,dog or 3,5, or position 0; default: all."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same images.")] = None,
    soft_labels: Annotated[
        bool, typer.Option("--soft-labels", help="Also write the probabilities that the generator's teacher gives.")
    ] = False,
    landmarks: Annotated[bool, typer.Option("--landmarks", help="Also where the parts of portraits lie.")] = False,
    purpose: Annotated[
        str, typer.Option("--for", metavar="looking|training", help="What the images are for: how widely they vary.")
    ] = "looking",
    module: Annotated[
        str | None, typer.Option(help="Code of a generator of its makers' own, package.module:Class; it is imported.")
    ] = None,
    device: Device = "cpu",
    no_mark: Annotated[
        bool, typer.Option("--no-mark", help="Do not say in the files that they are artificial; the card says so.")
    ] = False,
    sign: Certificate = None,
    key: PrivateKey = None,
    *,
    progress: Progress,
) -> Answer:
    """Draw images from a released generator, without its data; a GPU is not needed.

    Example: idpgan sample runs/demo --num 1000 --out synthetic.npz
    """
    from idpgan.privacy.guarantee import PrivacyReport
    from idpgan.release.export import card_of, export_samples
    from idpgan.release.signature import signer_of

    manifest = export_samples(
        source,
        num,
        out,
        labels=labels,
        seed=seed,
        soft_labels=soft_labels,
        landmarks=landmarks,
        purpose=purpose,
        device=device,
        module=module,
        marked=not no_mark,
        signer=signer_of(sign, key, marked=not no_mark),
        progress=progress,
    )
    card = "without a card: nothing says what protects the training images"
    if manifest["privacy"] is not None:
        card = f"with a card to give away: {card_of(out)}"
    lines = [f"{num:,} images in {out}, {card}"]
    if manifest.get("purpose") == "looking":
        lines.append("They are for looking at, cleaner and more alike than those to train on: --for training.")
    if "total" in (manifest["privacy"] or {}):
        lines.append(f"Proven: {PrivacyReport.from_json(manifest['privacy']).stated}.")
    return Answer({"out": str(out), **manifest}, lambda: print(*lines, sep="\n"))
