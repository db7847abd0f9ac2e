"""``idpgan init``: a commented config for a folder or a built-in source, which `train` accepts as it is."""

from __future__ import annotations

import logging
import math
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.checks import typed
from idpgan.commands.command import Answer, command
from idpgan.errors import InputError
from idpgan.files import pasted, refuse_existing, write_text_atomic
from idpgan.progress import duration

if TYPE_CHECKING:
    from idpgan.data.load import DataShape
    from idpgan.synthesis.facts import Shown
    from idpgan.synthesis.starter import Choice, Facts, Sections, Setting
    from idpgan.training.config import RunConfig
    from idpgan.training.plan import RunPlan

BEST = "best"
_WIDTH, _LONGEST = 30, 120  # where comments begin, and where lines end


@dataclass(frozen=True)
class Template:
    """A config to start from.

    Attributes:
        text: TOML with comments.
        table: The same without comments.
        private_notes: What only the curator should know: true counts of classes. They set nothing.
        notes: What was chosen and why, how long it takes on this machine, and the alternatives.
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
    data_root: Annotated[Path | None, typer.Option(help="Where the files of a built-in source lie.")] = None,
    method: Annotated[
        str, typer.Option(help="What to train: a generator, or best = by a rule from public facts.")
    ] = BEST,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Do not try each method for two seconds to say how long it takes.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the config there; default: stdout.")] = None,
) -> Answer:
    """Print a commented config for your images, ready to train, or one of the package's; or write it to a new file.

    Why this method, how long it takes on this machine, and the alternatives stand on stderr.

    Example: idpgan init faces48 > config.toml && idpgan train config.toml
    """
    if out is not None:
        refuse_existing(out)
    template = config_for(source, data_root, None if method == BEST else method, not no_probe)

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
def config_for(source: str, data_root: Path | None = None, method: str | None = None, probe: bool = False) -> Template:
    """Write a config for a folder of images, or for a built-in source, or repeat one of the package's.

    Args:
        source: A folder, or a name of `idpgan.data.load.SOURCES` that needs none, or of `idpgan.config.config_names`;
            ``./faces`` is a folder.
        data_root: Where the files of a built-in source lie.
        method: What the config is for, one that has suggestions; None or "best" = by rule, see `synthesis.starter`.
        probe: Try each method on random images for two seconds, to tell how long it takes here.

    Raises:
        InputError: If the source is neither, or images have no size that networks are built for.
    """
    from idpgan.config import config_names, load_table, packaged

    if source in config_names():
        if data_root is not None or method is not None:
            raise InputError(f"{source} is a config of its own: give --data-root to train, and leave --method out.")
        return Template(packaged(source), load_table(Path(source)), ())
    log = logging.getLogger("idpgan.data")
    level = log.level
    log.setLevel(logging.ERROR)  # warnings about the data are kept back: the comments say what is wrong with it
    try:
        return _template(source, data_root, method or BEST, probe)
    finally:
        log.setLevel(level)


def _template(source: str, data_root: Path | None, method: str, probe: bool) -> Template:
    from idpgan.config import config_names
    from idpgan.data.image_files import in_folders, leftovers
    from idpgan.data.load import BY_NAME
    from idpgan.synthesis.facts import facts_of, values_of
    from idpgan.synthesis.starter import Choice, best
    from idpgan.training.config import load_method

    suggest = None if method == BEST else getattr(load_method(method), "suggest", None)
    if suggest is None and method != BEST:
        raise InputError(
            f"--method {method} has no config to begin with. Take one of the package's: {', '.join(config_names())}."
        )
    seen, facts = facts_of(source, data_root)
    choice = best(facts) if suggest is None else Choice(method, suggest(facts), "")
    sections = {"data": seen.settings, **choice.sections}
    _priced(sections, facts)
    counts = ", ".join(f"{name} {count:,}" for name, count in seen.counts.most_common())
    note = f"For you alone, since it is private: images per class: {counts}. Classes with few images will be noise."
    notes = _notes(choice, facts, seen.settings, probe)
    if facts.aligned and not facts.shape.sizes.public:
        notes.append(
            "Portraits of people who do not exist, moved onto what is released, have the edges that a release lacks: "
            'pip install "idpgan[people]", and run init again.'
        )
    if left_out := leftovers(Path(source)) if source not in BY_NAME else {}:
        where = in_folders(left_out)
        notes.append(f"Left out, in hidden folders and what systems leave behind: {where} image files.")
    text = _text(source, sections, seen, facts.shape, choice.why)
    return Template(text, values_of(sections), (note,) if counts else (), tuple(notes))


def _priced(sections: Sections, facts: Facts) -> tuple[RunConfig, RunPlan]:
    """Return config and plan; raises `InputError` if such data do not suit the method."""
    from idpgan.synthesis.facts import values_of
    from idpgan.training.config import build_config
    from idpgan.training.plan import plan_run

    config = build_config(values_of(sections), "what init has written")
    planned = plan_run(config, facts.shape)
    planned.check()
    return config, planned


def _notes(choice: Choice, facts: Facts, settings: Mapping[str, Setting], probe: bool) -> list[str]:
    """Say which method it is and why, how long it and the others take here, and from how many images on they serve."""
    from idpgan.synthesis.starter import EPSILON, alternatives
    from idpgan.training.probe import expected_seconds

    lines = [f"Method by rule: {choice.method}. Why: {choice.why}."] if choice.why else []
    for each in (choice, *(alternatives(facts) if choice.why else ())):
        try:
            config, planned = _priced({"data": settings, **each.sections}, facts)
        except InputError:
            continue  # a method that such data does not suit is no alternative
        words = [each.method + (" with a teacher" if getattr(config.method, "teacher_share", 0) else "")]
        if probe:
            try:
                words.append(f"about {duration(expected_seconds(config, facts.shape))} on this machine")
            except InputError as error:
                words.append(f"how long is not known ({str(error).rstrip('.')})")
        signal = planned.signal
        if signal is not None and signal.figure > 0:
            least = math.ceil(facts.shape.num_private / signal.figure)
            words.append(f"below {least:,} images nothing but noise at epsilon {EPSILON:g}")
        lines.append(("" if each is choice else "Or --method ") + ", ".join(words))
    return lines


def _text(source: str, sections: Sections, seen: Shown, shape: DataShape, why: str) -> str:
    """Write the sections, each setting with its reason."""
    from idpgan.data.declared import shown

    lines = [
        f"# Made by: idpgan init {pasted(source)}",
        "# Cost without reading an image: idpgan train THIS.toml --dry-run      Train: idpgan train THIS.toml",
        "# Every key: python -m idpgan.commands.keys. What you leave out has its default.",
        *textwrap.wrap(f"# Method by rule. {why}", _LONGEST, subsequent_indent="# ")[: None if why else 0],
        "",
    ]
    for name, keys in sections.items():
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
