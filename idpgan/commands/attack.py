"""``idpgan attack``: every attack on a finished run's generator or classifier, members against non-members.

Members are the first n images of the private part, non-members the first n of the holdout, n being the size of the
smaller part (both parts come in the fixed random order of the split). The attacker may know the other images, the
*reference*: the test part and the rest of the holdout. With --members it attacks images that any tool has made
(`idpgan.commands.attack_images`), with --originals what was published (`idpgan.commands.reidentify`).

Everything here is computed with private images: attack.json and attack.png are for the curator only.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from idpgan.commands.attack_options import AttackOptions
from idpgan.commands.command import (
    Answer,
    command,
    given,
    kept,
    print_lines,
    print_table,
)
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.files import check_writable, write_private_json
from idpgan.host import own_state
from idpgan.progress import Progress, counted, silent
from idpgan.run import RunFolder, describe_environment

if TYPE_CHECKING:
    import torch

    from idpgan.attacks.attack import Attack, Knowledge, Membership
    from idpgan.data.images import Images
    from idpgan.data.load import Split
    from idpgan.models.generator import Generator
    from idpgan.models.private_classifier import PrivateClassifier
    from idpgan.report.attacked_images import AttackReport
    from idpgan.training.config import RunConfig

FOLDER = "reference"  # folder in the attacked run that keeps the trained reference generator
_LEAST_SAMPLES, _MOST_SAMPLES = 10_000, 60_000


@command
def attack(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|OUT|DIR|FILE.npz", help="A run with a holdout, a publication; --members: images."),
    ],
    options: AttackOptions,
    progress: Progress,
) -> Answer:
    """Attack a run, or images of any tool: can the images that were used be told from images that were not?

    Of a run, members are private images, non-members as many holdout images. Writes attack.json and attack.png (ROC
    curves, both axes logarithmic) into the run, for the curator only. With --members and --others the images may be
    anybody's, and the result is one page of words. Of a publication or an obfuscation, with --originals, people are
    named: who is on the released images? An attack that fails proves nothing.

    Exit code of --fail-above: 0 passed, 3 failed, 4 undecided since images are too few; bad input has 2 as ever.

    Example: idpgan attack runs/demo --attack nearest-sample --attack critic-score
    Example: idpgan attack synthetic.npz --members used/ --others unused/
    Example: idpgan attack published --originals faces
    """
    if options.originals is not None or (source / "curator" / "report.json").is_file():
        from idpgan.commands.reidentify import reidentify

        return reidentify(source, options, progress)
    if options.members is not None or options.others is not None:
        return _attack_images(source, options, progress)
    if source.is_file():
        raise InputError(f"{source} is a file, not a run. Say what its images were made from: --members, and --others.")
    report = attack_run(source, options, progress)
    with kept(report.to_json()):
        written = report.write()
    return Answer(report, lambda: print_attacks(report, written), report.code)


def _attack_images(synthetic: Path, options: AttackOptions, progress: Progress) -> Answer:
    """Attack a folder, an npz file or what draws images, with the members and others of the options."""
    from idpgan.commands import attack_images
    from idpgan.release.outputs import check_output
    from idpgan.report.attacked_images import FORMAT

    if options.members is None or options.others is None:
        raise InputError(
            "--members and --others go together: images that were used, and images of their kind that were not."
        )
    if unfit := given(options, "train_reference", "shadows", "data_root", "most_costly"):
        raise InputError(f"{unfit[0]} is for runs, and with --members only images are attacked. Leave it out.")
    sources = (synthetic, options.members, options.others, options.reference)
    if options.out is not None:
        check_output(options.out, FORMAT, list(filter(None, sources)))
        check_writable(options.out)
    resolve_device(options.device, "--device")
    names = ("most", "confidence", "seed", "pixel_range", "device", "riskiest")
    same: Any = {name: getattr(options, name) for name in names}
    samples = options.samples or attack_images.SAMPLES
    found = attack_images.attack(*sources, attacks=options.attacks, samples=samples, progress=progress, **same)
    found = found.gated(options.limit)
    lines = found.page()
    with kept(found.to_json()):
        if options.out is not None:
            write_private_json(options.out, found.to_json())
    return Answer(found, lambda: print_lines(lines), found.code)


def print_attacks(report: AttackReport, written: Sequence[Path] = ()) -> None:
    """Print one row per attack, why others were skipped or judged fewer, what a reader has to know, and the files."""
    facts, rows = report.facts, list[tuple[str, ...]]()
    title = f"{facts['method']} on {facts['data']}: {facts['num_members']:,} members, as many non-members"
    lines, notes = [], dict[str, None]()
    for found in report.outcomes:
        name, result = found.attack.name, found.result
        if result is not None:
            rates = [
                "-" if rate is None else f"{rate:.2%}" if rate < 0.1 else f"{rate:.1%}"
                for rate in result.tpr_at_fpr.values()
            ]
            low, high = result.auc_interval
            precision = "-" if result.precision is None else f"{result.precision:.3f}"
            rows.append((name, f"{result.auc:.3f} [{low:.3f}, {high:.3f}]", precision, *rates))
            notes |= dict.fromkeys(result.notes)
        if found.skipped is not None:
            lines.append(f"skipped {name}: {found.skipped}")
        elif result is not None and result.num_members < facts["num_members"]:
            lines.append(f"{name} judged {result.num_members:,} of each")
    head = ("attack", "AUC", "prec.", "TPR 1%", "0.1%")  # fits 80 columns; the rest is in attack.json
    print_table(head, rows, title, frame=False)
    best = [] if report.best is None else [str(report.best)]
    print_lines([*best, *lines, *(f"note: {note}" for note in (*notes, *report.notes)), *report.lines()])
    if written:
        print(f"Curator only: {' and '.join(map(str, written))}")


@own_state()
def attack_run(path: Path, options: AttackOptions | None = None, progress: Progress = silent) -> AttackReport:
    """Attack a finished run; nothing is written but a trained reference generator, and what shadow generators show.

    Raises:
        InputError: If there is nothing to attack or to attack with, or the result could not be written; checked before
            anything is computed.
    """
    from idpgan import attacks
    from idpgan.attacks.attack import best_of, choose_members
    from idpgan.attacks.riskiest import most_exposed
    from idpgan.attacks.shadow_runs import train_shadows
    from idpgan.commands.attack_images import expected_time
    from idpgan.models.checkpoint import is_classifier
    from idpgan.release.outputs import check_output
    from idpgan.report.attacked_images import CAUTION, FORMAT, AttackReport

    options, started, run = options or AttackOptions(), time.monotonic(), RunFolder.open(path)
    check_output(run.attack, FORMAT, option="the result")
    check_writable(run.attack)
    kind = "classifier" if is_classifier(path) else "generator"
    rows, device = attacks.select_attacks(options.attacks, kind), resolve_device(options.device, "--device")
    target = _open(run, kind, options, progress)
    images = choose_members(target.split.existing(), options.most)
    reference, about = _reference(target, images, options, progress)
    knowledge = _knowledge(target, rows, images, reference, options, device, progress)
    if options.shadows:
        asked: Any = {"shadows": options.shadows, "samples": len(knowledge.needed("samples"))}
        asked |= {"device": device, "progress": progress}
        shadows = train_shadows(run, target.config, target.split, images, _train_shadow, **asked)
        knowledge = dataclasses.replace(knowledge, shadows=shadows)
    judging: Any = {name: getattr(options, name) for name in ("most_costly", "confidence")}
    judging |= {"device": device, "progress": progress}
    if knowledge.samples is not None:
        long = expected_time(images, knowledge, device)
        progress("attacks", 0, len(rows), f"{long} at most to compare images, besides what is trained")
    judged = (attacks.run_attack(attack, knowledge, images, **judging) for attack in rows)
    outcomes = tuple(counted(judged, progress, "attacks", len(rows)))
    facts = {
        "run": str(run.path),
        "method": target.config.method.name,
        "data": target.config.data.name,
        "num_members": len(images.members),
        "num_non_members": len(images.non_members),
        "num_private": target.split.num_private,
        "num_samples": 0 if knowledge.samples is None else len(knowledge.samples),
        "num_reference": len(images.reference),
        "reference_generator": about,
        "num_shadows": options.shadows,
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(device.type),
    }
    notes = (*CAUTION, *_notes(target, images, knowledge))
    risky = most_exposed(images, knowledge.samples, outcomes, options.riskiest)
    report = AttackReport(run, outcomes, facts, notes, best_of(outcomes, options.confidence), riskiest=risky)
    return report.gated(options.limit)


def _notes(target: _Target, images: Membership, knowledge: Knowledge) -> Iterator[str]:
    """Yield what a reader has to know of these images."""
    if target.state is None:
        yield "without state/ it is not known that these data are the run's own"
    if images.people is not None:
        yield "intervals are those of people, by a cluster bootstrap"
    elif images.members.identities is not None:
        yield (
            "intervals take images for independent, but people are among members and non-members both: they are too "
            'narrow. Split people with data.split_by = "identity"'
        )
    private = set(target.split.existing().private.digests())
    if copies := sum(digest in private for digest in images.non_members.digests()):
        yield f"{copies:,} non-members are exact copies of private images, which makes every attack look weaker"
    if knowledge.shadows is not None:
        alone = len(knowledge.shadows.members)
        yield (
            f"shadow attacks judge the {alone} members and {alone} non-members that stand most alone, chosen before "
            "the attack"
        )


class _Target(NamedTuple):
    """What is attacked, with its data; `state` is None where the run has none left."""

    run: RunFolder
    config: RunConfig
    product: Generator | PrivateClassifier
    split: Split
    state: dict[str, Any] | None


def _open(run: RunFolder, kind: str, options: AttackOptions, progress: Progress) -> _Target:
    """Read the run under attack and its data, and refuse what does not belong together."""
    from idpgan.data.load import load_again
    from idpgan.models.checkpoint import WEIGHTS
    from idpgan.release.classifier import load_classifier
    from idpgan.release.generator import load_generator
    from idpgan.trainer import load_config, saved_state

    path, config, classifies = run.path, load_config(run.config, data_root=options.data_root), kind == "classifier"
    if not classifies and not (run.release / WEIGHTS).is_file():
        raise InputError(f"{path} is not finished: it has released nothing. Continue it with --resume.")
    if classifies and given(options, "samples", "reference", "train_reference", "shadows", "riskiest"):
        raise InputError(
            f"{path} has released a classifier: --samples, --reference, --train-reference, --shadows and --riskiest "
            "are for generators."
        )
    if config.data.holdout_share == 0:
        raise InputError(
            f"{path} has no holdout (data.holdout_share = 0), so there are no non-members to compare with. "
            "Train again with a holdout_share above 0."
        )
    product = load_classifier(path) if classifies else load_generator(path, _code(config))
    split, state = load_again(config.data, progress), saved_state(run)
    if state is not None and state["fingerprint"].get("private data") != split.digest:
        raise InputError(
            f"The private images of '{config.data.name}' are not those that {path} was trained on, so that members and "
            "non-members would be mixed up. Name the right files with --data-root."
        )
    return _Target(run, config, product, split, state)


def _reference(
    target: _Target, images: Membership, options: AttackOptions, progress: Progress
) -> tuple[Generator | None, str | None]:
    """Return the reference generator that was asked for, and which it is."""
    if options.reference is not None:
        generator, about = other_generator(options.reference, images), str(options.reference)
    elif options.train_reference:
        generator, about = trained_generator(target.run, target.config, target.split, images.reference, progress)
    else:
        return None, None
    makes = (target.product.image_shape, target.product.classes)
    if (generator.image_shape, generator.classes) != makes:
        raise InputError(f"The reference generator {about} makes images of another shape or other classes.")
    return generator, about


def _knowledge(
    target: _Target,
    rows: Sequence[Attack],
    images: Membership,
    reference: Generator | None,
    options: AttackOptions,
    device: torch.device,
    progress: Progress,
) -> Knowledge:
    """Gather what the attacks may use, and why the rest is not there."""
    from idpgan.attacks import losses, tracing
    from idpgan.attacks.attack import Knowledge, draw
    from idpgan.models.diffusion import DiffusionGenerator
    from idpgan.models.private_classifier import PrivateClassifier
    from idpgan.trainer import critic_of, method_of_run
    from idpgan.training.method import HasSums, NoCriticError

    classifies = isinstance(target.product, PrivateClassifier)
    least = losses.LEAST_REFERENCE if classifies else tracing.LEAST_REFERENCE
    known = images.reference.to(device) if len(images.reference) >= least else None
    too_few = f"{len(images.reference)} reference images are too few: {least} are needed"
    if isinstance(target.product, PrivateClassifier):  # its logits, and images that are neither members nor non-members
        logits = target.product.to(device).logits
        return Knowledge(classifier=logits, reference=known, seed=options.seed, why_not={"reference": too_few})
    no_reference = "no reference generator: give --reference RUN or --train-reference"
    why_not = {
        "sample_labels": "the generator is unconditional: its images have no labels to train a classifier with",
        "shadows": "no shadow generators: give --shadows K",
        "teacher": "no classifier was released with this generator",
        "denoiser": "this generator does not draw by diffusion",
        "sums": "this method releases no sums of features, or the run's state/ is not there, which says how they were "
        "made",
        "reference": too_few,
        "reference_samples": no_reference,
        "reference_generator": no_reference,
    }
    num = options.samples or min(max(target.split.num_private, _LEAST_SAMPLES), _MOST_SAMPLES)
    generator = target.product.to(device)
    samples = draw(generator, num, options.seed, progress, "generated images")
    critic = sums = None
    if any({"critic", "sums"} & set(attack.needs) for attack in rows):
        try:
            method = method_of_run(target.config, target.split, target.state, device)
            sums = method.released_sums if isinstance(method, HasSums) else None
            critic = critic_of(method)
        except NoCriticError as reason:
            why_not["critic"] = str(reason)
    reference_samples = None
    if reference is not None:
        reference = reference.to(device)
        reference_samples = draw(reference, num, options.seed + 1, progress, "reference images")
    return Knowledge(
        samples=samples,
        generator=generator,
        critic=critic,
        denoiser=generator.denoising_loss if isinstance(generator, DiffusionGenerator) else None,
        teacher=None if generator.teacher is None else generator.teacher.to(device).logits,
        sums=sums,
        reference=known,
        reference_samples=reference_samples,
        reference_generator=reference,
        seed=options.seed,
        why_not=why_not,
    )


def _train_shadow(config: RunConfig, split: Split, progress: Progress) -> Generator:
    """Train a shadow, and return what the run would have released: with its teacher, if it has one."""
    from idpgan import trainer

    generator: Generator = trainer.train_on(config, split, progress).artifact(config.release).generator
    return generator.eval()


# The reference generator -----------------------------------------------------------------------------------------
# It shows which images are ordinary, so that scores can be calibrated, and must know neither members nor non-members.
# It comes from another run, or is trained on the test part and the rest of the holdout (at most as many images as are
# private) by the attacked run's own config with another seed; so the holdout need not be halved.


def other_generator(path: Path, images: Membership) -> Generator:
    """Load the generator of another finished run; refuse one that was trained on the images under attack."""
    from idpgan.data.load import load_again
    from idpgan.release.generator import load_generator
    from idpgan.trainer import load_config

    other = load_config(RunFolder.open(path).config)
    trained_on = load_again(other.data).private.existing()
    known = set(trained_on.digests())
    judged = (images.members, images.non_members)
    shared = [sum(digest in known for digest in part.digests()) for part in judged]
    if sum(shared) > 0.01 * sum(map(len, judged)):  # synthetic or tiny images may be equal by chance
        raise InputError(
            f"--reference {path} was trained on {shared[0]} of the {len(judged[0])} members and {shared[1]} of the "
            f"{len(judged[1])} non-members, so that it cannot tell what is ordinary. Use --train-reference, or a run "
            "on other images."
        )
    return load_generator(path, _code(other))


def _code(config: RunConfig) -> str | None:
    """Return the path of the user's generator in the config of the user's run; None for one of ours."""
    return config.model.generator if config.model.generator in config.own_code else None


def trained_generator(
    run: RunFolder, config: RunConfig, split: Split, reference: Images, progress: Progress = silent
) -> tuple[Generator, str]:
    """Train a reference generator, or load the one that an earlier attack left in the run's ``reference/``.

    Its ledger has no target, since the reference generator is for the curator only. Of the data of the run under attack
    only the public part and the sizes are used; of ``reference``, in its order, at most as many images as are private.
    The seed is one more than the run's.

    Returns:
        The averaged generator, in eval mode, and a clause about it.

    Raises:
        InputError: If config and images do not fit, or the training was interrupted.
    """
    import torch

    from idpgan import trainer
    from idpgan.models import checkpoint

    chosen = reference.to("cpu").select(torch.arange(min(len(reference), split.num_private)))
    training = config.training.model_copy(update={"seed": config.training.seed + 1})
    config, folder = config.model_copy(update={"training": training}), run.path / FOLDER
    about = f"trained by the same config on {len(chosen):,} images of the test part and the holdout"
    identity = {"config": config.identity(), "images": chosen.digest()}
    if (folder / checkpoint.CONFIG).is_file():
        saved = json.loads((folder / checkpoint.CONFIG).read_text(encoding="utf-8"))
        if saved.get("reference") == identity:
            return checkpoint.load_generator(folder, _code(config)), about
    method = trainer.train_on(config, dataclasses.replace(split, private=chosen), progress)
    generator = cast("Generator", method.product).eval()
    checkpoint.save_generator(folder, generator, extra={"reference": identity, "curator_only": True})
    return generator, about
