"""The saved state of a run: written whole or not at all, loaded without unpickling code, refused where it is foreign.

state.pt holds weights, optimizers, random states and the state of the noise source: it is secret. A run continues only
with the same config, data and code. Steps after the state are repeated with the same noise and without a charge only if
the computation is the same: from the newest state, which the ledger names by its hash, on the CPU of an equal machine,
and by code of the user, if any, that computes the same (`Method.computation`).
Otherwise noise is drawn afresh and the repeated steps are charged again.
`idpgan.trainer.resume` calls for it, and `idpgan.training.loop` restores it and decides what is charged.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
import platform
import secrets
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, move_durably, write_bytes_atomic
from idpgan.own_code import source_digest
from idpgan.privacy.ledger import Ledger
from idpgan.privacy.tiles import teams_vary
from idpgan.run import RunFolder
from idpgan.version import code_digest

FORMAT = 3  # format of state.pt
_KEYS = frozenset({"format", "step", "method", "ledger_position", "recorder", "fingerprint", "machine", "prepared"})
_KERNELS = (  # beginnings of the variables that choose kernels, and threads beyond what torch counts
    "ATEN_", "DNNL_", "GLIBC_TUNABLES", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_",
)  # fmt: skip
_UNREADABLE = (
    OSError, RuntimeError, ValueError, LookupError, EOFError, TypeError,
    pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip


@dataclass(frozen=True)
class SavedState:
    """The state that a run continues from.

    Attributes:
        step: Critic steps done.
        method: What `Method.state` returned, "prepared" put back in.
        ledger_position: Number of charges on the ledger when the state was saved.
        recorder: What `Recorder.state` returned.
        exact: Whether the steps after this state, if repeated here, are bit for bit the same.
    """

    step: int
    method: dict[str, Any]
    ledger_position: int
    recorder: dict[str, Any]
    exact: bool = True


class StateStore:
    """Saves and loads the state of one run.

    Args:
        fingerprint: What must be equal for a resume, by name; see `run_fingerprint`.
        ledger: The run's; it names the newest state, and keeps the release of `prepare`.
        processes: Number of processes that train the run together; several never repeat steps exactly, as the state
            holds the noise of one process, and we do not control the order of their sums.
        computation: See `idpgan.training.method.Method.computation`.
    """

    def __init__(
        self,
        run: RunFolder,
        fingerprint: Mapping[str, str],
        ledger: Ledger,
        processes: int = 1,
        computation: str = "",
    ) -> None:
        self.run, self.processes, self.computation = run, processes, computation
        self.fingerprint = dict(fingerprint)
        self.ledger = ledger
        self._pending = run.state.with_name("state.new.pt")

    def save(self, saved: SavedState) -> None:
        """Write the state; the previous one stays until the new one is whole and the ledger names it.

        Raises:
            TypeError: If the state holds anything else than tensors and plain Python values, or something prepared
                that went past `Ledger.release` (a defect of the method).
        """
        method = dict(saved.method)
        if method.pop("prepared", None) is not None and self.ledger.released_digest is None:
            raise TypeError("state entry 'prepared' was not released by the ledger.")
        content = {
            "format": FORMAT,
            "step": saved.step,
            "method": method,
            "ledger_position": saved.ledger_position,
            "recorder": saved.recorder,
            "fingerprint": self.fingerprint,
            "machine": self._machine(),
            "prepared": self.ledger.released_digest,
        }
        for name, value in _leaves(content, ""):  # refused by `torch.load(weights_only=True)` on resume
            if not (value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor)):
                raise TypeError(
                    f"state entry '{name}' is a {type(value).__name__}: only tensors and plain values are saved."
                )
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_bytes_atomic(self._pending, buffer.getvalue(), mode=PRIVATE_FILE)
        self.ledger.record_state(hashlib.sha256(buffer.getbuffer()).hexdigest())  # now it is the newest state
        move_durably(self._pending, self.run.state)

    def load(self) -> SavedState | None:
        """Read the newest state, tensors on the CPU; None if there is none.

        Raises:
            InputError: If a file is missing or damaged, or if the fingerprint differs from that of the run.
        """
        self._refuse_difference(self.ledger.bind(self.fingerprint))
        prepared = self.ledger.released()
        exact = self._recover()
        if not self.run.state.exists():
            return None
        content = _read(self.run.state)
        if content["format"] != FORMAT:
            raise InputError(
                f"{self.run.state} has format {content['format']!r}, this version of idpgan reads {FORMAT}. "
                "Resume with the version that wrote it, or start a new run."
            )
        self._refuse_difference(content["fingerprint"])
        method = content["method"]
        if content["prepared"] is not None:
            if prepared is None or content["prepared"] != self.ledger.released_digest:
                raise InputError(_damaged(self.run.state, "it goes on from another release than the ledger names"))
            method["prepared"] = prepared
        equal = content["machine"] == self._machine() and self.processes == 1
        exact = exact and equal and self.fingerprint.get("device") == "cpu"
        return SavedState(content["step"], method, content["ledger_position"], content["recorder"], exact)

    @property
    def bound(self) -> dict[str, str]:
        """All that the bits of what this run computes follow from, by name."""
        return {**self.fingerprint, **self._machine()}

    def _machine(self) -> dict[str, str]:
        own = {"own code": self.computation} if self.computation else {}
        return {**machine_fingerprint(), "processes": str(self.processes), **own}

    def _recover(self) -> bool:
        """Finish or undo a save that was killed; return whether the ledger names the state."""
        newest = self.ledger.state_digest
        if self._pending.exists():
            if _sha256(self._pending) == newest:
                move_durably(self._pending, self.run.state)
            else:
                self._pending.unlink()
        return newest is not None and self.run.state.exists() and _sha256(self.run.state) == newest

    def _refuse_difference(self, saved: Mapping[str, str]) -> None:
        """Refuse to continue a run other than the saved one."""
        names = [name for name in {**saved, **self.fingerprint} if saved.get(name) != self.fingerprint.get(name)]
        if names:
            shown = "; ".join(
                f"{name}: {saved.get(name, 'nothing')[:12]} saved, {self.fingerprint.get(name, 'nothing')[:12]} now"
                for name in names
            )
            hide = "Hide the GPU (CUDA_VISIBLE_DEVICES=-1), or " if saved.get("device") == "cpu" else ""
            way_out = f"{hide}go on where it began, or start a new run."
            if names != ["device"]:
                way_out = f"Restore what differs (the config is in {self.run.config}), or start a new run."
            raise InputError(
                f"Cannot resume {self.run.path}: {shown}. A run goes on only as it began: otherwise its charges would "
                f"stand for other reads. {way_out}"
            )


def run_fingerprint(
    *, config: str, private_data: str, public_data: str, device: torch.device, own_code: Sequence[str] = ()
) -> dict[str, str]:
    """Return what must be equal for a resume, by name.

    Args:
        config: Digest of the resolved config.
        private_data: Digest of the private images and labels.
        public_data: Digest of the public ones: the noisy sums depend on what is learned from them.
        device: Where the run computes; random states do not carry over between kinds of device.
        own_code: Paths of the user's code that the run uses.
    """
    own = {"own code": source_digest(own_code) or "not in a file"} if own_code else {}
    return {
        "config": config,
        "private data": private_data,
        "public data": public_data,
        "code": code_digest(),
        "device": device.type,
        **own,
    }


def machine_fingerprint() -> dict[str, str]:
    """Return all that the bits of a result on the CPU may depend on besides config, data and code, by name.

    Sums are added in an order that depends on the number of threads and on the kernels that the libraries choose for
    the processor. The same noise on a sum that differs in its last bits is two releases, not one. Where the number of
    threads follows the machine's load, no two processes are equal. One thread never asks how many cores there are.
    """
    cores = str(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    return {
        "torch": str(torch.__version__),
        "build": hashlib.sha256(torch.__config__.show().encode()).hexdigest(),
        "threads": str(torch.get_num_threads()),
        "teams": secrets.token_hex(8) if teams_vary() else "as asked for",
        "cores": "any" if torch.get_num_threads() == 1 and not teams_vary() else cores,
        "libc": " ".join(platform.libc_ver()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "mkldnn": f"{torch.backends.mkldnn.is_available()} {torch.backends.mkldnn.enabled}",
        "deterministic": f"{torch.are_deterministic_algorithms_enabled()} {torch.backends.mkldnn.deterministic}",
        "default dtype": str(torch.get_default_dtype()),
        "matrix products": _matrix_products(),
        "variables": " ".join(
            f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_KERNELS)
        ),
    }


def _matrix_products() -> str:
    """Return the precision of matrix products of float32; "none" is torch's word for one that nobody set: IEEE's."""
    precision: str = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]  # made at run time
    return "ieee" if precision == "none" else precision


@functools.cache
def _processor() -> str:
    """Return the processor's model and a hash of its features; outside Linux the system's name for the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    cpu_facts = sorted(
        {line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "cache"))}
    )
    return f"{platform.machine()} {hashlib.sha256(chr(10).join(cpu_facts).encode()).hexdigest()}"


def nonfinite(values: dict[str, Any]) -> list[str]:
    """Return the names of the tensors in a nested state that hold NaN or infinity; one transfer per device."""
    flags: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors_of(values):
        if tensor.is_floating_point():
            flags.setdefault(tensor.device, []).append((name, tensor.isfinite().all()))
    bad = []
    for pairs in flags.values():
        good = torch.stack([flag for _, flag in pairs]).tolist()
        bad += [name for (name, _), is_good in zip(pairs, good, strict=True) if not is_good]
    return bad


def tensors_of(values: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the dotted names and the tensors of a nested state, in its order."""
    return [(name, value) for name, value in _leaves(values, "") if isinstance(value, Tensor)]


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of every leaf of nested dicts, lists and tuples."""
    if type(value) in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        pairs = [(str(key), item) for key, item in value.items()]
    elif type(value) in (list, tuple):
        pairs = [(str(i), item) for i, item in enumerate(value)]
    else:
        yield name, value
        return
    for key, item in pairs:
        yield from _leaves(item, f"{name}.{key}" if name else key)


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


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(_damaged(path, str(error))) from error


def _damaged(path: Path, reason: str) -> str:
    return f"Cannot resume from {path}: {reason}. Restore the file from a copy, or start a new run."
