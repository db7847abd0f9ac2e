"""``idpgan attack``: every attack on a finished run's generator or classifier, members against non-members.

Members are the first n images of the private part, non-members the first n of the holdout, n being the size of the
smaller part (both parts come in the fixed random order of the split). The attacker may know the other images, the
*reference*: the test part and the rest of the holdout.

Everything here is computed with private images: attack.json and attack.png are for the curator only.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError

from idpgan.attacks.attack import Attack, Knowledge, Membership, Outcome, choose_members, draw, roc_png, run_attack
from idpgan.attacks.best import Best, best_of
from idpgan.attacks.losses import LEAST_REFERENCE
from idpgan.attacks.registry import select_attacks
from idpgan.attacks.shadows import Shadows
from idpgan.attacks.tracing import LEAST_REFERENCE as LEAST_TO_TRACE
from idpgan.data.images import Images
from idpgan.data.load import Split, load
from idpgan.device import resolve_device
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, check_writable, write_bytes_atomic, write_private_json
from idpgan.host import own_state
from idpgan.jobs.options import AttackOptions, given
from idpgan.jobs.shadows import train_shadows
from idpgan.models import checkpoint
from idpgan.models.checkpoint import CONFIG, WEIGHTS, is_classifier, save_generator
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy.ledger import Ledger
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks
from idpgan.release.classifier import load_classifier
from idpgan.release.generator import load_generator
from idpgan.release.outputs import check_output
from idpgan.report.attacked_images import FORMAT
from idpgan.run import RunFolder, describe_environment
from idpgan.trainer import load_config, train_on
from idpgan.training.config import RunConfig, at_root, load_method
from idpgan.training.distributed import check_own_gpu
from idpgan.training.method import CriticScores, HasCritic, HasSums, Method, NoCriticError
from idpgan.training.plan import plan_run

FOLDER = "reference"  # folder in the attacked run that keeps the trained reference generator
CAUTION = (
    "computed with private images: for the curator only, covered by no epsilon",
    "an attack that fails proves nothing: stronger ones may succeed; the guarantee is the proven epsilon",
)
_LEAST_SAMPLES, _MOST_SAMPLES = 10_000, 60_000
_UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError)
_UNLABELED = "the generator is unconditional: its images have no labels to train a classifier with"
_UNCHECKED = "without state/ it is not known that these data are the run's own"
_INDEPENDENT = (
    "intervals take images for independent, but people are among members and non-members both: they are too narrow. "
    'Split people with data.split_by = "identity"'
)
_COPIES = "{:,} non-members are exact copies of private images, which makes every attack look weaker"
_EXPOSED = "shadow attacks judge the {0} members and {0} non-members that stand most alone, chosen before the attack"
_NO_SHADOWS = "no shadow generators: give --shadows K"
_NO_TEACHER = "no classifier was released with this generator"
_NO_DENOISER = "this generator does not draw by diffusion"
_NO_SUMS = "this method releases no sums of features, or the run's state/ is not there, which says how they were made"
_NO_REFERENCE = "no reference generator: give --reference RUN or --train-reference"


@dataclass(frozen=True)
class AttackReport:
    """The results of the attacks on a run.

    Attributes:
        facts: JSON values that say what was compared with what.
        best: The strongest attack, corrected for having been chosen; None if none was run.
    """

    run: RunFolder
    outcomes: tuple[Outcome, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]
    best: Best | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of attack.json."""
        attacks = {found.attack.name: found.to_json() for found in self.outcomes}
        best = None if self.best is None else self.best.to_json()
        head = {"format": FORMAT, "curator_only": True, **self.facts, "best": best}
        return {**head, "attacks": attacks, "notes": list(self.notes)}


