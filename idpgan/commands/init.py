"""``idpgan init``: a commented config for a folder or a built-in source, which `train` accepts as it is."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idpgan.commands.command import Answer, command, completing, given, option
from idpgan.errors import InputError
from idpgan.files import new_file, pasted, refuse_existing, write_text_atomic
from idpgan.methods import CLASSIFIER, METHODS, methods_of, names_of
from idpgan.removed import gone

if TYPE_CHECKING:
    from idpgan.synthesis.facts import Shown
    from idpgan.synthesis.starter import Facts, Starter
    from idpgan.training.config import RunConfig
    from idpgan.training.plan import RunPlan

BEST = "best"
_FEW_DRAWN, _MANY_DRAWN = 16, 64  # images that a public network draws: a pipeline takes long


@dataclass(frozen=True)
class InitOptions:
    """What is wanted of a config; None = as the source shows, or by a rule."""

    data_root: Path | None = option(None, "Where the files of a built-in source lie.")
    method: Annotated[
        str,
        typer.Option(
            help=f"What to train: a generator, {CLASSIFIER} (a classifier), or best = a generator by the situation.",
            autocompletion=completing(BEST, *methods_of("generator"), CLASSIFIER),
        ),
    ] = BEST
    epsilon: float | None = option(None, "Of the whole run, per unit; default: 3. It sets how many numbers are kept.")
    unit: str | None = option(
        None, "What is protected. Default: the widest that the data names.", metavar="image|person"
    )
    label: str | None = option(
        None, "Column that makes the classes; subfolders, or none: no classes. Default: one with few values."
    )
    handwriting: bool = option(False, "Images are strokes on an even ground, as of a pen: digits, letters.")
    base: Path | None = option(
        None, "Public, to build on: photos, portraits (idpgan people), or a denoiser to adapt (edm, diffusers)."
    )

    def __post_init__(self) -> None:
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon {self.epsilon:g} must be above 0 and finite; 1 protects much, 10 little.")


@dataclass(frozen=True)
class Template:
    """A config to start from.

    Attributes:
        text: TOML with comments.
        table: The same without comments.
        private_notes: What only the curator should know: true counts of classes. They set nothing.
        notes: What was chosen, what it needs, and what would help; with the private ones at most eight lines.
    """

    text: str
    table: Mapping[str, Mapping[str, object]]
    private_notes: tuple[str, ...]
    notes: tuple[str, ...] = ()


@command
def init(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER|NAME", help="Folder of images, a built-in source, or a config.")
    ],
    options: InitOptions,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the config there; default: stdout.")] = None,
) -> Answer:
    """Print a commented config for your images, ready to train, or one of the package's; or write it to a new file.

    What was chosen, from how many images on it serves, and what would help stand on stderr.

    Example: idpgan init faces48 --epsilon 3 > config.toml && idpgan train config.toml
    """
    if out is not None:
        from idpgan.release.folder import refuse_place

        refuse_existing(out)
        refuse_place(out, f"--out {out}", [Path(source)])
    template = config_for(source, options)
    if out is not None:
        with new_file(out):
            write_text_atomic(out, template.text)

    def show() -> None:
        print(template.text if out is None else f"{out} is written. Next: idpgan train {pasted(out)}\n", end="")
        for note in (*template.notes, *template.private_notes):
            print(note, file=sys.stderr)

    value = {"toml": template.text, "config": template.table, "private_notes": list(template.private_notes)}
    value["notes"] = list(template.notes)
    return Answer(value, show)


def config_for(source: str, options: InitOptions | None = None) -> Template:
    """Write a config for a folder of images, or for a built-in source, or repeat one of the package's.

    Args:
        source: A folder, or a name of `idpgan.data.sources.NAMES` that needs none, or of `idpgan.config.config_names`;
            ``./faces`` is a folder.
        options: What is wanted; None = all by the situation. A method is one that has a template, see
            `synthesis.starter`.

    Raises:
        InputError: If the source is neither, lacks what is wanted, or images have no size that networks are built for.
    """
    from idpgan.config import config_names, load_table, packaged
    from idpgan.data.source import SILENCED

    options = options or InitOptions()
    if source in config_names():
        if flags := given(options, *(field.name for field in dataclasses.fields(options))):
            raise InputError(
                f"{source} is a config of its own: leave {', '.join(flags)} out. `idpgan train` takes --data-root and "
                "every key as section.key=value."
            )
        table = load_table(Path(source))
        return Template(packaged(source), table, (), _how_long(table["method"]["name"]))
    if went := gone(f"config {source}"):
        raise InputError(went)
    with SILENCED:  # the comments say what is wrong with the data
        return _template(source, options)


def _template(source: str, options: InitOptions) -> Template:
    from idpgan.data.image_files import in_folders, leftovers
    from idpgan.data.sources import BY_NAME
    from idpgan.origin import is_denoiser
    from idpgan.synthesis.facts import facts_of
    from idpgan.synthesis.starter import starter_for

    denoiser = options.base if options.base and is_denoiser(options.base) else None
    if denoiser is not None and options.method not in (BEST, "diffusion"):
        raise InputError(f"--base is adapted by method diffusion, not by {options.method}. Leave one of them out.")
    if options.base and options.method == CLASSIFIER:
        raise InputError(f"--base is for generators: {CLASSIFIER} reads no public image. Leave one of them out.")
    images = None if denoiser else options.base
    seen, public_facts = facts_of(source, options.data_root, options.label, images)
    _check_method(options.method, public_facts.of_handwriting() if options.handwriting else public_facts)
    facts = _wanted(public_facts, options)
    data = {key: setting.value for key, setting in seen.settings.items()}
    if denoiser is not None:
        starter = starter_for(facts, "diffusion", _adapted(facts, denoiser, data))
    else:
        starter = starter_for(facts, options.method)
    config = _config_of(data, starter.table)
    planned = _planned(config, facts)
    notes = [_chosen(source, config, starter, facts), *_least(planned, facts), *_how_long(config.method.name)]
    notes += [
        *_public_pictures(facts, source, starter.name),
        *_unused(seen),
        *_written_twice(facts.shape.classes, source),
    ]
    if denoiser is not None:
        notes.append(
            f"data.public_disjoint = true is your word that nobody of the private images is among what {denoiser} "
            "learned from, so that its charges do not count. Take the line out where it does not hold."
        )
    if left_out := leftovers(Path(source)) if source not in BY_NAME else {}:
        where = in_folders(left_out)
        notes.append(f"Left out, in hidden folders and what systems leave behind: {where} image files.")
    counts = ", ".join(f"{name} {count:,}" for name, count in seen.counts.most_common())
    private = f"For you alone, since it is private: images of each class: {counts}. Those with few will be noise."
    table = {
        "data": {**data, **starter.table.get("data", {})},
        **{k: v for k, v in starter.table.items() if k != "data"},
    }
    return Template(
        _text(_called(source, options), starter, seen, facts), table, (private,) * bool(counts), tuple(notes)
    )


def _check_method(method: str, facts: Facts) -> None:
    """Refuse a method that has no template for such images."""
    from idpgan.config import config_names, load_table, nearest_hint
    from idpgan.synthesis.starter import NEEDS, has_template

    trained = "generator", "classifier"
    if method == BEST or has_template(method, facts):
        return
    if method not in (known := methods_of(*trained)):
        raise InputError(f"--method {method} is unknown. {nearest_hint(method, (BEST, *known), names_of(*trained))}")
    if method == CLASSIFIER:
        raise InputError(
            f"--method {method} learns classes, and the images have none. Name the column that makes them (--label "
            "COLUMN), or prepare the folder again with a table of labels or --folders label."
        )
    if method in NEEDS:
        raise InputError(f"--method {method} asks {NEEDS[method]}.")
    begun = [name for name in config_names() if load_table(Path(name))["method"]["name"] == method]
    other = CLASSIFIER if METHODS[method].family == "classifier" else BEST
    raise InputError(
        f"--method {method} has no template for such images. Take --method {other}, or begin with a config of the "
        f"package, such as idpgan init {begun[0]}."
    )


def _wanted(facts: Facts, options: InitOptions) -> Facts:
    """Return the facts of the images, the budget and the unit that are wanted."""
    if options.handwriting:
        facts = facts.of_handwriting()
    if options.epsilon is not None:
        facts = dataclasses.replace(facts, epsilon=options.epsilon)
    named = "image" if facts.per_person is None else "photo" if facts.shape.of_photos else "person"
    unit = options.unit or named
    units = METHODS[options.method].units if options.method != BEST else ("image", named)
    if unit not in ("image", named):
        raise InputError(
            f"--unit {unit}: the images name no {unit}. A column person, or idpgan prepare --folders person, says who "
            f"is on each; or give --unit {named}."
        )
    if options.unit and unit not in units:
        raise InputError(f"--unit {unit}: {options.method} protects one {units[0]}. Leave --unit out.")
    return facts if unit != "image" else dataclasses.replace(facts, per_person=None)


def _config_of(data: Mapping[str, object], table: Mapping[str, Any]) -> RunConfig:
    """Return the config of [data] and of a template; those of [data] that it brings along come last."""
    from idpgan.origin import with_releases
    from idpgan.training.config import build_config

    return build_config(with_releases({**table, "data": {**data, **table.get("data", {})}}), "what init has written")


def _planned(config: RunConfig, facts: Facts) -> RunPlan:
    """Return the plan; raises `InputError` if such data do not suit the method."""
    from idpgan.data.load import known_shape
    from idpgan.training.plan import plan_run

    planned: RunPlan = plan_run(config, facts.shape if config.data.public is None else known_shape(config.data))
    planned.check()
    return planned


def _adapted(facts: Facts, base: Path, data: Mapping[str, object]) -> dict[str, object]:
    """Return what the template of diffusion asks about a public network: the part that is trained, and its clip norm.

    The part is `DiffusionPlan.largest_part`, the clip norm the median of the gradients of images that the base draws.

    Args:
        base: A released denoiser of this package, or a folder of diffusers.
        data: The keys of [data].

    Raises:
        InputError: If the base does not fit the images, or the signal bears none of its parts.
    """
    import torch

    from idpgan.data.images import Images
    from idpgan.data.load import Split
    from idpgan.device import resolve_device
    from idpgan.models.pipeline_folder import is_pipeline
    from idpgan.origin import of_generator
    from idpgan.synthesis import diffusion
    from idpgan.synthesis.starter import starter_for
    from idpgan.training.plan import plan_run

    pipeline = is_pipeline(base)
    if not pipeline and (kind := of_generator(base)[0]["model"].get("generator", "dcgan")) != "diffusion":
        raise InputError(
            f"--base {base} is a release of {kind}, which has no denoiser to adapt. What it draws can be moved: "
            f"idpgan train faces-aligned-gaussian data.public_generator={pasted(base)} model.simulator=generator "
            "model.moved=2000."
        )
    values: dict[str, object] = {
        "base": str(base),
        "trained": ["biases"],
        "share": 0.0 if pipeline else 0.5,
        "clip": 1.0,
    }
    config = _config_of(data, starter_for(facts, "diffusion", values).table)
    part = plan_run(config, facts.shape).largest_part
    if not part:
        raise InputError(
            f"at epsilon {facts.epsilon:g} the noise on {facts.shape.num_private:,} images is too much for the "
            f"least part of {base}. Take another method, or a larger epsilon."
        )
    values["trained"] = list(part)
    config = _config_of(data, starter_for(facts, "diffusion", values).table)
    labels, names = torch.zeros(1, dtype=torch.int64) if facts.shape.classes else None, facts.shape.classes
    single = Images(torch.zeros(1, *facts.shape.image_shape, dtype=torch.uint8), labels, names)
    nobody = single.select(torch.arange(0))
    method = diffusion.Method.of(
        config, Split(nobody, single, nobody, nobody), device=resolve_device(config.training.device)
    )
    usual = float(method.usual_norm(_FEW_DRAWN if config.model.pipeline is not None else _MANY_DRAWN))
    return values | {"clip": float(f"{usual:.2g}")}


# What stands on stderr ---------------------------------------------------------------------------------------------


def _chosen(source: str, config: RunConfig, starter: Starter, facts: Facts) -> str:
    """Say what the images are, and what is proposed for them."""
    channels, height, width = facts.shape.image_shape
    classes = f" in {len(facts.shape.classes)} classes" if facts.shape.classes else ", unlabeled"
    color = "grey" if channels == 1 else "color"
    what = f"{facts.shape.num_private:,} private images{classes}, {width} x {height}, {color}"
    teacher = " with a teacher" if getattr(config.method, "teacher_share", 0) else ""
    return f"{source}: {what}. Template {starter.name}: {config.method.name}{teacher}; its head says what was measured."


def _least(planned: RunPlan, facts: Facts) -> list[str]:
    """Say from how many images on, in all and of each class, the method gives more than noise."""
    signal = planned.signal
    if signal is None or signal.figure <= 0:
        return []
    least = math.ceil(facts.shape.num_private / signal.figure)
    of_class = f", {math.ceil(least / facts.num_classes):,} of each class" if facts.num_classes > 1 else ""
    few = (
        f"At epsilon {facts.epsilon:g}, unit {planned.unit}, fewer than {least:,} such images in all{of_class} give "
        "nothing but noise."
    )
    return [f"{few} Expect {signal.foretold}" if signal.foretold else few]


def _how_long(method: str) -> tuple[str, ...]:
    """Say how long a method took where it was measured, if it was."""
    from idpgan.methods import load

    took = getattr(load(method).Method, "took", None)
    return (f"{method} took {took} (docs/guide/which-method.md); train shows the time left.",) if took else ()


def _public_pictures(facts: Facts, source: str, template: str) -> list[str]:
    """Say which public pictures would help, or suffice: portraits beside squares of faces in place, else photos."""
    from idpgan import portraits

    if template == "classifier":
        return []
    if facts.portraits_suffice:
        return [
            f"At epsilon {facts.epsilon:g} so few photos were not shown to add anything to portraits: train on "
            "portraits alone, which read no photo and cost no budget, or raise epsilon."
        ]
    if template == "photos" and not (facts.aligned or facts.handwriting or facts.public_suffice):
        return _public_photos(facts, source)
    channels, height, width = facts.shape.image_shape
    drawable = height == width and portraits.SIZES[0] <= height <= portraits.SIZES[1]
    if not (facts.aligned and drawable) or facts.shape.sizes.public:
        return []
    install = "" if portraits.is_installed() else f"{portraits.INSTALL} && "
    color = " --color" if channels == 3 else ""
    return [
        "Portraits of people who do not exist, changed by what is released, have the edges that a release lacks: "
        f"{install}idpgan people portraits --num 6000 --size {height}{color}, then idpgan init {pasted(source)} --base "
        "portraits."
    ]


def _public_photos(facts: Facts, source: str) -> list[str]:
    """Say from how many on public photos are drawn too: a teacher chooses those of each class."""
    from idpgan.models.drawing import CHOSEN

    num, classes = facts.shape.sizes.public, facts.num_classes
    few = f"{CHOSEN * classes:,} or more" if classes > 1 else "a few thousand"
    if num:
        return [f"{num:,} public images set center and scale; {few} would be drawn too."] if classes > 1 else []
    return [
        f"Public photos of the same kind, {few}, labeled or not, make pictures where a release alone makes blobs: "
        f"idpgan init {pasted(source)} --base PUBLIC (docs/guide/own-data.md)."
    ]


def _unused(seen: Shown) -> list[str]:
    """Name the columns of the table that the config does not use."""
    lines = []
    if seen.others:
        lines.append(f"Columns not used, which could make the classes: {', '.join(seen.others)} (--label COLUMN).")
    if seen.unfit:
        lines.append(f"Columns not used, with one value, too many, or few images of each: {', '.join(seen.unfit)}.")
    return lines


def _written_twice(classes: Sequence[str], source: str) -> list[str]:
    """Name the classes that may be one: each spelling makes its own."""
    from idpgan.data.cells import spellings
    from idpgan.data.declared import shown
    from idpgan.data.metadata import METADATA

    if not (groups := spellings(classes)):
        return []
    found = "; ".join(" = ".join(map(shown, group)) for group in groups)
    table = Path(source) / METADATA
    way = f"write its name in one way in {table}" if table.is_file() else "put them into one folder"
    return [f"Classes written {found} are taken as they are written. If two are one, {way}, and call init again."]


# What is written ---------------------------------------------------------------------------------------------------


def _called(source: str, options: InitOptions) -> str:
    """Return the command that was given, as it can be pasted."""
    names = [field.name for field in dataclasses.fields(options)]
    options_given = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names if given(options, name)}
    words = (flag if value is True else f"{flag} {pasted(str(value))}" for flag, value in options_given.items())
    return " ".join(["idpgan init", pasted(source), *words])


def _text(called: str, starter: Starter, seen: Shown, facts: Facts) -> str:
    """Write what was counted of the images, and the template, below the command that made them."""
    from idpgan.synthesis.starter import section

    lines = [
        f"# Made by: {called}",
        "# Cost without reading an image: idpgan train THIS.toml --dry-run      Train: idpgan train THIS.toml",
        "# Every key: docs/reference/api.md#every-key-of-a-config. What you leave out has its default.",
        "",
    ]
    if "num_images" in seen.settings:
        lines += [
            "# init counted these in the folder. They will be public, and the guarantee holds for data sets that",
            "# agree in them: by keeping them you declare them. Set what you would have said without looking.",
        ]
    lines.append(section("data", seen.settings))
    lines += [starter.data.rstrip()] if starter.data.strip() else []
    lines += [f"# other columns of labels: {', '.join(seen.others)}"] if seen.others else []
    lines.append(f"# private images after test and holdout are split off: {facts.shape.num_private:,}")
    return "\n".join([*lines, "", starter.text])
