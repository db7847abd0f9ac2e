"""`face-folder`: the face databases of the papers, each recognized by its folder layout. Every image has a person.

    orl        s1/1.pgm                                ORL / AT&T
    yale       subject01.happy, subject01.happy.gif    Yale: one flat folder, with or without an extension
    yale-b     yaleB01/yaleB01_P00A+000E+00.pgm        extended Yale B, cropped
    faces94    male/PERSON/PERSON.1.jpg                Faces94: folders of people inside male, female, malestaff
    faces95    PERSON/PERSON.1.jpg                     Faces95
    people     PERSON/...                              a folder per person, files of any name at any depth (CMU PIE)

The layouts are tried in this order; ``data.layout`` selects one instead. If a folder holds only one folder, that folder
is read. People and files are ordered by their numbers (s2 before s10, 2.pgm before 10.pgm), so that "the first half of
each person's images" means the same as in the paper.

Left out, besides hidden files: ``README*``, ``*.txt`` and ``*.html`` in any layout; in yale-b also ``*_Ambient.pgm``
(taken without flash), ``*.bad`` (damaged at the source), ``*.info`` and ``*.log``. Numbers may have gaps in yale-b (the
original lacks yaleB14); a gap in orl and yale is an error.

A file that is empty, damaged or of another size keeps its position and its person as a null record. The numbers of
images and people, size and channels are declared (`declared`). The layout says who is on which picture; this is public.

Images are unlabeled: identities are people and not classes, since a private generator of a single person cannot hide
that person among others. To use people as classes, read the same folder with ``data.name = "folder"``. Formats, colors
and sizes are treated as in `folder`: images are not resized, and ``data.channels = 1`` converts colors to grey.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from idpgan.config import nearest_hint
from idpgan.data import cells, declared, image_files
from idpgan.data.config import DataConfig
from idpgan.data.source import DataSet, PublicFacts, Read, Source
from idpgan.errors import ConfigError, DataError
from idpgan.progress import Progress

People = dict[str, list[Path]]  # image files by the name of the person, both unsorted
_SEXES = ("male", "female", "malestaff", "male staff")
_IMAGE = "|".join(extension[1:] for extension in (*image_files.EXTENSIONS, ".gif"))
_ORL = re.compile(r"s(\d+)")
_YALE = re.compile(rf"(subject(\d+)[._](?!(?:{_IMAGE})$)\w+)(?:\.(?:{_IMAGE}))?", re.IGNORECASE)
_YALE_B = re.compile(r"yaleB(\d+)", re.IGNORECASE)
_NOTES = re.compile(r"readme.*|.*\.(txt|html?)", re.IGNORECASE)
_YALE_B_NOTES = re.compile(r".*_ambient\.pgm|.*\.(bad|info|log)", re.IGNORECASE)


def find(config: DataConfig) -> DataSet | None:
    """Compare the declared values with the file names and some headers; return None if the folder is missing.

    Raises:
        DataError: If the layout is unknown, a person is missing or has no images, a file has no place in the layout, or
            the folder contradicts what is declared.
    """
    root = declared.own_root(config, "faces")
    if not root.is_dir():
        return None
    people = scan(root, config.layout)
    declared.warn_of_spellings(people, str(root))
    counts = tuple(map(len, people.values()))
    paths = tuple(path for files in people.values() for path in files)
    shape = declared.declared_shape(config, root, paths, {"num_images": len(paths), "num_people": len(people)})
    numbers = tuple(number for number, count in enumerate(counts) for _ in range(count))
    files = image_files.Files(paths, people=numbers)
    return DataSet(
        PublicFacts(len(paths), None, shape, (), people=counts), lambda progress: _load(files, shape, progress)
    )


def _load(files: image_files.Files, shape: image_files.Shape, progress: Progress) -> Read:
    """Decode every image once, person after person."""
    images, refused = image_files.read_files(files, shape, progress=progress)
    return Read(images, refused=refused)


def scan(root: Path, layout: str | None = None) -> People:
    """List the image files of each person, both in the order of their numbers.

    Args:
        root: The folder of a face database, or a folder that holds only that folder.
        layout: A name of `LAYOUTS`; None recognizes it.

    Raises:
        ConfigError: If there is no layout of that name.
        DataError: As `read` raises it, without opening a file.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"data.layout = '{layout}' is not a known layout. {nearest_hint(layout, LAYOUTS)}")
    if not root.is_dir():
        raise DataError(SOURCE.missing.format(root=root))
    declared.warn_of_leftovers(root)
    members = _visible(root)  # if a folder holds only one folder of folders, that folder is read
    while len(members) == 1 and members[0].is_dir() and members[0].name.lower() not in _SEXES:
        inside = _visible(members[0])
        if not (any(path.is_dir() for path in inside) or (inside and all(_YALE.fullmatch(p.name) for p in inside))):
            break
        root, members = members[0], inside
    people = LAYOUTS[layout or recognize(root)](root)
    return {name: sorted(people[name], key=_natural_path) for name in sorted(people, key=_natural)}