@own_state()
def attack_run(
    path: Path, options: AttackOptions | None = None, progress: Progress = silent, ranks: Ranks = ALONE
) -> AttackReport:
    """Attack a finished run; nothing is written but a trained reference generator, and what shadow generators show.

    ``ranks`` are the processes that share the distances, seen by rank 0; the others `follow`.

    Raises:
        InputError: If there is nothing to attack or to attack with, or the result could not be written; checked before
            anything is computed.
        LostRankError: If another process ends.
    """
    options, started, run = options or AttackOptions(), time.monotonic(), RunFolder.open(path)
    check_output(run.attack, FORMAT, option="the result")
    check_writable(run.attack)
    kind = "classifier" if is_classifier(path) else "generator"
    attacks, device = select_attacks(options.attacks, kind), resolve_device(options.device, "--device")
    check_own_gpu(device, ranks)
    target = _open(run, kind, options, progress)
    images = choose_members(target.split.existing(), options.most)
    reference, about = _reference(target, images, options, progress)
    knowledge = _knowledge(target, attacks, images, reference, options, device, progress)
    if options.shadows:
        shadows = _shadows(target, images, knowledge, options, device, progress)
        knowledge = dataclasses.replace(knowledge, shadows=shadows)
    knowledge = dataclasses.replace(knowledge, ranks=ranks)
    judging: dict[str, Any] = {"most_costly": options.most_costly, "confidence": options.confidence}
    outcomes = tuple(
        run_attack(attack, knowledge, images, **judging, device=device, progress=progress) for attack in attacks
    )
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
    notes = [*CAUTION, *[_UNCHECKED] * (target.state is None)]
    if images.members.identities is not None:
        notes.append(_INDEPENDENT if images.people is None else "intervals are those of people, by a cluster bootstrap")
    private = set(target.split.existing().private.digests())
    if copies := sum(digest in private for digest in images.non_members.digests()):
        notes.append(_COPIES.format(copies))
    if knowledge.shadows is not None:
        notes.append(_EXPOSED.format(len(knowledge.shadows.members)))
    return AttackReport(run, outcomes, facts, tuple(notes), best_of(outcomes, options.confidence))


def write_attack(report: AttackReport) -> tuple[Path, Path]:
    """Write attack.json and attack.png (ROC curves, log-log) into the run; return where."""
    path, picture = report.run.attack, report.run.attack.with_suffix(".png")
    write_private_json(path, report.to_json())
    write_bytes_atomic(picture, roc_png(report.outcomes), mode=PRIVATE_FILE)
    return path, picture


class _Target(NamedTuple):
    """What is attacked, with its data; `state` is None where the run has none left."""

    run: RunFolder
    config: RunConfig
    product: Generator | PrivateClassifier
    split: Split
    state: dict[str, Any] | None


def _open(run: RunFolder, kind: str, options: AttackOptions, progress: Progress) -> _Target:
    """Read the run under attack and its data, and refuse what does not belong together."""
    path, config, classifies = run.path, load_config(run.config, at_root(options.data_root)), kind == "classifier"
    if not classifies and not (run.release / WEIGHTS).is_file():
        raise InputError(f"{path} is not finished: it has released nothing. Continue it with --resume.")
    if classifies and given(options, "samples", "reference", "train_reference", "shadows"):
        raise InputError(
            f"{path} has released a classifier: --samples, --reference, --train-reference and --shadows are for "
            "generators."
        )
    if config.data.holdout_share == 0:
        raise InputError(
            f"{path} has no holdout (data.holdout_share = 0), so there are no non-members to compare with. "
            "Train again with a holdout_share above 0."
        )
    product = load_classifier(path) if classifies else load_generator(path, _code(config))
    split, state = load(config.data, progress), saved_state(run)
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
    attacks: Sequence[Attack],
    images: Membership,
    reference: Generator | None,
    options: AttackOptions,
    device: torch.device,
    progress: Progress,
) -> Knowledge:
    """Gather what the attacks may use, and why the rest is not there."""
    if isinstance(target.product, PrivateClassifier):  # its logits, and images that are neither members nor non-members
        few = len(images.reference) < LEAST_REFERENCE
        too_few = f"{len(images.reference)} reference images are too few: {LEAST_REFERENCE} are needed"
        return Knowledge(
            classifier=target.product.to(device).logits,
            reference=None if few else images.reference.to(device),
            seed=options.seed,
            why_not={"reference": too_few},
        )
    generator, critic = target.product.to(device), None
    why_not = {"sample_labels": _UNLABELED, "shadows": _NO_SHADOWS, "teacher": _NO_TEACHER, "sums": _NO_SUMS}
    why_not["denoiser"] = _NO_DENOISER
    why_not["reference"] = f"{len(images.reference)} reference images are too few: {LEAST_TO_TRACE} are needed"
    num = options.samples or min(max(target.split.num_private, _LEAST_SAMPLES), _MOST_SAMPLES)
    samples = draw(generator, num, options.seed, progress, "generated images")
    sums, teacher = None, None if generator.teacher is None else generator.teacher.to(device).logits
    if any({"critic", "sums"} & set(attack.needs) for attack in attacks):
        try:
            method = method_of_run(target.config, target.split, target.state, device)
            sums = method.released_sums if isinstance(method, HasSums) else None
            critic = critic_of(method)
        except NoCriticError as reason:
            why_not["critic"] = str(reason)
    reference_samples = None
    if reference is None:
        why_not |= dict.fromkeys(("reference_samples", "reference_generator"), _NO_REFERENCE)
    else:
        reference = reference.to(device)
        reference_samples = draw(reference, num, options.seed + 1, progress, "reference images")
    return Knowledge(
        samples=samples,
        generator=generator,
        critic=critic,
        denoiser=generator.denoising_loss if isinstance(generator, DiffusionGenerator) else None,
        teacher=teacher,
        sums=sums,
        reference=images.reference.to(device) if len(images.reference) >= LEAST_TO_TRACE else None,
        reference_samples=reference_samples,
        reference_generator=reference,
        seed=options.seed,
        why_not=why_not,
    )


