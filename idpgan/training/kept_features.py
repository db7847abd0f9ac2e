"""Features of private images, kept in the curator's state while a run is not finished: a resume takes them.

They are functions of the images without noise, as private as these: files 0600 in ``state/features/`` of a run, which
never go into ``release/``. What reads them was charged as if it computed them, so nothing else is charged, and noise is
always drawn anew. A file is used only where it is what would be computed now: it names, in one digest, what its content
follows from (config, images, code, device, libraries, processor, and the tensors that fix the map), and the digest of
its content. Any other is removed, and its features are computed. Nothing in it is run when it is loaded.

What was released does not need them any more: they are removed after `Method.prepare` was charged and saved, and after
the last step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from idpgan.files import PRIVATE_FILE, PRIVATE_FOLDER, write_bytes_atomic
from idpgan.privacy.noise import Noise
from idpgan.privacy.sums import Batch, CellSums
from idpgan.progress import Progress, counted, silent

_SECONDS = 5.0  # of work that a kill may lose; shorter work is not kept at all
_MOST = 1 << 28  # bytes that wait to be written
_ROOM = 4  # so many times a part has to be free on the disk, which the run itself needs too
_BOUND, _CONTENT = "bound", "content"
_LOG = logging.getLogger(__name__)


class KeptFeatures:
    """What a run has computed of its private images, by names of the method.

    Args:
        folder: Where it lies; None = nothing is kept, and all is computed.
        bound: What must be equal for a use, by name: see `idpgan.training.state.StateStore.bound`.
    """

    def __init__(self, folder: Path | None = None, bound: Mapping[str, str] | None = None) -> None:
        self._folder, self._bound = folder, dict(bound or {})

    def rows(
        self,
        name: str,
        num: int,
        computed: Callable[[int], Iterable[Tensor]],
        *,
        fixed: Sequence[Tensor] = (),
        progress: Progress = silent,
        what: str = "features of images",
    ) -> Iterator[Tensor]:
        """Yield the features of ``num`` images in parts (B, ...), on the CPU where they were kept.

        Args:
            computed: Yields those of the images from a position on, which is 0 or the end of a part.
            fixed: Tensors that, beside the run, say what is computed.
        """
        bound, first = self._digest(name, fixed), 0
        while (part := self._read(f"{name}-{first}", bound)) is not None and 0 < len(part["rows"]) <= num - first:
            yield part["rows"]
            first += len(part["rows"])
        waiting, start, done, began = list[Tensor](), first, first, time.monotonic()
        for features in counted(computed(first) if first < num else (), progress, what, num, len, first):
            yield features
            done += len(features)
            if self._folder is None:
                continue
            waiting.append(features.cpu())
            late = time.monotonic() - began >= _SECONDS or sum(each.nbytes for each in waiting) >= _MOST
            if late or (done == num and start):
                self._write(f"{name}-{start}", bound, {"rows": torch.cat(waiting)})
                waiting, start, began = [], done, time.monotonic()

    def released(
        self,
        sums: CellSums,
        computed: Callable[..., Iterable[Batch]],
        num: int,
        noise: Noise,
        *,
        name: str = "sums",
        fixed: Sequence[Tensor] = (),
        progress: Progress = silent,
        what: str = "features of images",
    ) -> Tensor:
        """Release noisy sums of the vectors of ``num`` images, (cells, D) float64: see `CellSums.release`.

        Args:
            computed: Yields what is summed, of the images from ``first`` on, which is 0 or the end of a batch.
            noise: Drawn now, also where all sums were kept.
            fixed: Tensors that, beside the run, say what the vectors are.
        """
        bound = self._digest(name, fixed)
        saved = self._read(name, bound) or {}
        partial = _KeptSums(self, name, bound, int(saved.get("done", 0)), saved.get("total"))
        batches = computed(first=partial.done)
        return sums.release(
            counted(batches, progress, what, num, lambda part: len(part[0]), partial.done), noise, partial
        )

    @property
    def exist(self) -> bool:
        """Whether anything is kept."""
        return self._folder is not None and self._folder.is_dir()

    def erase(self) -> None:
        """Remove all of it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _digest(self, name: str, fixed: Sequence[Tensor]) -> str:
        tensors = [_content({str(number): tensor}) for number, tensor in enumerate(fixed)]
        return hashlib.sha256(json.dumps([name, self._bound, tensors], sort_keys=True).encode()).hexdigest()

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name.replace(' ', '-')}.safetensors"

    def _read(self, name: str, bound: str) -> dict[str, Tensor] | None:
        """Return what is kept under a name; None where it is not what is asked for, which is removed."""
        from safetensors import SafetensorError, safe_open

        path = self._path(name)
        if path is None or not os.path.lexists(path):
            return None
        with contextlib.suppress(OSError, SafetensorError, ValueError):
            if path.is_file() and not path.is_symlink():
                with safe_open(path, "pt") as file:
                    told = file.metadata() or {}
                    if told.get(_BOUND) == bound:
                        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
                        if told.get(_CONTENT) == _content(tensors):
                            return tensors
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def _write(self, name: str, bound: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors, if the disk has room: without them a resume computes what it would have found."""
        from safetensors.torch import save

        path, size = self._path(name), sum(tensor.nbytes for tensor in tensors.values())
        if path is None or self._folder is None:
            return
        try:
            self._folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            if shutil.disk_usage(self._folder).free >= _ROOM * size:
                content = save(dict(tensors), {_BOUND: bound, _CONTENT: _content(tensors)})
                write_bytes_atomic(path, content, mode=PRIVATE_FILE)
                return
            reason = "the disk has no room"
        except OSError as error:
            reason = error.strerror or str(error)
        _LOG.warning("Features are not kept in %s (%s): a resume will compute them again.", self._folder, reason)
        self._folder = None


NOT_KEPT = KeptFeatures()
"""Keeps nothing: all is computed."""


@dataclasses.dataclass
class _KeptSums:
    """Exact sums without noise over the first images: `idpgan.privacy.sums.CellSums` goes on from them.

    Attributes:
        done: Images that are in them.
        total: int64 (cells, dimensions); None where none are.
    """

    _features: KeptFeatures
    _name: str
    _bound: str
    done: int = 0
    total: Tensor | None = None
    _began: float = dataclasses.field(default_factory=time.monotonic)

    def keep(self, done: int, total: Tensor) -> None:
        """Keep the sums over so many images, if that is worth it."""
        if time.monotonic() - self._began >= _SECONDS:
            self._features._write(self._name, self._bound, {"done": torch.tensor(done), "total": total.long()})
            self._began = time.monotonic()


def _content(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of tensors, with their names, shapes and types."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
