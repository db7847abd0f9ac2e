"""What the attacker of a run has: the run's parts, opened and checked, and `Knowledge` made of them.

A reference generator shows which images are ordinary, so that scores can be calibrated, and must know neither members
nor non-members. It comes from another run, or is trained on the test part and the rest of the holdout (at most as many
images as are private) by the attacked run's own config with another seed; so the holdout need not be halved.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from idpgan import trainer
from idpgan.attacks import knowledge, losses, membership
from idpgan.attacks.knowledge import Attack, Knowledge
from idpgan.data.images import Images
from idpgan.data.load import Split, load_again
from idpgan.errors import InputError
from idpgan.files import CONFIG, WEIGHTS
from idpgan.models import checkpoint
from idpgan.models.diffusion import DiffusionGenerator
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.progress import Progress
from idpgan.release.classifier import load_classifier
from idpgan.release.generator import load_generator
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig
from idpgan.training.method import HasSums, NoCriticError

FOLDER = "reference"  # folder in the attacked run that keeps the trained reference generator
_LEAST_SAMPLES, _MOST_SAMPLES = 10_000, 60_000


class Target(NamedTuple):
    """What is attacked, with its data; `state` is None where the run has none left.

    Attributes:
        device: Where images are drawn and compared.
        progress: Told how far the work is.
    """

    run: RunFolder
    config: RunConfig
    product: Generator | PrivateClassifier
    split: Split
    state: dict[str, Any] | None
    device: torch.device
    progress: Progress


def open_run(run: RunFolder, kind: str, data_root: Path | None, device: torch.device, progress: Progress) -> Target:
    """Read the run under attack and its data, and refuse what does not belong together."""
    path, config = run.path, trainer.load_config(run.config, data_root=data_root)
    if kind == "generator" and not (run.release / WEIGHTS).is_file():
        raise InputError(f"{path} is not finished: it has released nothing. Continue it with --resume.")
    if config.data.holdout_share == 0:
        raise InputError(
            f"{path} has no holdout (data.holdout_share = 0), so there are no non-members to compare with. "
            "Train again with a holdout_share above 0."
        )
    product = load_classifier(path) if kind == "classifier" else load_generator(path, _code(config))
    split, state = load_again(config.data, progress), trainer.saved_state(run)
    if state is not None and state["fingerprint"].get("private data") != split.digest:
        raise InputError(
            f"The private images of '{config.data.name}' are not those that {path} was trained on, so that members and "
            "non-members would be mixed up. Name the right files with --data-root."
        )
    return Target(run, config, product, split, state, device, progress)


def notes_on(target: Target, members: Images, others: Images, known: Knowledge) -> Iterator[str]:
    """Yield what a reader has to know of these images."""
    if target.state is None:
        yield "without state/ it is not known that these data are the run's own"
    if knowledge.people_of(members, others) is not None:
        yield "intervals are those of people, by a cluster bootstrap"
    elif members.identities is not None:
        yield (
            "intervals take images for independent, but people are among members and non-members both: they are too "
            'narrow. Split people with data.split_by = "identity"'
        )
    private = set(target.split.existing().private.digests())
    if copies := sum(digest in private for digest in others.digests()):
        yield f"{copies:,} non-members are exact copies of private images, which makes every attack look weaker"
    if known.shadows is not None:
        alone = len(known.shadows.members)
        yield (
            f"shadow attacks judge the {alone} members and {alone} non-members that stand most alone, chosen before "
            "the attack"
        )


def knowledge_of(
    target: Target,
    rows: Sequence[Attack],
    reference: Images,
    generator: Generator | None,
    samples: int | None,
    seed: int,
) -> Knowledge:
    """Gather what the attacks may use, and why the rest is not there.

    Args:
        reference: Images that are neither members nor non-members.
        generator: The reference generator, if there is one.
        samples: Images that are drawn; None = as many as are private, 10,000 at least and 60,000 at most.
    """
    device, progress, product = target.device, target.progress, target.product.to(target.device)
    least = losses.LEAST_REFERENCE if isinstance(product, PrivateClassifier) else membership.LEAST_REFERENCE
    known = reference.to(device) if len(reference) >= least else None
    too_few = f"{len(reference)} reference images are too few: {least} are needed"
    if isinstance(product, PrivateClassifier):  # its logits, and images that are neither members nor non-members
        return Knowledge(classifier=product.logits, reference=known, seed=seed, why_not={"reference": too_few})
    why_not = {**_WHY_NOT, "reference": too_few}
    num = samples or min(max(target.split.num_private, _LEAST_SAMPLES), _MOST_SAMPLES)
    drawn = knowledge.draw(product, num, seed, progress, "generated images")
    critic = sums = None
    if any({"critic", "sums"} & set(row.needs) for row in rows):
        try:
            method = trainer.method_of_run(target.config, target.split, target.state, device)
            sums = method.released_sums if isinstance(method, HasSums) else None
            critic = trainer.critic_of(method)
        except NoCriticError as reason:
            why_not["critic"] = str(reason)
    reference_samples = None
    if generator is not None:
        generator = generator.to(device)
        reference_samples = knowledge.draw(generator, num, seed + 1, progress, "reference images")
    return Knowledge(
        samples=drawn,
        generator=product,
        critic=critic,
        denoiser=product.denoising_loss if isinstance(product, DiffusionGenerator) else None,
        teacher=None if product.teacher is None else product.teacher.to(device).logits,
        sums=sums,
        reference=known,
        reference_samples=reference_samples,
        reference_generator=generator,
        seed=seed,
        why_not=why_not,
    )


_NO_REFERENCE = "no reference generator: give --reference RUN or --train-reference"
_WHY_NOT = {
    "sample_labels": "the generator is unconditional: its images have no labels to train a classifier with",
    "shadows": "no shadow generators: give --shadows K",
    "teacher": "no classifier was released with this generator",
    "denoiser": "this generator does not draw by diffusion",
    "sums": "this method releases no sums of features, or the run's state/ is not there, which says how they were made",
    "reference_samples": _NO_REFERENCE,
    "reference_generator": _NO_REFERENCE,
}


def other_generator(path: Path, *judged: Images) -> Generator:
    """Load the generator of another finished run; refuse one that was trained on members or non-members."""
    other = trainer.load_config(RunFolder.open(path).config)
    trained_on = load_again(other.data).private.existing()
    known = set(trained_on.digests())
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


def trained_generator(target: Target, reference: Images) -> tuple[Generator, str]:
    """Train a reference generator, or load the one that an earlier attack left in the run's ``reference/``.

    Its ledger has no target, since the reference generator is for the curator only. Of the data of the run under attack
    only the public part and the sizes are used; of ``reference``, in its order, at most as many images as are private.
    The seed is one more than the run's.

    Returns:
        The averaged generator, in eval mode, and a clause about it.

    Raises:
        InputError: If config and images do not fit, or the training was interrupted.
    """
    split, config, folder = target.split, target.config, target.run.path / FOLDER
    chosen = reference.to("cpu").select(torch.arange(min(len(reference), split.num_private)))
    training = config.training.model_copy(update={"seed": config.training.seed + 1})
    config = config.model_copy(update={"training": training})
    about = f"trained by the same config on {len(chosen):,} images of the test part and the holdout"
    identity = {"config": config.identity(), "images": chosen.digest()}
    if (folder / CONFIG).is_file():
        saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if saved.get("reference") == identity:
            return checkpoint.load_generator(folder, _code(config)), about
    method = trainer.train_on(config, dataclasses.replace(split, private=chosen), target.progress)
    generator = cast("Generator", method.product).eval()
    checkpoint.save_generator(folder, generator, extra={"reference": identity, "curator_only": True})
    return generator, about
