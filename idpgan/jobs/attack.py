"""``idpgan attack``: every attack on a finished run's generator, members against non-members.

Members are the first n images of the private part, non-members the first n of the holdout, n being the size of the
smaller part (both parts come in the fixed random order of the split). Whatever an attacker may know besides, the
*reference*, must be neither: the test part and the rest of the holdout. A reference generator is trained on these, at
most as many as there are private images, by the run's own config with another seed. So the holdout need not be halved.

Everything here is computed with private images: attack.json and attack.png are for the curator only.
"""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan import jobs
from idpgan.attacks import Attack, AttackResult, Knowledge, evaluate_scores, roc_curve, select_attacks
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, write_bytes_atomic, write_text_atomic
from idpgan.jobs.critics import NoCriticError, critic_of_run, saved_state
from idpgan.models.checkpoint import CONFIG, WEIGHTS, load_generator, save_generator
from idpgan.models.generator import Generator
from idpgan.run import RunFolder, describe_environment
from idpgan.training.config import RunConfig
from idpgan.training.method import resolve_device
from idpgan.training.progress import Progress as TrainingProgress

FORMAT = "idpgan attack 1"
CAUTION = (
    "computed with private images: for the curator only, covered by no epsilon",
    "an attack that fails proves nothing: stronger ones may succeed; the guarantee is the proven epsilon",
)
Progress = Callable[[str, int, int], None]  # called with (what is done, done, in all)
_LEAST_SAMPLES, _MOST_SAMPLES = 10_000, 60_000
_REFERENCE = "reference"  # folder of the run that keeps a trained reference generator


@dataclass(frozen=True)
class Options:
    """How to attack.

    Attributes:
        attacks: Names, or "all".
        samples: Generated images; None is the number of private ones, at least 10,000 and at most 60,000.
        most: Members (and non-members) judged at most.
        most_costly: The same for attacks that optimize for each image.
        reference: A finished run on other images whose generator calibrates; None is none.
        train_reference: Whether to train one, or take the one that an earlier attack has trained.
        device: "auto", "cpu" or "cuda".
        seed: Of generated images and attacks.
        confidence: Of each interval.
        data_root: Where the data set lies now; None is where it lay.
    """

    attacks: tuple[str, ...] = ("all",)
    samples: int | None = None
    most: int = 10_000
    most_costly: int = 1_000
    reference: Path | None = None
    train_reference: bool = False
    device: str = "auto"
    seed: int = 0
    confidence: float = 0.95
    data_root: Path | None = None


@dataclass(frozen=True)
class Row:
    """What one attack came to.

    Attributes:
        attack: Which.
        result: None if it was skipped.
        skipped: Why it was.
        seconds: What it took.
        scores: Of members and of non-members, (n,) each, float32 on the CPU; None if it was skipped.
    """

    attack: Attack
    result: AttackResult | None
    skipped: str | None
    seconds: float
    scores: tuple[Tensor, Tensor] | None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        facts = {"access": self.attack.access, "paper": self.attack.paper, "seconds": round(self.seconds, 2)}
        return {**facts, "skipped": self.skipped, **(self.result.to_json() if self.result else {})}


