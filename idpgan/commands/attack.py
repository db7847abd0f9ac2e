"""``idpgan attack``: can the images that were used be told from images that were not?

Of a run, members are the first n images of the private part, non-members the first n of the holdout, n being the size
of the smaller part (both parts come in the fixed random order of the split); the attacker may know the other images,
the *reference*: the test part and the rest of the holdout. With --members it attacks images that any tool has made. The
two differ in what the attacker knows (`idpgan.commands.attacked_run`, `idpgan.commands.attack_images`).

Everything here is computed with private images: attack.json and attack.png are for the curator only.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.checks import whole
from idpgan.commands.command import (
    RANGE,
    Answer,
    Device,
    command,
    given,
    kept,
    option,
    print_lines,
    print_table,
    refuse_below,
)
from idpgan.device import check_device, resolve_device
from idpgan.errors import InputError
from idpgan.files import check_writable, pasted, write_private_json
from idpgan.progress import Progress, silent
from idpgan.run import RunFolder, describe_environment

if TYPE_CHECKING:
    from idpgan.attacks.findings import Findings
    from idpgan.attacks.gate import Limit


@dataclass(frozen=True)
class AttackOptions:
    """How to attack."""

    attacks: tuple[str, ...] = option(("all",), "By name, several times, or all.", "--attack", metavar="NAME")
    members: Path | None = option(None, "Images of any tool: those that they were made from.", metavar="DIR|FILE.npz")
    others: Path | None = option(None, "Then also: images of the same kind that were not used.", metavar="DIR|FILE.npz")
    reference: Path | None = option(
        None, "A run on other images, whose generator calibrates; with --members other real images.", metavar="RUN|DIR"
    )
    train_reference: bool = option(False, "Train such a generator on test and spare holdout images.")
    shadows: int = option(0, "Retrain so many generators with and without the most exposed records; even, >= 4.")
    samples: int | None = option(None, "Images to draw; default: as many as are private, 10,000 .. 60,000.")
    most: int = option(10_000, "Members and non-members judged, at most.")
    most_costly: int = option(1_000, "The same where every image is optimized for.")
    confidence: float = option(0.95, "Of each interval.")
    seed: int = option(0, "Of generated images and attacks.")
    data_root: Path | None = option(None, "Where the data set lies now (data.root).")
    pixel_range: str = option("auto", f"With --members: {RANGE}", "--range")
    out: Path | None = option(None, "With --members: JSON file to write.")
    fail_above: str | None = option(None, "A gate: leak, or at most TPR at an FPR of 0.01 or 0.001.", metavar="TPR@FPR")
    upper_end: bool = option(False, "With TPR@FPR: hold upper ends of intervals against it.")
    riskiest: int = option(0, "Name so many members that are found most easily.")
    device: Device = "auto"

    def __post_init__(self) -> None:
        check_device(self.device, "--device")
        whole(self.seed, "--seed")
        if self.shadows and (self.shadows < 4 or self.shadows % 2):
            raise InputError(f"--shadows {self.shadows} must be even and at least 4: half of them know each record.")
        if self.members is None and (unfit := given(self, "out", "pixel_range")):
            raise InputError(f"{unfit[0]} is for --members: a run's images are bytes, its result is in attack.json.")
        if not 0 < self.confidence < 1:
            raise InputError(f"--confidence {self.confidence} must be in (0, 1).")
        refuse_below(self, samples=3, most=2, most_costly=2, riskiest=0)
        if self.upper_end and self.fail_above is None:
            raise InputError("--upper-end is for a gate: give --fail-above TPR@FPR too.")
        _ = self.limit
        if self.reference is not None and self.train_reference:
            raise InputError("--reference and --train-reference exclude each other: take one of them.")

    @property
    def limit(self) -> Limit | None:
        """What the gate lets through; None without one."""
        if self.fail_above is None:
            return None
        from idpgan.attacks.gate import Limit

        return Limit.parse(self.fail_above, self.upper_end)


@command
def attack(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|DIR|FILE.npz", help="A run with a holdout; with --members images."),
    ],
    options: AttackOptions,
    progress: Progress,
) -> Answer:
    """Attack a run, or images of any tool: can the images that were used be told from images that were not?

    Of a run, members are private images, non-members as many holdout images. Writes attack.json and attack.png (ROC
    curves, both axes logarithmic) into the run, for the curator only. With --members and --others the images may be
    anybody's, and the result is one page of words. An attack that fails proves nothing. Who is on images that `publish`
    made asks `idpgan recognize`.

    Exit code of --fail-above: 0 passed, 3 failed, 4 undecided since images are too few; bad input has 2 as ever.

    Example: idpgan attack runs/demo --attack nearest-sample --attack critic-score
    Example: idpgan attack synthetic.npz --members used/ --others unused/
    """
    if options.members is not None or options.others is not None:
        return _attack_images(source, options, progress)
    if (source / "curator" / "report.json").is_file():
        raise InputError(f"{source} is a publication: idpgan recognize {pasted(source)} ORIGINALS asks who is on it.")
    if source.is_file():
        raise InputError(f"{source} is a file, not a run. Say what its images were made from: --members, and --others.")
    findings = attack_run(source, options, progress)
    with kept(findings.to_json()):
        written = findings.write()
    return Answer(findings, lambda: print_attacks(findings, written), findings.code)


def _attack_images(synthetic: Path, options: AttackOptions, progress: Progress) -> Answer:
    """Attack a folder, an npz file or what draws images, with the members and others of the options."""
    from idpgan.attacks.findings import FORMAT
    from idpgan.commands import attack_images
    from idpgan.release.folder import check_output

    if options.members is None or options.others is None:
        raise InputError(
            "--members and --others go together: images that were used, and images of their kind that were not."
        )
    if unfit := given(options, "train_reference", "shadows", "data_root", "most_costly"):
        raise InputError(f"{unfit[0]} is for runs, and with --members only images are attacked. Leave it out.")
    sources = (synthetic, options.members, options.others, options.reference)
    if options.out is not None:
        read = list(filter(None, sources))
        check_output(options.out, FORMAT, read, images=read)
        check_writable(options.out)
    resolve_device(options.device, "--device")
    findings = attack_images.attack(
        *sources,
        attacks=options.attacks,
        most=options.most,
        samples=options.samples or attack_images.SAMPLES,
        confidence=options.confidence,
        seed=options.seed,
        pixel_range=options.pixel_range,
        device=options.device,
        riskiest=options.riskiest,
        progress=progress,
    ).gated(options.limit)
    lines = findings.page()
    with kept(findings.to_json()):
        if options.out is not None:
            write_private_json(options.out, findings.to_json())
    return Answer(findings, lambda: print_lines(lines), findings.code)


def print_attacks(findings: Findings, written: Sequence[Path] = ()) -> None:
    """Print one row per attack, why others were skipped or judged fewer, what a reader has to know, and the files."""
    facts, rows = findings.facts, list[tuple[str, ...]]()
    title = f"{facts['method']} on {facts['data']}: {facts['num_members']:,} members, as many non-members"
    lines, notes = [], dict[str, None]()
    for outcome in findings.outcomes:
        name, result = outcome.attack.name, outcome.result
        if result is not None:
            rates = [
                "-" if rate is None else f"{rate:.2%}" if rate < 0.1 else f"{rate:.1%}"
                for rate in result.tpr_at_fpr.values()
            ]
            low, high = result.auc_interval
            precision = "-" if result.precision is None else f"{result.precision:.3f}"
            rows.append((name, f"{result.auc:.3f} [{low:.3f}, {high:.3f}]", precision, *rates))
            notes |= dict.fromkeys(result.notes)
        if outcome.skipped is not None:
            lines.append(f"skipped {name}: {outcome.skipped}")
        elif result is not None and result.num_members < facts["num_members"]:
            lines.append(f"{name} judged {result.num_members:,} of each")
    head = ("attack", "AUC", "prec.", "TPR 1%", "0.1%")  # fits 80 columns; the rest is in attack.json
    print_table(head, rows, title, frame=False)
    best = [] if findings.best is None else [str(findings.best)]
    print_lines([*best, *lines, *(f"note: {note}" for note in (*notes, *findings.notes)), *findings.lines()])
    if written:
        print(f"Curator only: {' and '.join(map(str, written))}")


def attack_run(path: Path, options: AttackOptions | None = None, progress: Progress = silent) -> Findings:
    """Attack a finished run; nothing is written but a trained reference generator, and what shadow generators show.

    Raises:
        InputError: If there is nothing to attack or to attack with, or the result could not be written; checked before
            anything is computed.
    """
    from idpgan.attacks import findings, knowledge, registry, run
    from idpgan.commands import attacked_run, shadow_runs
    from idpgan.models.checkpoint import is_classifier
    from idpgan.release.folder import check_output

    options, started, folder = options or AttackOptions(), time.monotonic(), RunFolder.open(path)
    check_output(folder.attack, findings.FORMAT, option="the result")
    check_writable(folder.attack)
    kind = "classifier" if is_classifier(path) else "generator"
    rows, device = registry.select_attacks(options.attacks, kind), resolve_device(options.device, "--device")
    if kind == "classifier" and given(options, "samples", "reference", "train_reference", "shadows", "riskiest"):
        raise InputError(
            f"{path} has released a classifier: --samples, --reference, --train-reference, --shadows and --riskiest "
            "are for generators."
        )
    target = attacked_run.open_run(folder, kind, options.data_root, device, progress)
    members, others, reference = knowledge.choose_members(target.split.existing(), options.most)
    generator, about = None, None
    if options.reference is not None:
        generator, about = attacked_run.other_generator(options.reference, members, others), str(options.reference)
    elif options.train_reference:
        generator, about = attacked_run.trained_generator(target, reference)
    makes = target.product.image_shape, target.product.classes
    if generator is not None and (generator.image_shape, generator.classes) != makes:
        raise InputError(f"The reference generator {about} makes images of another shape or other classes.")
    known = attacked_run.knowledge_of(target, rows, reference, generator, options.samples, options.seed)
    if options.shadows:
        num = len(known.needed("samples"))
        shadows = shadow_runs.train_shadows(target, members, others, reference, options.shadows, num)
        known = dataclasses.replace(known, shadows=shadows)
    result = run.attack(
        members,
        others,
        known,
        rows,
        riskiest=options.riskiest,
        most_costly=options.most_costly,
        confidence=options.confidence,
        device=device,
        progress=progress,
    )
    facts = {
        "run": str(folder.path),
        "method": target.config.method.name,
        "data": target.config.data.name,
        "num_members": len(members),
        "num_non_members": len(others),
        "num_private": target.split.num_private,
        "num_samples": 0 if known.samples is None else len(known.samples),
        "num_reference": len(reference),
        "reference_generator": about,
        "num_shadows": options.shadows,
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(device.type),
    }
    notes = (*findings.CAUTION, *attacked_run.notes_on(target, members, others, known))
    return dataclasses.replace(result, facts=facts, notes=notes, path=folder.attack).gated(options.limit)
