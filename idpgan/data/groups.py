"""Groups of people: the values of another column of the curator's table, at the positions of the same split."""

from __future__ import annotations

from idpgan.config import nearest_hint
from idpgan.data.config import DataConfig
from idpgan.data.declared import own_root
from idpgan.data.load import Split, load
from idpgan.data.metadata import METADATA, class_values, read_table
from idpgan.errors import InputError
from idpgan.progress import Progress, silent

MOST_GROUPS = 30
_PUBLIC = ("public_root", "public", "public_images", "public_seed", "public_crop", "public_labels")


def load_groups(config: DataConfig, column: str, progress: Progress = silent) -> Split:
    """Return the split of a config with the values of a column as its classes; a blank stands as a null record.

    The column is one of the metadata.csv of a folder, or an attribute of another source. The positions of private,
    holdout and test are those of `load`; separate public images, of which the table says nothing, are left out.

    Raises:
        InputError: If there is no such column, or it has fewer than 2 or more than `MOST_GROUPS` values.
    """
    values = None
    if config.name == "folder":
        table = read_table(own_root(config, "images") / METADATA)
        if column not in table.label_columns:
            raise InputError(f"--by {column}: {table.path} has no such column. {nearest_hint(column, table.columns)}")
        values = tuple(class_values(table.column(column)))
        if not 2 <= len(values) <= MOST_GROUPS:
            raise InputError(
                f"--by {column} has {len(values)} values in {table.path}, and groups are 2 to {MOST_GROUPS}. Make a "
                "column of fewer, such as ages in steps of ten years."
            )
    nothing = dict.fromkeys(_PUBLIC)
    return load(
        config.model_copy(update={**nothing, "label": (column,), "classes": values, "keep_names": True}), progress
    )
