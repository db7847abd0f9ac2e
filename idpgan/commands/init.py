"""``idpgan init``: a commented config for a folder or a built-in source, which `train` accepts as it is."""

from __future__ import annotations

import dataclasses
import math
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.checks import typed
from idpgan.commands.command import Answer, command, completing, given, option
from idpgan.errors import InputError
from idpgan.files import pasted, refuse_existing, write_text_atomic
from idpgan.methods import METHODS, methods_of, names_of

if TYPE_CHECKING:
    from idpgan.data.load import DataShape
    from idpgan.synthesis.facts import Shown
    from idpgan.synthesis.starter import Choice, Facts, Sections, Setting
    from idpgan.training.config import RunConfig
    from idpgan.training.plan import RunPlan

BEST = "best"
_WIDTH, _LONGEST = 30, 120  # where comments begin, and where lines end


@dataclass(frozen=True)
class InitOptions:
    """What is wanted of a config; None = as the source shows, or by a rule."""

    data_root: Path | None = option(None, "Where the files of a built-in source lie.")
    method: Annotated[
        str,
        typer.Option(
            help="What to train: a generator, or best = by a rule from public facts.",
            autocompletion=completing(BEST, *methods_of("generator")),
        ),
    ] = BEST
    epsilon: float | None = option(None, "Of the whole run, per unit; default: 3. It sets how many numbers are kept.")
    unit: str | None = option(
        None, "What is protected. Default: the widest that the data names.", metavar="image|person"
    )
    label: str | None = option(
        None, "Column that makes the classes; subfolders, or none: no classes. Default: one with few values."
    )
    channels: int | None = option(None, "1 grey, 3 color. Default: as the images are.")
    handwriting: bool = option(False, "Images are strokes on an even ground, as of a pen: digits, letters.")
    base: Path | None = option(
        None, "Public, to build on: images (idpgan people), or a denoiser to adapt (edm, diffusers)."
    )

    def __post_init__(self) -> None:
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon {self.epsilon:g} must be above 0 and finite; 1 protects much, 10 little.")
        if self.channels not in (None, 1, 3):
            raise InputError(f"--channels {self.channels} must be 1 (grey) or 3 (color).")


@dataclass(frozen=True)
class Template:
    """A config to start from.

    Attributes:
        text: TOML with comments.
        table: The same without comments.
        private_notes: What only the curator should know: true counts of classes. They set nothing.
        notes: What was chosen and why, how long it takes, and the alternatives.
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

    Why this method, how long it takes, and the alternatives stand on stderr.

    Example: idpgan init faces48 --epsilon 3 > config.toml && idpgan train config.toml
    """
    if out is not None:
        refuse_existing(out)
    template = config_for(source, options)
    if out is not None:
        write_text_atomic(out, template.text)

    def show() -> None:
        print(template.text if out is None else f"{out} is written. Next: idpgan train {pasted(out)}\n", end="")
        for note in (*template.notes, *template.private_notes):
            print(note, file=sys.stderr)

    value = {"toml": template.text, "config": template.table, "private_notes": list(template.private_notes)}
    value["notes"] = list(template.notes)
    return Answer(value, show)


@typed
def config_for(source: str, options: InitOptions | None = None) -> Template:
    """Write a config for a folder of images, or for a built-in source, or repeat one of the package's.

    Args:
        source: A folder, or a name of `idpgan.data.load.SOURCES` that needs none, or of `idpgan.config.config_names`;
            ``./faces`` is a folder.
        options: What is wanted; None = all by rule. A method is one that has suggestions;
            "best" = by rule, see `synthesis.starter`.

    Raises:
        InputError: If the source is neither, lacks what is wanted, or images have no size that networks are built for.
    """
    from idpgan.config import config_names, load_table, packaged
    from idpgan.data.source import unsaid

    options = options or InitOptions()
    if source in config_names():
        if flags := given(options, *(field.name for field in dataclasses.fields(options))):
            raise InputError(
                f"{source} is a config of its own: leave {', '.join(flags)} out. `idpgan train` takes --data-root and "
                "every key as section.key=value."
            )
        return Template(
            packaged(source), load_table(Path(source)), (), _how_long(str(load_table(Path(source))["method"]["name"]))
        )
    with unsaid():  # the comments say what is wrong with the data
        return _template(source, options)


