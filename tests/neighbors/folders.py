"""Two folders on the disk that differ in one record, and what becomes of them on the way to a release."""

import dataclasses
import shutil

import numpy as np
import torch
from PIL import Image

from idpgan.data.images import Images
from idpgan.data.load import load
from idpgan.privacy import Ledger, Noise
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from tests.data.layouts import declared, save

CPU = torch.device("cpu")
SIDE, CLASSES, PER_CLASS = 8, ("bird", "cat", "dog"), 40
PEOPLE, PER_PERSON = 80, 3


def picture(seed, who=None):
    """A picture unlike the others, but for those of one person: a few large blocks of full contrast, and noise."""
    rng = np.random.default_rng(seed)
    blocks = np.random.default_rng(seed if who is None else who).integers(0, 2, (4, 4))
    blocks = np.kron(blocks, np.ones((2, 2))) * 200
    return Image.fromarray((blocks + rng.integers(0, 56, (SIDE, SIDE))).astype(np.uint8))


def write_classes(root):
    """Class folders of unlike pictures; return the [data] keys, declared."""
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for index in range(PER_CLASS):
            picture(label * PER_CLASS + index).save(root / name / f"{index:03}.png")
    return {"name": "folder", "root": root}


def write_people(root):
    """A folder for each person; return the [data] keys, declared."""
    for person in range(PEOPLE):
        (root / f"{person:03}").mkdir(parents=True)
        for index in range(PER_PERSON):
            picture(person * PER_PERSON + index, who=person).save(root / f"{person:03}" / f"{index}.png")
    return {"name": "face-folder", "root": root, "split_by": "identity"}


def write_metadata(root):
    """A folder with a metadata.csv, rows in an order of their own; return the [data] keys, declared."""
    rows = []
    for index in np.random.default_rng(3).permutation(PEOPLE * PER_PERSON).tolist():
        person, name = index // PER_PERSON, f"{index:03}.png"
        save(root / f"{person % 7}" / name, picture(index, who=person))
        rows.append(f"{person % 7}/{name},{CLASSES[index % 3]},{person}")
    (root / "metadata.csv").write_text("\n".join(["file_name,pet,person", *rows]) + "\n")
    return {"name": "folder", "root": root, "label": ("pet",), "classes": CLASSES, "split_by": "identity"}


def data_of(keys):
    """Return the [data] section with what is public declared."""
    return declared(**keys).model_dump(mode="json", exclude_none=True)


def neighbor(data, place, change):
    """Copy a folder, change the record's files in the copy, and return the [data] of the copy: nothing else differs."""
    root = place / "neighbor"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(data["root"], root)
    for path in change.files(root):
        change.apply(path)
    changed = {**data, "root": str(root)}
    if change.recount:  # the control: what a user would do who lost a file
        for key in ("num_images", "num_people"):
            changed.pop(key, None)
        changed = data_of(changed)
    return changed


@dataclasses.dataclass(frozen=True)
class Change:
    """What one record's files undergo: emptied, replaced by another picture, or deleted.

    Where there is a metadata.csv, a file may also be deleted with its row left ("unfiled") or its label ("unlabeled").
    """

    names: tuple[str, ...]
    how: str

    @property
    def recount(self):
        return self.how == "deleted"

    def files(self, root):
        return [root / name for name in self.names]

    def apply(self, path):
        if self.how == "emptied":
            path.write_bytes(b"")
        elif self.how == "replaced":
            picture(10_000 + sum(map(ord, path.name))).save(path)
        elif self.how == "unlabeled":
            table = path.parents[1] / "metadata.csv"
            name = str(path.relative_to(table.parent))
            lines = [line.split(",") for line in table.read_text().splitlines()]
            table.write_text("\n".join(",".join([a, "" if a == name else b, c]) for a, b, c in lines) + "\n")
        elif self.how == "unfiled":
            path.unlink()
        else:
            table = path.parents[1] / "metadata.csv"
            if table.exists():
                name = str(path.relative_to(table.parent))
                lines = table.read_text().splitlines(keepends=True)
                table.write_text("".join(line for line in lines if not line.startswith(name)))
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()


@dataclasses.dataclass(frozen=True)
class PartChange(Change):
    """Turn one pixel, one column or all of a picture into its negative."""

    unit: str = "image"

    def apply(self, path):
        pixels = np.asarray(Image.open(path)).copy()
        part = {"pixel": np.s_[2, 3], "column": np.s_[:, 3], "image": np.s_[:]}[self.unit]
        pixels[part] = np.where(pixels[part] < 128, 255, 0)
        Image.fromarray(pixels).save(path)


def private_names(data):
    """Names of the files of the private part, in the order of its positions."""
    root = declared(**data).data_root
    by_pixels = {
        np.asarray(Image.open(path)).tobytes(): str(path.relative_to(root)) for path in sorted(root.rglob("*.png"))
    }
    private = load(declared(**data)).private
    return [by_pixels[image.tobytes()] for image in private.images.numpy()]


def record(data, *, person=False):
    """Return the first file of the private part, or all files of its person."""
    names = private_names(data)
    chosen = min(names)
    if not person:
        return (chosen,)
    if data.get("label"):  # a metadata.csv says who is on it
        lines = (declared(**data).data_root / "metadata.csv").read_text().splitlines()
        who = {line.split(",")[0]: line.split(",")[2] for line in lines}
        return tuple(name for name in names if who[name] == who[chosen])
    return tuple(name for name in names if name.split("/")[0] == chosen.split("/")[0])


def method_of(data, table, seed=7):
    """Load, split, and build the method with recorded noise."""
    config = build_config({"data": data, **table}, "test")
    split = load(config.data)
    plan = plan_run(config, split.shape)
    plan.check()
    ledger = Ledger(plan.unit, plan.relation)  # without a target nothing has to be priced
    return load_method(config.method.name).Method(
        plan, split, ledger=ledger, device=CPU, noise=Noise.fixed(seed)
    ), split


def same_but(left: Images, right: Images, where):
    """Tell whether two sets are bitwise equal but for the positions `where`, bool (N,)."""
    assert len(left) == len(right)
    parts = [(getattr(left, name), getattr(right, name)) for name in ("images", "labels", "identities")]
    return all(a is b is None or torch.equal(a[~where], b[~where]) for a, b in parts)
