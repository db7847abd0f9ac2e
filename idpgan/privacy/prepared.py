"""The file of a one-time release, beside the ledger that names its hash; it is used only if the hashes agree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import safetensors.torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, move_durably, sha256_file, write_bytes_atomic


@dataclass(frozen=True)
class Committed:
    """What a ledger says of its one-time release.

    Attributes:
        digest: SHA-256 (hex) of the file of released tensors.
        position: Number of charges on the ledger, those of the release included.
        private: False where the noise came from a fixed seed.
    """

    digest: str
    position: int
    private: bool

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"sha256": self.digest, "position": self.position, "private": self.private}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`; raises `InputError` on anything else."""
        kinds = {"sha256": str, "position": int, "private": bool}
        if set(data) != set(kinds) or any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise InputError(f"not what a ledger says of a release: {data!r}.")
        return cls(data["sha256"], data["position"], data["private"])


class PreparedFile:
    """The file of released tensors, and its second name before the ledger names it; in memory without a path.

    The caller holds the ledger's lock. After a kill at any moment `recover` leaves the committed file under its name,
    or nothing.

    Attributes:
        path: ``prepared.safetensors``; None = in memory.
        tensors: What was released, on the CPU; None before.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.tensors: dict[str, Tensor] | None = None

    @property
    def _pending(self) -> Path | None:
        return None if self.path is None else self.path.with_name(f"{self.path.stem}.new{self.path.suffix}")

    def write_pending(self, content: bytes) -> None:
        """Write the content durably under the second name, before the ledger names it."""
        if self._pending is not None:
            write_bytes_atomic(self._pending, content, mode=PRIVATE_FILE)

    def finish(self, tensors: dict[str, Tensor]) -> None:
        """Rename the file, after the ledger names it."""
        if self.path is not None and self._pending is not None:
            move_durably(self._pending, self.path)
        self.tensors = tensors

    def recover(self, committed: Committed | None) -> dict[str, Tensor] | None:
        """Return what is committed and delete what is not; raises `InputError` if the file is missing or changed."""
        if self.path is None or self._pending is None:
            return None if committed is None else self.tensors
        for part in self.path.parent.glob(f".{self._pending.name}.*.part"):
            part.unlink(missing_ok=True)
        if self._pending.exists():
            if committed is not None and sha256_file(self._pending) == committed.digest:
                move_durably(self._pending, self.path)
            else:
                self._pending.unlink()
        if committed is None:
            self.path.unlink(missing_ok=True)
            return None
        if self.tensors is None:
            if not self.path.is_file() or sha256_file(self.path) != committed.digest:
                what = "is not what the ledger names" if self.path.is_file() else "is missing"
                raise InputError(
                    f"Cannot resume from {self.path}: it {what}. Restore the file from a copy, or start a new run."
                )
            self.tensors = safetensors.torch.load(self.path.read_bytes())
        return self.tensors


def serialize(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bytes, str]:
    """Return the tensors on the CPU, the content of their file, and its SHA-256 (hex)."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(plain)
    return plain, content, hashlib.sha256(content).hexdigest()
