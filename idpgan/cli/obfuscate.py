"""``idpgan obfuscate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.cli.output import AsJson, FolderAndOptions, FolderLedgerFile, Quiet, print_json, split_folder
from idpgan.progress import shown


def obfuscate(
    arguments: FolderAndOptions,
    method: Annotated[str, typer.Option(help="Obfuscator, see `idpgan methods`.")],
    out: Annotated[Path, typer.Option(help="Output folder: absent or empty.")],
    keep: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of metadata.csv: what is to stay readable, to train on.")
    ] = None,
    hide: Annotated[str, typer.Option(metavar="COLUMN", help="Of metadata.csv: what is to be hidden.")] = "person",
    fitted: Annotated[
        Path | None, typer.Option(metavar="DIR", help="curator/ of an earlier call: take its weights or key.")
    ] = None,
    ledger: FolderLedgerFile = None,
    color: Annotated[bool, typer.Option("--color", help="Color images.")] = False,
    accept_unsound: Annotated[
        bool, typer.Option("--accept-unsound", help="Needed: no obfuscator proves anything.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Blur, disguise or re-draw every image of a folder WITHOUT a guarantee: OUT/release, OUT/curator to keep.

    What people do in the place of differential privacy, to be held against it; the card says that nothing is proven.

    Example: idpgan obfuscate faces --method blur sigma=3 --out blurred --accept-unsound
    """
    folder, options = split_folder(arguments)

    from idpgan.jobs.obfuscate import Order
    from idpgan.jobs.obfuscate import obfuscate as run

    order = Order(
        folder=folder,
        method=method,
        out=out,
        keep=keep,
        hide=hide,
        fitted=fitted,
        ledger=ledger,
        color=color,
        accept_unsound=accept_unsound,
        device=device,
        options=options,
    )
    with shown(quiet or as_json) as progress:
        done = run(order, progress)
    if as_json:
        print_json(done.to_json())
        return
    channels, height, width = done.image_shape
    trained = f", {done.parameters:,} parameters, {done.steps:,} steps" if done.steps else ""
    kind = "color" if channels == 3 else "grey"
    print(
        f"NOT PRIVATE: {done.report.reason}\n"
        f"{done.num:,} {kind} images of {height} x {width}, method {done.method}{trained}\n"
        f"claimed: nothing\nproven:  {done.report.proven}\n"
        f"ledger:  {order.ledger_path}: in total {done.total}\n"
        f"The images: {done.release}   Curator only: {done.curator} (a pixel changed by "
        f"{done.changed:.3g} in the mean)\nNext: idpgan verify {done.release}"
    )