def _template(source: str, options: InitOptions) -> Template:
    from idpgan.data.image_files import in_folders, leftovers
    from idpgan.data.load import BY_NAME
    from idpgan.origin import is_denoiser
    from idpgan.synthesis.facts import facts_of, values_of
    from idpgan.synthesis.starter import Choice, best

    suggest = None if options.method == BEST else _suggestion(options.method)
    denoiser = options.base if options.base and is_denoiser(options.base) else None
    if denoiser is not None and options.method not in (BEST, "diffusion"):
        raise InputError(f"--base is adapted by method diffusion, not by {options.method}. Leave one of them out.")
    images = None if denoiser else options.base
    seen, shown = facts_of(source, options.data_root, options.label, options.channels, images)
    facts = _wanted(shown, options)
    if denoiser is not None:
        from idpgan.synthesis.adapting import adapters

        choice = Choice.of(adapters(facts, seen.settings, denoiser, _config_of))
    else:
        choice = best(facts) if suggest is None else Choice(options.method, suggest(facts), "")
    sections = _whole(seen.settings, choice)
    _priced(sections, facts)
    counts = ", ".join(f"{name} {count:,}" for name, count in seen.counts.most_common())
    note = (
        f"For you alone, since it is private: images per class: {counts}. Classes with few images will be noise: take "
        "them out of data.classes."
    )
    notes = [*_notes(choice, facts, seen.settings), *_unused(seen)]
    if denoiser is not None:
        notes.append(
            f"data.public_disjoint = true is your word that nobody of the private images is among what {denoiser} "
            "learned from, so that its charges do not count. Take the line out where it does not hold."
        )
    notes += _portraits(facts, source, denoiser)
    if left_out := leftovers(Path(source)) if source not in BY_NAME else {}:
        where = in_folders(left_out)
        notes.append(f"Left out, in hidden folders and what systems leave behind: {where} image files.")
    text = _text(_called(source, options), sections, seen, facts.shape, choice.why)
    return Template(text, values_of(sections), (note,) if counts else (), tuple(notes))


def _portraits(facts: Facts, source: str, denoiser: Path | None) -> list[str]:
    """Return the commands that draw portraits, where these would help: beside squares of faces in place."""
    from idpgan import portraits

    channels, height, width = facts.shape.image_shape
    drawable = height == width and portraits.SIZES[0] <= height <= portraits.SIZES[1]
    if not (facts.aligned and drawable) or facts.shape.sizes.public or denoiser:
        return []
    install = "" if portraits.is_installed() else 'pip install "idpgan[people]" && '
    color = " --color" if channels == 3 else ""
    return [
        "Portraits of people who do not exist, moved onto what is released, have the edges that a release lacks: "
        f"{install}idpgan people portraits --num 6000 --size {height}{color}, then idpgan init {pasted(source)} --base "
        "portraits."
    ]


def _suggestion(method: str) -> Callable[[Facts], Sections]:
    """Return what proposes the settings of a method; refuse one that has no proposal."""
    from idpgan.config import config_names, load_table, nearest_hint
    from idpgan.methods import load

    trained = "generator", "classifier"
    if method not in (known := methods_of(*trained)):
        raise InputError(f"--method {method} is unknown. {nearest_hint(method, (BEST, *known), names_of(*trained))}")
    suggest: Callable[[Facts], Sections] | None = getattr(load(method), "suggest", None)
    if suggest is None:
        begun = [name for name in config_names() if load_table(Path(name))["method"]["name"] == method]
        raise InputError(
            f"--method {method} has no proposal for own images. Begin with a config of the package, such as "
            f"idpgan init {begun[0]}."
        )
    return suggest


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


def _unused(seen: Shown) -> list[str]:
    """Name the columns of the table that the config does not use."""
    lines = []
    if seen.others:
        lines.append(f"Columns not used, which could make the classes: {', '.join(seen.others)} (--label COLUMN).")
    if seen.unfit:
        lines.append(f"Columns not used, with one value, too many, or few images of each: {', '.join(seen.unfit)}.")
    return lines


