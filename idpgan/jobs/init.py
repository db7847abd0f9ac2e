"""``idpgan init``: a commented config for a folder or a built-in source, which `train` accepts as it is."""

from __future__ import annotations

import logging
import math
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from idpgan.checks import typed
from idpgan.config import config_names, load_table, nearest_hint, packaged
from idpgan.data import face_folder, folder
from idpgan.data.config import DataConfig
from idpgan.data.declared import looks, probed, shown
from idpgan.data.image_files import in_folders, leftovers
from idpgan.data.images import names_people
from idpgan.data.labels import spelled, spellings
from idpgan.data.load import BY_NAME, SOURCES, DataShape, known_shape
from idpgan.data.metadata import METADATA, bits, class_values, read_rows
from idpgan.errors import DataError, InputError
from idpgan.files import pasted
from idpgan.jobs.prepare import was_aligned
from idpgan.jobs.probe import expected_seconds
from idpgan.models.config import SIZES, SIZES_IN_WORDS
from idpgan.progress import duration
from idpgan.synthesis.starter import EPSILON, Choice, Facts, Sections, Setting, alternatives, best
from idpgan.training.config import RunConfig, build_config, load_method
from idpgan.training.plan import plan_run

BEST = "best"
HANDWRITING, ALIGNED = ("digits", "mnist"), ("celeba",)
MOST_SHOWN_CLASSES, LEAST_PER_CLASS = (
    64,
    20,
)  # a column is not taken for classes where it has more values, or fewer images of each
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


@dataclass(frozen=True)
class _Data:
    settings: dict[str, Setting]
    counts: Counter[str]  # of a column; private
    others: tuple[str, ...] = ()  # columns that could hold labels too


@typed
def init(source: str, data_root: Path | None = None, method: str | None = None, probe: bool = False) -> Template:
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
    suggest = None if method == BEST else getattr(load_method(method), "suggest", None)
    if suggest is None and method != BEST:
        raise InputError(
            f"--method {method} has no config to begin with. Take one of the package's: {', '.join(config_names())}."
        )
    data, settings, facts = facts_of(source, data_root)
    shape = facts.shape
    choice = best(facts) if suggest is None else Choice(method, suggest(facts), "")
    sections = {"data": settings, **choice.sections}
    table = {name: {key: setting.value for key, setting in keys.items()} for name, keys in sections.items()}
    plan_run(build_config(table, "what init has written"), shape).check()
    counts = ", ".join(f"{name} {count:,}" for name, count in data.counts.most_common())
    note = f"For you alone, since it is private: images per class: {counts}. Classes with few images will be noise."
    text = _text(source, sections, data, shape, choice.why)
    left = leftovers(Path(source)) if source not in BY_NAME else {}
    notes = (
        (f"Left out, in hidden folders and what systems leave behind: {in_folders(left)} image files.",) if left else ()
    )
    return Template(text, table, (note,) if counts else (), (*_notes(choice, facts, settings, probe), *notes))


def _notes(choice: Choice, facts: Facts, settings: Mapping[str, Setting], probe: bool) -> tuple[str, ...]:
    """Say which method it is and why, how long it and the others take here, and from how many images on they serve."""
    lines = [f"Method by rule: {choice.method}. Why: {choice.why}."] if choice.why else []
    for each in (choice, *(alternatives(facts) if choice.why else ())):
        sections = {"data": settings, **each.sections}
        table = {name: {key: setting.value for key, setting in keys.items()} for name, keys in sections.items()}
        try:
            config = build_config(table, "what init has written")
            planned = plan_run(config, facts.shape)
            planned.check()
        except InputError:
            continue  # a method that such data does not suit is no alternative
        words = [each.method + (" with a teacher" if getattr(config.method, "teacher_share", 0) else "")]
        if probe:
            words.append(_how_long(config, facts.shape))
        signal = planned.signal
        if signal is not None and signal.figure > 0:
            least = math.ceil(facts.shape.num_private / signal.figure)
            words.append(f"below {least:,} images nothing but noise at epsilon {EPSILON:g}")
        lines.append(("" if each is choice else "Or --method ") + ", ".join(words))
    return tuple(lines)