def tree(root: Path) -> tuple[Path, ...]:
    """List all images at any depth below a folder, whatever they show, by folder and name, s2 before s10.

    Raises:
        DataError: If the folder is missing or cannot be listed, holds no image, or a file that is neither an image nor
            a note.
    """
    if not root.is_dir():
        raise DataError(f"There is no folder {root}. Name the folder of images.")
    declared.warn_of_leftovers(root)
    files = _images_among(image_files.walk(root), _YALE)
    if not files:
        raise DataError(f"{root} holds no images. Put some there, or name another folder.")
    return tuple(sorted(files, key=lambda path: (_natural_path(path.parent), _natural(path.name))))


def recognize(root: Path) -> str:
    """Return the name of a folder's layout; raises `DataError` if no layout fits."""
    members = _visible(root)
    folders = [path for path in members if path.is_dir()]
    if members and not folders and all(_YALE.fullmatch(path.name) for path in members):
        return "yale"
    if folders and len(folders) == len(members):
        names = [path.name for path in folders]
        if all(map(_ORL.fullmatch, names)):
            return "orl"
        if all(map(_YALE_B.fullmatch, names)):
            return "yale-b"
        if all(name.lower() in _SEXES for name in names):
            return "faces94"
        inside = ((path.name, [file.name for file in _visible(path)]) for path in folders)  # listed until one tells
        named = (files and all(file.startswith(f"{person}.") for file in files) for person, files in inside)
        return "faces95" if all(named) else "people"
    stray = next((path for path in members if not path.is_dir() and not _YALE.fullmatch(path.name)), None)
    what = "is empty" if not members else f"holds {stray.name if stray is not None else 'files beside folders'}"
    raise DataError(
        f"{root} {what}, and so has no known layout of faces ({', '.join(LAYOUTS)}). Move what is not a face away, "
        'make a folder for each person, or read it without people as data.name = "folder".'
    )


def known_layout(root: Path) -> str | None:
    """Return the layout of a face database whose names identify the people; None for any other folder."""
    try:
        layout = recognize(root)
    except DataError:
        return None
    return None if layout == "people" else layout


# One function per layout ---------------------------------------------------------------------------------------


def _orl(root: Path) -> People:
    people = _by_folder(root)
    for name in people:
        _matched(_ORL, root / name, "s1, s2, ...")
    _without_gaps(root, [int(name[1:]) for name in people], "s{}")
    return people


def _yale(root: Path) -> People:
    people: People = {}
    first: dict[str, Path] = {}
    for path in _visible(root):
        match = _matched(_YALE, path, "subject01.happy, with or without an extension")
        if first.setdefault(match[1].lower(), path) != path:
            raise DataError(f"{first[match[1].lower()]} and {path} are the same picture. Move one of them away.")
        people.setdefault(f"subject{int(match[2]):02}", []).append(path)
    _without_gaps(root, [int(name.removeprefix("subject")) for name in people], "subject{:02}")
    return people


