"""``idpgan publish``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.commands.command import Answer, ask_before_marking, command, processes
from idpgan.files import pasted
from idpgan.jobs.options import PublishOptions
from idpgan.methods import METHODS
from idpgan.progress import Progress
from idpgan.ranks import refuse_several

if TYPE_CHECKING:
    from idpgan.jobs.publish import Published, Quote


@command
def publish(
    options: PublishOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Price and check: read no pixel, write nothing.")] = False,
    *,
    progress: Progress,
) -> Answer | None:
    """Publish every image of a folder under differential privacy: OUT/release to give away, OUT/curator to keep.

    Publications of one folder add up on its ledger. Several processes share the images by
    torchrun --nproc-per-node 8 -m idpgan publish ...: docs/reference/scale.md.

    Example: idpgan publish faces --method best --epsilon 10 --unit image --out published
    """
    from idpgan.jobs.publish import follow, quote
    from idpgan.jobs.publish import publish as run

    if dry_run:
        refuse_several("publish --dry-run")
        quoted = quote(options)
        return Answer(quoted, lambda: print(*_describe(quoted), sep="\n"))
    with processes() as ranks:
        if not ranks.first:
            follow(ranks)
            return None
        if options.accept_unsound and METHODS.get(options.method) and not METHODS[options.method].sound:
            ask_before_marking(options, options.method)
        done = run(options, progress, ranks)
    return Answer(done, lambda: print(*_describe(done.quote), *_next(done), sep="\n"))


def _describe(quoted: Quote) -> list[str]:
    """Say what is published and what it costs."""
    made, report, (channels, height, width) = quoted.plan, quoted.report, quoted.shape
    claimed = report.claimed or report.proven
    kind = "color" if channels == 3 else "grey"
    lines = [
        f"{len(quoted.files):,} {kind} images of {height} x {width}, method {made.method}",
        f"unit:    {report.proven.unit} ({report.proven.relation})",
        f"claimed: {claimed}",
        f"proven:  {report.proven}",
        f"person:  {_person(quoted)}",
        f"ledger:  {quoted.options.ledger_path}: {_total(quoted)}",
    ]
    if not report.private:
        lines.insert(1, f"NOT PRIVATE: {report.reason}")
    return lines


def _person(quoted: Quote) -> str:
    """Say what several images of one person cost."""
    if not quoted.report.proven.finite:
        return "nothing is proven for anybody"
    most, unit = quoted.largest_folder, quoted.report.proven.unit
    price = quoted.person(most)
    delta = f", delta = {price.delta:.3g}" if price.delta else ""
    each = "" if unit == "image" else f", for the same {unit} of each"
    return f"k images of one person cost k epsilon; the {most} of the largest folder: {price.epsilon:.4g}{delta}{each}"


def _total(quoted: Quote) -> str:
    """Say what all publications of the folder, and of those around and inside it, cost together."""
    total, before = quoted.total, quoted.before
    text = f"{len(before) + 1} publication{'s' if before else ''}"
    if total.elsewhere:
        text += f", and {total.elsewhere} of folders around or inside it at the dearest place"
    text += f", in total {total}"
    others = (item for ledger in quoted.nested for item in ledger.publications)
    unsound = [item.method for item in (*before, *others) if not item.sound]
    if unsound:
        text += f"; unsound before: {', '.join(unsound)}"
    return text


def _next(done: Published) -> list[str]:
    """Say where everything lies, how far it is from the originals, what is proven of it, and what comes next."""
    means = [f"  {name.replace('_', ' '):<19} {value:.4g}" for name, value in done.means.items()]
    out = done.release.parent
    return [
        f"To give away: {done.release}   Curator only: {done.curator}",
        "Curator only, means over the images:",
        *means,
        f"Look at: {done.curator / 'contact.png'}",
        f"Proven: {done.quote.report.proven}. Next: idpgan verify {pasted(done.release)}, idpgan report {pasted(out)}",
    ]