def _shadows(
    target: _Target,
    images: Membership,
    knowledge: Knowledge,
    options: AttackOptions,
    device: torch.device,
    progress: Progress,
) -> Shadows:
    """Return what shadow generators of the run show; they draw as many images as the target did."""
    return train_shadows(
        target.run,
        target.config,
        target.split,
        images,
        shadows=options.shadows,
        samples=len(knowledge.needed("samples")),
        device=device,
        progress=progress,
    )


# The reference generator -----------------------------------------------------------------------------------------
# It shows which images are ordinary, so that scores can be calibrated, and must know neither members nor non-members.
# It comes from another run, or is trained on the test part and the rest of the holdout (at most as many images as are
# private) by the attacked run's own config with another seed; so the holdout need not be halved.


def other_generator(path: Path, images: Membership) -> Generator:
    """Load the generator of another finished run; refuse one that was trained on the images under attack."""
    other = load_config(RunFolder.open(path).config)
    trained_on = load(other.data).private.existing()
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
    chosen = reference.to("cpu").select(torch.arange(min(len(reference), split.num_private)))
    training = config.training.model_copy(update={"seed": config.training.seed + 1})
    config, folder = config.model_copy(update={"training": training}), run.path / FOLDER
    about = f"trained by the same config on {len(chosen):,} images of the test part and the holdout"
    identity = {"config": config.identity(), "images": chosen.digest()}
    if (folder / CONFIG).is_file():
        saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if saved.get("reference") == identity:
            return checkpoint.load_generator(folder, _code(config)), about
    method = train_on(config, dataclasses.replace(split, private=chosen), progress)
    generator = cast(Generator, method.product).eval()
    save_generator(folder, generator, extra={"reference": identity, "curator_only": True})
    return generator, about


# The method of a finished run, for an attacker with the curator's access -------------------------------------------


def saved_state(run: RunFolder) -> dict[str, Any] | None:
    """Read a run's state, tensors on the CPU; None for a copy without state/. A damaged one is refused."""
    if not run.state.is_file():
        return None
    try:
        content = torch.load(run.state, map_location="cpu", weights_only=True)
        state, fingerprint = dict(content["method"]), content["fingerprint"]
        if content["prepared"] is not None:
            from safetensors.torch import load_file

            state["prepared"] = load_file(run.prepared)
    except _UNREADABLE as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(f"{run.state_dir} cannot be read ({reason}). Restore it from a copy, or remove it.") from error
    return {"method": state, "fingerprint": fingerprint}


def method_of_run(config: RunConfig, split: Split, state: dict[str, Any] | None, device: torch.device) -> Method:
    """Build a run's method again, as it was when its training ended.

    ``state`` is what `saved_state` returned; the method wants to see the shapes of ``split``.

    Raises:
        NoCriticError: If the state is not there, or was written by another version.
    """
    if state is None:
        raise NoCriticError("the run's state/ is not there, which holds the critic")
    plan = plan_run(config, split.shape)
    ledger = Ledger(plan.unit, plan.relation)  # never charged: the method is built only to be asked
    method: Method = load_method(config.method.name)(plan, split, ledger=ledger, device=device)
    try:
        method.load_state(state["method"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise NoCriticError("the run's state/ was written by another version of idpgan") from error
    return method


def critic_of(method: Method) -> CriticScores:
    """Return how real a method's critic finds images; `NoCriticError` if the critic does not see single images."""
    if not isinstance(method, HasCritic):
        raise NoCriticError("this method's critic does not score images")
    return method.critic_scores