def _yale_b(root: Path) -> People:
    people = _by_folder(root, leave_out=_YALE_B_NOTES)
    for name in people:
        _matched(_YALE_B, root / name, "yaleB01, yaleB02, ...")
        for path in people[name]:
            if not path.name.startswith(f"{name}_P"):
                raise DataError(
                    f"{path} is not named after its person, as {name}_P00A+000E+00.pgm is. Move it away, or set "
                    'data.layout = "people".'
                )
    return people


def _faces94(root: Path) -> People:
    people: People = {}
    for part in _folders(root):
        for name, files in _by_folder(part).items():
            people[f"{part.name}/{name}"] = files
    return people


def _by_folder(root: Path, leave_out: re.Pattern[str] | None = None) -> People:
    people: People = {}
    for place in _folders(root):
        files = [path for path in image_files.walk(place) if leave_out is None or not leave_out.fullmatch(path.name)]
        name = cells.read(place.name)
        cells.check_names([name], f"{root}: the person")
        if name in people:
            raise DataError(f"{place} and another folder have one name. Put their images into one of them.")
        people[name] = _images_among(files)
        if not people[name]:
            raise DataError(f"{place} holds no images of this person. Put them there, or empty files of their names.")
    return people


def _images_among(paths: Sequence[Path], also: re.Pattern[str] | None = None) -> list[Path]:
    """Return the paths without notes; refuse a name that is neither an image name nor in ``also``."""
    files = [path for path in paths if not _NOTES.fullmatch(path.name)]
    for path in files:
        if path.suffix.lower() not in (*image_files.EXTENSIONS, ".gif") and not (also and also.fullmatch(path.name)):
            raise DataError(f"{path} is not an image (known: {' '.join(image_files.EXTENSIONS)} .gif). Move it away.")
    return files


LAYOUTS: Mapping[str, Callable[[Path], People]] = {
    "orl": _orl,
    "yale": _yale,
    "yale-b": _yale_b,
    "faces94": _faces94,
    "faces95": _by_folder,
    "people": _by_folder,
}


# Helpers -------------------------------------------------------------------------------------------------------


def _visible(root: Path) -> list[Path]:
    """List a folder without hidden files and notes."""
    return [path for path in image_files.entries(root) if path.is_dir() or not _NOTES.fullmatch(path.name)]


def _folders(root: Path) -> list[Path]:
    """List the folders of a folder that must hold nothing else."""
    members = _visible(root)
    for path in members:
        if not path.is_dir():
            raise DataError(f"{path} lies beside folders of people: move it into one of them, or away.")
    if not members:
        raise DataError(f"{root} holds no folders of people. Put them there, or name another folder.")
    return members


def _matched(pattern: re.Pattern[str], path: Path, expected: str) -> re.Match[str]:
    match = pattern.fullmatch(path.name)
    if match is None:
        raise DataError(f"{path} has no place in this layout, whose names are like {expected}. Move it away.")
    return match


def _without_gaps(root: Path, numbers: Sequence[int], name: str) -> None:
    """Refuse a gap in the numbers of people, or a number that two people have."""
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if twice:
        raise DataError(f"{root} has two folders of person {twice[0]}. Move one of them away.")
    missing = sorted(set(range(min(numbers), max(numbers) + 1)) - set(numbers))
    if missing:
        raise DataError(
            f"{root} has {name.format(min(numbers))} to {name.format(max(numbers))}, but no "
            f"{', '.join(name.format(number) for number in missing[:5])}. Put that person's images back, or empty "
            "files of their names, which keep the positions. Only where the set never had that person, give the people "
            "after the gap folders of other names."
        )


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sorting key by numbers: s2 before s10."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def _natural_path(path: Path) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    return tuple(_natural(part) for part in path.parts)


SOURCE = Source(find, "There is no folder {root}. Name the folder of faces: data.root or --data-root.")