def _whole(settings: Mapping[str, Setting], choice: Choice) -> Sections:
    """Return all sections, with the public images that a method draws for itself among those of [data]."""
    return {**choice.sections, "data": {**settings, **choice.sections.get("data", {})}}


def _priced(sections: Sections, facts: Facts) -> tuple[RunConfig, RunPlan]:
    """Return config and plan; raises `InputError` if such data do not suit the method."""
    from idpgan.data.load import known_shape
    from idpgan.training.plan import plan_run

    config = _config_of(sections)
    shape = facts.shape if config.data.public is None else known_shape(config.data)
    planned = plan_run(config, shape)
    planned.check()
    return config, planned


def _config_of(sections: Sections) -> RunConfig:
    from idpgan.origin import with_releases
    from idpgan.synthesis.facts import values_of
    from idpgan.training.config import build_config

    return build_config(with_releases(values_of(sections)), "what init has written")


def _notes(choice: Choice, facts: Facts, settings: Mapping[str, Setting]) -> list[str]:
    """Say which method it is and why, how long it takes, and from how many images on it and the others serve."""
    from idpgan.synthesis.starter import alternatives

    lines = [f"Method by rule: {choice.method}. Why: {choice.why}."] if choice.why else []
    for each in (choice, *(alternatives(facts) if choice.why else ())):
        try:
            config, planned = _priced(_whole(settings, each), facts)
        except InputError:
            continue  # a method that such data does not suit is no alternative
        words = [each.method + (" with a teacher" if getattr(config.method, "teacher_share", 0) else "")]
        signal = planned.signal
        if signal is not None and signal.figure > 0:
            least = math.ceil(facts.shape.num_private / signal.figure)
            words.append(f"below {least:,} images nothing but noise at epsilon {facts.epsilon:g}")
        lines.append(("" if each is choice else "Or --method ") + ", ".join(words))
    return [*lines, *_how_long(choice.method)]


def _how_long(method: str) -> tuple[str, ...]:
    """Say how long a method took where it was measured, if it was."""
    from idpgan.methods import load

    took = getattr(load(method), "took", None)
    return (f"{method} took {took} (docs/guide/which-method.md); train shows the time left.",) if took else ()


def _called(source: str, options: InitOptions) -> str:
    """Return the command that was given, as it can be pasted."""
    names = [field.name for field in dataclasses.fields(options)]
    asked = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names if given(options, name)}
    words = (flag if value is True else f"{flag} {pasted(str(value))}" for flag, value in asked.items())
    return " ".join(["idpgan init", pasted(source), *words])


def _text(called: str, sections: Sections, seen: Shown, shape: DataShape, why: str) -> str:
    """Write the sections, each setting with its reason, below the command that made them."""
    from idpgan.data.declared import shown

    lines = [
        f"# Made by: {called}",
        "# Cost without reading an image: idpgan train THIS.toml --dry-run      Train: idpgan train THIS.toml",
        "# Every key: docs/reference/api.md#every-key-of-a-config. What you leave out has its default.",
        *textwrap.wrap(f"# Method by rule. {why}", _LONGEST, subsequent_indent="# ")[: None if why else 0],
        "",
    ]
    for name, keys in {"data": sections["data"], **sections}.items():
        if name == "data" and "num_images" in keys:
            lines += [
                "# init counted these in the folder. They will be public, and the guarantee holds for data sets that",
                "# agree in them: by keeping them you declare them. Set what you would have said without looking.",
            ]
        lines.append(f"[{name}]")
        for key, setting in keys.items():
            value = shown(setting.value)
            line = f"{key} = {value.replace('e-0', 'e-') if isinstance(setting.value, float) else value}"
            with_why = f"{line:<{_WIDTH}} # {setting.why}" if setting.why else line
            lines += [with_why] if len(with_why) <= _LONGEST or not setting.why else [f"# {setting.why}", line]
        if name == "data" and seen.others:
            lines.append(f"# other columns of labels: {', '.join(seen.others)}")
        if name == "data":
            lines.append(f"# private images after test and holdout are split off: {shape.num_private:,}")
        lines.append("")
    return "\n".join(lines)