def _how_long(config: RunConfig, shape: DataShape) -> str:
    try:
        return f"about {duration(expected_seconds(config, shape))} on this machine"
    except InputError as error:
        return f"how long is not known ({str(error).rstrip('.')})"


def facts_of(source: str, data_root: Path | None = None) -> tuple[_Data, dict[str, Setting], Facts]:
    """Return what a folder or a built-in source shows, its [data] with a split, and what is public of it.

    Raises:
        InputError: If the source is neither.
    """
    if source in BY_NAME:
        data = _Data({"name": Setting(source)} | ({"root": Setting(str(data_root))} if data_root else {}), Counter())
    elif Path(source).is_dir():
        data = _of_folder(Path(source).absolute())
    else:
        raise InputError(
            f"{source} is neither a folder nor a built-in source. {nearest_hint(source, BY_NAME)} A folder of photos "
            "of any size is made ready by idpgan prepare."
        )
    shape, settings, people = _split(data.settings)
    per_person = people[0] / people[1] if people else None
    return data, settings, Facts(shape, per_person, source in HANDWRITING, _is_aligned(source))


def _is_aligned(source: str) -> bool:
    """Tell whether the eyes of all faces are in the same places: a fact about the source, no photo is looked at."""
    return source in ALIGNED if source in BY_NAME else was_aligned(Path(source))


def _split(settings: dict[str, Setting]) -> tuple[DataShape, dict[str, Setting], tuple[int, int] | None]:
    """Return what is public, the section with its split, and images and people if they are known."""
    found = SOURCES[str(settings["name"].value)].describe(_config(settings))
    people = (sum(found.people), len(found.people)) if found and found.people else None
    if people:
        why = "nobody is trained on and tested on" if people[1] < people[0] else "each person has one image"
        why = "no photo is trained on and tested on" if found and found.of_photos else why
        settings = settings | {"split_by": Setting("identity", why)}
    try:
        return known_shape(_config(settings)), settings, people
    except DataError:  # too few for a holdout, or another problem, which is then reported
        settings = settings | {"holdout_share": Setting(0.0, "too few images for non-members: attacks need them")}
        return known_shape(_config(settings)), settings, people


def _config(settings: Mapping[str, Setting]) -> DataConfig:
    return DataConfig.model_validate({key: setting.value for key, setting in settings.items()})


# What a folder shows ---------------------------------------------------------------------------------------------


def _of_folder(root: Path) -> _Data:
    """Find out what is to be declared about a folder, from names and at most 100 headers."""
    settings = {"name": Setting("folder"), "root": Setting(str(root), "the private images; only curators read them")}
    if (root / METADATA).is_file():
        return _of_metadata(root, settings)
    layout = face_folder.known_layout(root)
    if layout is not None:
        people = face_folder.scan(root, layout)
        paths = [path for files in people.values() for path in files]
        settings |= {
            "name": Setting("face-folder"),
            "layout": Setting(layout, "a folder, or a name, is a person"),
            "num_images": Setting(len(paths), "N: files, empty ones too"),
            "num_people": Setting(len(people)),
        }
        return _Data(settings | _looks(root, paths), Counter())
    train, test = folder.scan(root)
    if len(train.classes) > MOST_SHOWN_CLASSES:
        raise InputError(
            f"{root} has {len(train.classes)} subfolders, too many to be classes. Say what they are: idpgan prepare "
            f"{pasted(root)} NEW --size 48 --folders person (or label, or none)."
        )
    counts = Counter(train.classes[label] for label in train.labels)
    settings["num_images"] = Setting(len(train.paths), "N: files, empty ones too" + " (test/ not counted)" * bool(test))
    why = "the subfolders; if they are people, begin with idpgan prepare --folders person" if counts else "unlabeled"
    settings["classes"] = Setting(list(train.classes), why)
    return _Data(settings | _looks(root, train.paths), counts)


