"""The saved state of a run: written whole or not at all, loaded without unpickling code, refused where it is foreign.

state.pt holds weights, optimisers, random states and the state of the noise source: it is secret. A resumed run draws
the same noise again, which is sound only for the identical run; that is why config, data, code and device are compared.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.run import RunFolder, sha256_file, write_bytes_atomic

FORMAT = 1  # of state.pt
_SECRET = 0o600
_KEYS = frozenset({"format", "step", "method", "ledger_position", "recorder", "fingerprint", "prepared"})
_UNREADABLE = (
    OSError, RuntimeError, ValueError, LookupError, EOFError, TypeError,
    pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


@dataclass(frozen=True)
class SavedState:
    """What a run continues from.

    Attributes:
        step: Critic steps done.
        method: What `Method.state` returned, "prepared" put back in.
        ledger_position: Number of charges on the ledger when the state was saved.
        recorder: What `Recorder.state` returned.
    """

    step: int
    method: dict[str, Any]
    ledger_position: int
    recorder: dict[str, Any]


class StateStore:
    """Saves and loads the state of one run.

    Args:
        run: The run folder.
        fingerprint: What must be equal for a resume, by name; see `run_fingerprint`.
    """

    def __init__(self, run: RunFolder, fingerprint: Mapping[str, str]) -> None:
        self.run = run
        self.fingerprint = dict(fingerprint)
        self._prepared: str | None = None  # SHA-256 of prepared.safetensors once it is written or read

    def exists(self) -> bool:
        """Whether there is a state to resume from."""
        return self.run.state.exists()

    def save(self, saved: SavedState) -> None:
        """Write the state; the previous one stays until the new one is whole.

        Raises:
            TypeError: If the state holds anything else than tensors and plain Python values (a defect of the method).
        """
        method = dict(saved.method)
        prepared = method.pop("prepared", None)
        if prepared is not None and self._prepared is None:
            self._prepared = _write_prepared(self.run.prepared, prepared)
        content = {
            "format": FORMAT,
            "step": saved.step,
            "method": method,
            "ledger_position": saved.ledger_position,
            "recorder": saved.recorder,
            "fingerprint": self.fingerprint,
            "prepared": self._prepared,
        }
        _check_plain(content)
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_bytes_atomic(self.run.state, buffer.getvalue(), mode=_SECRET)

    def load(self) -> SavedState:
        """Read the state, tensors on the CPU.

        Raises:
            InputError: If a file is missing or damaged, or if the fingerprint differs from the saved one.
        """
        for part in self.run.state_dir.glob(".*.part"):
            part.unlink(missing_ok=True)  # half-written by a run that was killed, and secret
        content = _read(self.run.state)
        if content["format"] != FORMAT:
            raise InputError(
                f"{self.run.state} has format {content['format']!r}, this version of idpgan reads {FORMAT}. "
                "Resume with the version that wrote it, or start a new run."
            )
        self._refuse_difference(content["fingerprint"])
        method = content["method"]
        self._prepared = content["prepared"]
        if self._prepared is not None:
            method["prepared"] = _read_prepared(self.run.prepared, self._prepared)
        return SavedState(content["step"], method, content["ledger_position"], content["recorder"])

    def _refuse_difference(self, saved: Mapping[str, str]) -> None:
        """Refuse to continue another run than the saved one."""
        names = [name for name in {**saved, **self.fingerprint} if saved.get(name) != self.fingerprint.get(name)]
        if names:
            shown = "; ".join(
                f"{name}: {_short(saved.get(name))} saved, {_short(self.fingerprint.get(name))} now" for name in names
            )
            raise InputError(
                f"Cannot resume {self.run.path}: {shown}. Resuming draws the same noise again, which is sound only for "
                f"the identical run. Restore what differs (the config is in {self.run.config}), or start a new run."
            )


def run_fingerprint(*, config: str, private_data: str, device: torch.device) -> dict[str, str]:
    """Return what must be equal for a resume, by name.

    Args:
        config: Digest of the resolved config.
        private_data: Digest of the private images and labels.
        device: Where the run computes; random states do not carry over between kinds of device.
    """
    return {
        "config": config,
        "private data": private_data,
        "code": code_digest(),
        "torch": str(torch.__version__),
        "device": device.type,
    }


def code_digest() -> str:
    """Return the SHA-256 (hex) of the package's own source files, names and contents."""
    root = Path(__file__).resolve().parents[1]
    sha = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        sha.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return sha.hexdigest()


def nonfinite(values: dict[str, Any]) -> list[str]:
    """Return the names of the tensors in a nested state that hold NaN or infinity; one transfer per device."""
    tensors = [(name, t) for name, t in _leaves(values, "") if isinstance(t, Tensor) and t.is_floating_point()]
    flags: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        flags.setdefault(tensor.device, []).append((name, tensor.isfinite().all()))
    bad = []
    for pairs in flags.values():
        good = torch.stack([flag for _, flag in pairs]).tolist()
        bad += [name for (name, _), is_good in zip(pairs, good, strict=True) if not is_good]
    return bad


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of everything inside nested dicts, lists and tuples."""
    if type(value) in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        pairs = [(str(key), item) for key, item in value.items()]
    elif type(value) in (list, tuple):
        pairs = [(str(i), item) for i, item in enumerate(value)]
    else:
        yield name, value
        return
    for key, item in pairs:
        yield from _leaves(item, f"{name}.{key}" if name else key)


def _check_plain(content: dict[str, Any]) -> None:
    """Refuse what `torch.load(weights_only=True)` would refuse after a kill, when it is too late."""
    for name, value in _leaves(content, ""):
        if not (value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor)):
            raise TypeError(
                f"state entry '{name}' is a {type(value).__name__}: only tensors and plain values are saved."
            )


def _read(path: Path) -> dict[str, Any]:
    """Read state.pt; `torch.load` does not check the stored checksums, so a flipped bit would go unnoticed."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is None:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(content, dict) and set(content) == _KEYS:
                return content
        reason = f"its part '{damaged}' fails its checksum" if damaged else "it is not a state of idpgan"
    except _UNREADABLE as error:
        reason = "it is not readable" if isinstance(error, pickle.UnpicklingError) else f"{error}".split("\n")[0][:200]
        raise InputError(_damaged(path, reason)) from error
    raise InputError(_damaged(path, reason))


def _write_prepared(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write what `prepare` released, once; returns its SHA-256."""
    content = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_bytes_atomic(path, content, mode=_SECRET)
    return hashlib.sha256(content).hexdigest()


def _read_prepared(path: Path, digest: str) -> dict[str, Tensor]:
    """Read what `prepare` released, and only that."""
    if not path.exists():
        raise InputError(_damaged(path, "it is missing"))
    if sha256_file(path) != digest:
        raise InputError(_damaged(path, "its content is not what the state names"))
    tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    return tensors


def _damaged(path: Path, reason: str) -> str:
    """Say that a file of the state cannot be used, and what to do."""
    return f"Cannot resume from {path}: {reason}. Restore the file from a copy, or start a new run."


def _short(value: str | None) -> str:
    """Shorten a hash for a message."""
    return "nothing" if value is None else value[:12]