@dataclass(frozen=True)
class Attacked:
    """A run under attack.

    Attributes:
        run: Its folder.
        rows: One per attack.
        facts: What was compared with what, JSON values.
        notes: What a reader has to know.
    """

    run: RunFolder
    rows: tuple[Row, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        attacks = {row.attack.name: row.to_json() for row in self.rows}
        return {"format": FORMAT, "curator_only": True, **self.facts, "attacks": attacks, "notes": list(self.notes)}


def attack_run(
    path: Path,
    options: Options | None = None,
    progress: Progress | None = None,
    training_progress: TrainingProgress | None = None,
) -> Attacked:
    """Attack a finished run; nothing is written but a trained reference generator.

    Args:
        path: The run.
        options: None is ``Options()``.
        progress: Called now and then.
        training_progress: Shows the training of a reference generator.

    Raises:
        InputError: If there is nothing to attack or to attack with; found out before anything is computed.
    """
    options = options or Options()
    attacks = select_attacks(options.attacks)
    _check(options)
    run, started = RunFolder.open(path), time.monotonic()
    overrides = [] if options.data_root is None else [f"data.root={json.dumps(str(options.data_root))}"]
    config = jobs.load_config(run.config, overrides)
    if not (run.release / WEIGHTS).is_file():
        raise InputError(f"{path} is not finished: it has released no generator. Continue it with --resume.")
    if config.data.holdout_share == 0:
        raise InputError(
            f"{path} has no holdout (data.holdout_share = 0), so there are no non-members to compare with. "
            "Train again with a holdout_share above 0."
        )
    generator, device = load_generator(run.path), resolve_device(options.device)
    split, state = load(config.data), saved_state(run)
    if state is not None and state["fingerprint"].get("private data") != split.digest:
        raise InputError(
            f"The private images of '{config.data.name}' are not those that {path} was trained on, so that members and "
            "non-members would be mixed up. Name the right files with --data-root."
        )
    members, others, reference = deal(split.existing(), options.most)
    knowledge = Knowledge(reference=reference.to(device), seed=options.seed)
    knowledge = _with_generator(knowledge, generator.to(device), split, options, progress)
    knowledge = _with_critic(knowledge, attacks, config, split, state, device)
    knowledge, about = _with_reference(
        knowledge, run, config, split, options, (members, others), progress, training_progress
    )
    rows = tuple(_play(attack, knowledge, members, others, options, device, progress) for attack in attacks)
    facts = {
        "run": str(run.path),
        "method": config.method.name,
        "data": config.data.name,
        "num_members": len(members),
        "num_non_members": len(others),
        "num_private": split.num_private,
        "num_samples": len(knowledge.needed("samples")),
        "num_reference": len(reference),
        "reference_generator": about,
        "seconds": round(time.monotonic() - started, 1),
        "environment": describe_environment(device.type),
    }
    unchecked = () if state is not None else ("without state/ it is not known that these data are the run's own",)
    return Attacked(run, rows, facts, (*CAUTION, *unchecked))


def write_attack(attacked: Attacked) -> tuple[Path, Path]:
    """Write attack.json and attack.png (ROC curves, log-log) into the run; return where."""
    image = attacked.run.attack.with_suffix(".png")
    write_text_atomic(
        attacked.run.attack, json.dumps(attacked.to_json(), indent=2, allow_nan=False) + "\n", mode=PRIVATE_FILE
    )
    write_bytes_atomic(image, roc_png(attacked.rows), mode=PRIVATE_FILE)
    return attacked.run.attack, image


def roc_png(rows: Sequence[Row]) -> bytes:
    """Draw the ROC curves of all attacks that were run, both axes logarithmic: the left end is what matters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    played = [row for row in rows if row.scores is not None and row.result is not None]
    floor = 0.5 / max([row.result.num_members for row in played if row.result] or [50])
    for row in played:
        if row.scores is not None and row.result is not None:
            false, true = roc_curve(*row.scores)
            axes.step(
                false.clip(floor), true.clip(floor), where="post", label=f"{row.attack.name} {row.result.auc:.3f}"
            )
    axes.plot([floor, 1], [floor, 1], color="grey", linestyle=":", label="a guess 0.500")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="Membership inference: AUC")
    axes.legend(fontsize="small", loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def deal(split: Split, most: int) -> tuple[Images, Images, Images]:
    """Return members, as many non-members, and reference images: the test part and the rest of the holdout."""
    num = min(split.num_private, len(split.holdout), most)
    if num < 2:
        raise InputError(
            f"{split.num_private} private and {len(split.holdout)} holdout images: 2 of each are needed to attack."
        )
    members, others = split.private.select(torch.arange(num)), split.holdout.select(torch.arange(num))
    return members, others, _joined(split.test, split.holdout.select(torch.arange(num, len(split.holdout))))


def _joined(*parts: Images) -> Images:
    """Return one set of images and labels."""
    labels = [part.labels for part in parts if part.labels is not None]
    return Images(torch.cat([part.images for part in parts]), torch.cat(labels) if labels else None, parts[0].classes)


def _check(options: Options) -> None:
    """Refuse numbers that cannot be meant."""
    samples = 3 if options.samples is None else options.samples
    for name, number, least in (
        ("--samples", samples, 3),
        ("--most", options.most, 2),
        ("--most-costly", options.most_costly, 2),
    ):
        if number < least:
            raise InputError(f"{name} {number} must be at least {least}.")
    if options.reference is not None and options.train_reference:
        raise InputError("--reference and --train-reference exclude each other: take one of them.")


def _with_generator(
    knowledge: Knowledge, generator: Generator, split: Split, options: Options, progress: Progress | None
) -> Knowledge:
    """Add generator and samples."""
    num = options.samples or min(max(split.num_private, _LEAST_SAMPLES), _MOST_SAMPLES)
    samples = _sample(generator, num, options.seed, knowledge, progress, "generated images")
    why = {"sample_labels": "the generator is unconditional: its images have no labels to train a classifier with"}
    return dataclasses.replace(knowledge, generator=generator, samples=samples, why_not=why)


def _sample(
    generator: Generator, num: int, seed: int, knowledge: Knowledge, progress: Progress | None, what: str
) -> Images:
    """Draw labeled images, on the device of the attack."""
    told = None if progress is None else lambda done, total: progress(what, done, total)
    pixels = generator.sample(num, seed=seed, progress=told)
    if not bool(pixels.isfinite().all()):
        raise InputError(f"{what}: the generator makes NaN pixels, its training diverged.")
    images = Images(to_uint8(pixels), generator.sample_labels(num), generator.classes)
    return images.to(knowledge.needed("reference").images.device)


def _with_critic(
    knowledge: Knowledge,
    attacks: Sequence[Attack],
    config: RunConfig,
    split: Split,
    state: dict[str, Any] | None,
    device: torch.device,
) -> Knowledge:
    """Add the critic, if an attack wants it and the run has it."""
    if not any("critic" in attack.needs for attack in attacks):
        return knowledge
    try:
        return dataclasses.replace(knowledge, critic=critic_of_run(config, split, state, device))
    except NoCriticError as reason:
        return dataclasses.replace(knowledge, why_not={**knowledge.why_not, "critic": str(reason)})


def _with_reference(
    knowledge: Knowledge,
    run: RunFolder,
    config: RunConfig,
    split: Split,
    options: Options,
    judged: tuple[Images, Images],
    progress: Progress | None,
    training_progress: TrainingProgress | None,
) -> tuple[Knowledge, str | None]:
    """Add the reference generator that was asked for, and say which it is."""
    if options.reference is not None:
        generator, about = _other_run(options.reference, judged), str(options.reference)
    elif options.train_reference:
        generator, about = trained_reference(run, config, split, knowledge.needed("reference"), training_progress)
    else:
        why = "no reference generator: give --reference RUN or --train-reference"
        reasons = {"reference_samples": why, "reference_generator": why}
        return dataclasses.replace(knowledge, why_not={**knowledge.why_not, **reasons}), None
    target = knowledge.generator
    if target is None or (generator.image_shape, generator.classes) != (target.image_shape, target.classes):
        raise InputError(f"The reference generator {about} makes images of another shape or other classes.")
    generator = generator.to(knowledge.needed("samples").images.device)
    samples = _sample(
        generator, len(knowledge.needed("samples")), options.seed + 1, knowledge, progress, "reference images"
    )
    return dataclasses.replace(knowledge, reference_generator=generator, reference_samples=samples), about


def _other_run(path: Path, judged: tuple[Images, Images]) -> Generator:
    """Load the generator of another run, which must not have been trained on the images under attack."""
    other = RunFolder.open(path)
    trained_on = load(jobs.load_config(other.config).data).private.existing()
    known = {image.tobytes() for image in trained_on.images.cpu().numpy()}
    shared = [sum(image.tobytes() in known for image in part.images.cpu().numpy()) for part in judged]
    if sum(shared) > 0.01 * sum(map(len, judged)):  # drawn or tiny images may be equal by chance
        raise InputError(
            f"--reference {path} was trained on {shared[0]} of the {len(judged[0])} members and {shared[1]} of the "
            f"{len(judged[1])} non-members, so that it cannot tell what is ordinary. Use --train-reference, or a run "
            "on other images."
        )
    return load_generator(path)


def trained_reference(
    run: RunFolder, config: RunConfig, split: Split, reference: Images, progress: TrainingProgress | None
) -> tuple[Generator, str]:
    """Train a reference generator, or load the one that an earlier attack left in the run's ``reference/``.

    Args:
        run: The run under attack.
        config: Its config; the seed is one more.
        split: Its data, of which only the public part and the sizes are used.
        reference: Images to train on, in this order; at most as many as are private.
        progress: What to show.

    Returns:
        The generator, and a clause about it.
    """
    chosen = reference.to("cpu").select(torch.arange(min(len(reference), split.num_private)))
    training = config.training.model_copy(update={"seed": config.training.seed + 1})
    config, folder = config.model_copy(update={"training": training}), run.path / _REFERENCE
    about = f"trained by the same config on {len(chosen):,} images of the test part and the holdout"
    identity = {"config": config.identity(), "images": chosen.digest()}
    if (folder / CONFIG).is_file():
        saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if saved.get("reference") == identity:
            return load_generator(folder), about
    generator = jobs.train_reference(config, dataclasses.replace(split, private=chosen), progress)
    save_generator(folder, generator, extra={"reference": identity, "curator_only": True})
    return generator, about


def _play(
    attack: Attack,
    knowledge: Knowledge,
    members: Images,
    others: Images,
    options: Options,
    device: torch.device,
    progress: Progress | None,
) -> Row:
    """Run one attack, or say why not."""
    reason = attack.missing(knowledge)
    if reason is not None:
        return Row(attack, None, reason, 0.0, None)
    started = time.monotonic()
    num = min(len(members), options.most_costly) if attack.costly else len(members)
    index = torch.arange(num)
    judged = _joined(members.select(index), others.select(index)).to(device)
    told = None if progress is None else lambda done, total: progress(attack.name, done, total)
    scores = attack.score(knowledge, judged, told).float().cpu()
    result = evaluate_scores(scores[:num], scores[num:], confidence=options.confidence)
    return Row(attack, result, None, time.monotonic() - started, (scores[:num], scores[num:]))
