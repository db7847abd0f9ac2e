"""A folder of tensors, each file named by the hash of everything that it was computed from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from idpgan.errors import InputError
from idpgan.files import check_writable, write_bytes_atomic

_LOG = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return ``$IDPGAN_CACHE``, else ``idpgan`` in the user's cache folder."""
    chosen = os.environ.get("IDPGAN_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return (Path(chosen) if chosen else home / "idpgan").expanduser()


@dataclass(frozen=True)
class Cache:
    """Keeps results that are costly to recompute. Some depend on private images: curator only.

    A key names contents by their hashes, so an entry can be missing but never be out of date. A damaged file counts as
    missing. Several processes may share a folder, which is made on first use with mode 0700. None keeps nothing.
    """

    folder: Path | None

    def get(self, kind: str, key: Mapping[str, Any], compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the tensors of a key on the CPU; compute and keep them if they are not there.

        Args:
            kind: First part of the file's name, for people.
            key: Everything that the tensors depend on, as JSON values.

        Raises:
            InputError: If the folder cannot be read or written.
        """
        if self.folder is None:
            return compute()
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{kind}-{name[:32]}.safetensors"
        try:  # before computing: an unusable folder is refused at once
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_writable(path)
            content = path.read_bytes() if path.is_file() else b""
        except OSError as error:
            raise InputError(
                f"Cannot use the cache folder {self.folder} ({error.strerror or error}). "
                "Name another one: set IDPGAN_CACHE."
            ) from error
        with contextlib.suppress(SafetensorError):
            return load(content)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in compute().items()}
        try:
            write_bytes_atomic(path, save(tensors), mode=0o600)
        except OSError as error:  # the result took minutes: use it, although it is not kept
            _LOG.warning("%s is not kept for the next time (%s).", path, error.strerror or error)
        return tensors
