"""Write images in the layouts of the face databases, so that their readers are tested without them."""

import json

from PIL import Image

from idpgan.data import sources
from idpgan.data.config import DataConfig
from idpgan.data.load import describe
from idpgan.data.sources.celeba import ALIGNED, ATTRIBUTES, CUT, IDENTITIES, PICTURES
from idpgan.errors import DataError
from idpgan.progress import silent

# The drawn faces' attributes under CelebA's names; the other 34 columns are -1.
CELEBA_NAMES = {
    "glasses": "Eyeglasses",
    "smiling": "Smiling",
    "mouth_open": "Mouth_Slightly_Open",
    "moustache": "Mustache",
    "bald": "Bald",
    "hat": "Wearing_Hat",
}


def declared(root, name="folder", **keys):
    """Return a config with what is public declared, as a user gets it: copied from the message that asks for it."""
    keys = {key: value for key, value in keys.items() if value is not None}
    config = DataConfig(name=name, root=root, **keys)
    try:
        describe(config)
    except DataError as error:
        _, found, lines = str(error).partition(f"Found in {root}: ")
        if not found:
            raise
        lines = lines.removesuffix(". Set these if you mean them.").removeprefix("data.").split(", data.")
        found = {key: json.loads(value) for key, value in (line.split(" = ", 1) for line in lines)}
        for key in ("classes", "image_size"):
            if isinstance(found.get(key), list):
                found[key] = tuple(found[key])
        return DataConfig(name=name, root=root, **{**found, **keys})
    return config


def read(config):
    """Return all images of a config's source, before they are split."""
    return sources.needed(config).load(silent)


def picture(images, index):
    """Return one image as Pillow's."""
    pixels = images.images[index].permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def save(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def places(images):
    """Yield index, person and number of the picture of that person, both from 1."""
    seen = {}
    for index, person in enumerate(images.identities.tolist()):
        seen[person] = seen.get(person, 0) + 1
        yield index, person + 1, seen[person]


def write_orl(root, images):
    for index, person, number in places(images):
        save(root / f"s{person}" / f"{number}.pgm", picture(images, index))
    (root / "README").write_text("The ORL Database of Faces")


def write_yale(root, images, extension="", kind="GIF"):
    for index, person, number in places(images):
        save(root / f"subject{person:02}.look{number}{extension}", picture(images, index), format=kind)
    (root / "Readme.txt").write_text("Yale")


def write_yale_b(root, images):
    for index, person, number in places(images):
        name = f"yaleB{person + 12}"  # the original lacks yaleB14
        save(root / name / f"{name}_P00A+{number:03}E+00.pgm", picture(images, index))
        save(root / name / f"{name}_P00_Ambient.pgm", Image.new("L", (640, 480)))
        (root / name / f"{name}_P00.info").write_text("list")
        (root / name / f"{name}_P00A+{number:03}E-20.pgm.bad").write_text("damaged at the source")


def write_faces94(root, images):
    for index, person, number in places(images):
        name = f"person{person}"
        sex = ("female", "male", "malestaff")[person % 3]
        save(root / sex / name / f"{name}.{number}.jpg", picture(images, index), quality=95)


def write_faces95(root, images):
    for index, person, number in places(images):
        save(root / f"person{person}" / f"person{person}.{number}.jpg", picture(images, index), quality=95)


def write_people(root, images):
    """CMU PIE and its like: a folder per person, files anywhere below."""
    for index, person, number in places(images):
        save(root / f"{person:05}" / "talking" / f"27_{number}.png", picture(images, index))


def write_celeba(root, images):
    """Write CelebA's files: pictures of 178 x 218 with the images in the middle, and the five lists."""
    names = [*CELEBA_NAMES.values(), *(f"Attribute_{number}" for number in range(34))]
    rows = {name: [] for name in ("attributes", "identities", "partition", "boxes", "landmarks")}
    for index, person, _ in places(images):
        name = f"{index + 1:06}.jpg"
        canvas = Image.new("RGB", ALIGNED, "grey")
        face = picture(images, index).convert("RGB").resize((CUT, CUT), Image.Resampling.BILINEAR)
        canvas.paste(face, ((ALIGNED[0] - CUT) // 2, (ALIGNED[1] - CUT) // 2))
        save(root / PICTURES / name, canvas, quality=95)
        bits = dict(zip(images.attribute_names, images.attributes[index].tolist(), strict=True))
        values = [2 * bits[ours] - 1 for ours in CELEBA_NAMES] + [-1] * 34
        rows["attributes"].append(f"{name} " + " ".join(f"{value:2}" for value in values))
        rows["identities"].append(f"{name} {person}")
        rows["partition"].append(f"{name} {index % 3}")
        rows["boxes"].append(f"{name}    95  71 226 313")
        rows["landmarks"].append(f"{name} 69  109  106  113   77  142   73  152  108  154")
    lists = {
        ATTRIBUTES: [str(len(images)), " ".join(names) + " ", *rows["attributes"]],
        IDENTITIES: rows["identities"],
        "list_eval_partition.txt": rows["partition"],
        "list_bbox_celeba.txt": [str(len(images)), "image_id x_1 y_1 width height", *rows["boxes"]],
        "list_landmarks_align_celeba.txt": [str(len(images)), "lefteye_x lefteye_y", *rows["landmarks"]],
    }
    for name, lines in lists.items():
        (root / name).write_text("\n".join(lines) + "\n")
