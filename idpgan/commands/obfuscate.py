"""``idpgan obfuscate``."""

from __future__ import annotations

from idpgan.commands.command import Answer, ask_before_marking, command
from idpgan.files import pasted
from idpgan.jobs.options import ObfuscateOptions
from idpgan.progress import Progress


@command
def obfuscate(options: ObfuscateOptions, progress: Progress) -> Answer:
    """Blur, disguise or re-draw every image of a folder WITHOUT a guarantee: OUT/release, OUT/curator to keep.

    What people do in the place of differential privacy, to be held against it; the card says that nothing is proven.

    Example: idpgan obfuscate faces --method blur sigma=3 --out blurred --accept-unsound
    """
    from idpgan.jobs.obfuscate import obfuscate as run

    if options.accept_unsound:
        ask_before_marking(options, options.method)
    done = run(options, progress)
    channels, height, width = done.image_shape
    trained = f", {done.parameters:,} parameters, {done.steps:,} steps" if done.steps else ""
    kind = "color" if channels == 3 else "grey"
    text = (
        f"NOT PRIVATE: {done.report.reason}\n"
        f"{done.num:,} {kind} images of {height} x {width}, method {done.method}{trained}\n"
        f"claimed: nothing\nproven:  {done.report.proven}\n"
        f"ledger:  {options.ledger_path}: in total {done.total}\n"
        f"The images: {done.release}   Curator only: {done.curator} (a pixel changed by "
        f"{done.changed:.3g} in the mean)\nNext: idpgan verify {pasted(done.release)}"
    )
    return Answer(done, lambda: print(text))