def _of_metadata(root: Path, settings: dict[str, Setting]) -> _Data:
    """Read which columns there are, and what one of them may be for."""
    columns = read_rows(root, ()).columns
    rows = read_rows(root, columns)
    settings["num_images"] = Setting(len(rows.paths), "N: rows of metadata.csv, null records too")
    if rows.people is not None:
        why = "photos in the column cut_from" if rows.of_photos else "names in the column person"
        same = [] if rows.of_photos else spellings(rows.person_names)
        why += f"; one person each? {'; '.join(' = '.join(map(shown, group)) for group in same[:3])}" if same else ""
        settings["num_people"] = Setting(len(rows.person_names), why)
    settings |= _looks(root, rows.paths)
    if columns and not any(map(class_values, rows.values)):
        raise InputError(
            f"No row of {root / METADATA} has a value in {', '.join(columns)}. Fill the labels in, or take such "
            "columns out."
        )
    fitting = {
        column: values
        for column, values in zip(columns, rows.values, strict=True)
        if 1 < len(class_values(values)) <= min(MOST_SHOWN_CLASSES, len(values) // LEAST_PER_CLASS)
    }
    if not fitting:
        return _Data(settings | {"classes": Setting([], "no column with a few values: unlabeled")}, Counter())
    column, values = next(iter(fitting.items()))
    settings["label"] = Setting(column, "the column of metadata.csv that makes the classes")
    if None in bits(values):
        found = class_values(values)
        why = "keep those that you want; their names are released; images of others are null records"
        if not rows.of_photos and names_people(found, rows.person_names):
            why = "they seem to be people: a release calls them class-0, ...; their names only with keep_names = true"
        settings["classes"] = Setting(found, why)
    return _Data(
        settings,
        Counter(spelled(value) or "(blank)" for value in values),
        tuple(name for name in fitting if name != column),
    )


def _looks(root: Path, paths: list[Path] | tuple[Path, ...]) -> dict[str, Setting]:
    """Return size and channels that most images have."""
    shapes, first_error = probed(paths, None)
    found = looks(shapes)
    if not found and first_error is not None:
        raise first_error
    sizes = Counter(shape[1:] for shape in shapes if shape is not None)
    if 2 * max(sizes.values()) <= sizes.total():  # of those that are there: most rows may be null records
        raise InputError(
            f"Images of {root} have {len(sizes)} sizes among {sizes.total()} looked at, and all must have one. Make "
            f"them ready first: idpgan prepare {pasted(root)} NEW --size 48."
        )
    (height, width), _ = sizes.most_common(1)[0]
    if (height, width) not in SIZES:
        raise InputError(
            f"The images of {root} are {height} x {width} (height x width), and networks are built for "
            f"{SIZES_IN_WORDS}. Make them ready first: idpgan prepare {pasted(root)} NEW --size 48."
        )
    return {
        "image_size": Setting(found["image_size"], "px; an image of another size stands as a null record"),
        "channels": Setting(found["channels"], "1 grey, 3 color"),
    }


# What is written -------------------------------------------------------------------------------------------------


def _text(source: str, sections: Sections, data: _Data, shape: DataShape, why: str) -> str:
    """Write the sections, each setting with its reason."""
    lines = [
        f"# Made by: idpgan init {pasted(source)}",
        "# Cost without reading an image: idpgan train THIS.toml --dry-run      Train: idpgan train THIS.toml",
        "# Every key: docs/reference/keys.md. What you leave out has its default.",
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
            beside = f"{line:<{_WIDTH}} # {setting.why}" if setting.why else line
            lines += [beside] if len(beside) <= _LONGEST or not setting.why else [f"# {setting.why}", line]
        if name == "data" and data.others:
            lines.append(f"# other columns of labels: {', '.join(data.others)}")
        if name == "data":
            lines.append(f"# private images after test and holdout are split off: {shape.num_private:,}")
        lines.append("")
    return "\n".join(lines)
