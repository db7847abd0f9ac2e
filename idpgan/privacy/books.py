"""The entries of a run's ledger, and the file in which any ledger is kept: locked, with a checksum, read whole.

The file of a run's one-time release lies beside its ledger. It is used only if the ledger names its hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from idpgan.data.image_files import LEDGER
from idpgan.errors import InputError
from idpgan.files import file_lock, move_durably, parse_json, parts_of, sha256_file
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit, number_from_json, parse_relation, parse_unit
from idpgan.privacy.plan import Budget, Price
from idpgan.privacy.totals import Part

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "idpgan ledger 2"
REMEDY = "Restore it from a copy, or start a new run."
_TOLERANCE = 1e-9  # relative difference of a recomputed price: another machine rounds differently

T = TypeVar("T")


class BudgetError(InputError):
    """A charge that would exceed the target, or that does not belong in this ledger."""


@dataclass(frozen=True)
class LedgerTerms:
    """What a ledger is made for: every event has this unit and this relation.

    Attributes:
        target: What may be spent; None = no limit.
        owner: Hash of the run's configuration.
        contained: Charged before all else: what releases cost that the run builds on and that may have read the same
            records. ``target`` is for the ledger's own events and does not count them; the stated total does.
    """

    unit: Unit
    relation: Relation
    target: Budget | None = None
    owner: str = ""
    contained: tuple[Part, ...] = ()


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


@dataclass
class Books:
    """What stands on a ledger.

    Attributes:
        entries: Every charge, in order, run-length encoded.
        repeated: Charges of a continuation that repeats steps with fresh noise; the config does not plan them.
        fingerprint: What must be equal in every continuation of the run, by name.
        state: SHA-256 (hex) of the newest saved state; None where there is none to repeat steps from.
        committed: The one-time release; None before it.
    """

    terms: LedgerTerms
    entries: list[Event] = field(default_factory=list)
    repeated: list[Event] = field(default_factory=list)
    fingerprint: dict[str, str] = field(default_factory=dict)
    state: str | None = None
    committed: Committed | None = None

    def check(self, event: Event) -> None:
        """Refuse anything but an event of this unit and relation."""
        if not isinstance(event, Event):
            raise BudgetError(f"a ledger takes events, got {type(event).__name__}.")
        unit, relation = self.terms.unit, self.terms.relation
        if (event.unit, event.relation) != (unit, relation):
            raise BudgetError(
                f"this ledger counts unit {unit} under {relation}; the event speaks of unit {event.unit} "
                f"under {event.relation}. Price the mechanism for the ledger's pair; the two are never mixed."
            )

    def after(self, position: int) -> list[Event]:
        """Return the charges after the first ``position`` charges; raises `BudgetError` if there are fewer."""
        ahead = count(self.entries) - position
        if position < 0 or ahead < 0:
            raise BudgetError(
                f"the saved state stands at charge {position}, but the ledger holds {position + ahead}: "
                "they are not of one run. Restore both from the same place, or start a new run."
            )
        later: list[Event] = []
        for event in reversed(self.entries):
            if ahead == 0:
                break
            later.insert(0, event.repeated(min(ahead, event.count)))
            ahead -= later[0].count
        return later

    def refuse_overspent(self) -> None:
        """Refuse books that hold more than their target: `Ledger.charge` would not have written them."""
        target = self.terms.target
        if target is not None:
            spent = compose_epsilon(self.entries, target.delta)
            if spent > target.epsilon * (1 + _TOLERANCE):
                raise InputError(f"it holds charges of epsilon = {spent:.6g}, above its target {target.epsilon:g}.")

    def refuse_unplanned(self, price: Price) -> None:
        """Refuse books that a run of another config would have kept."""
        terms = self.terms
        if (terms.unit, terms.relation) != (price.unit, price.relation):
            raise InputError(f"it counts unit {terms.unit} under {terms.relation}, the config does not.")
        if terms.target != price.budget:
            raise InputError(f"its target is {terms.target}, that of the config is {price.budget}.")
        if terms.contained != price.contained:
            raise InputError("it holds other charges of contained releases than the config names.")
        if not price.exact:
            return
        allowed: dict[Event, int] = {}
        for event in price.events:
            allowed[event.single] = allowed.get(event.single, 0) + event.count
        for event in self.repeated:
            if event.single in allowed:
                allowed[event.single] += event.count
        for event in self.entries:
            allowed[event.single] = allowed.get(event.single, 0) - event.count
            if allowed[event.single] < 0:
                raise InputError(f"it holds {event}, which the config does not plan, or not so often.")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, with the checksum of everything in it."""
        terms = self.terms
        content = {
            "format": FORMAT,
            "owner": terms.owner,
            "unit": str(terms.unit),
            "relation": str(terms.relation),
            "target": terms.target.to_json() if terms.target else None,
            "fingerprint": self.fingerprint,
            "events": [event.to_json() for event in self.entries],
            "repeated": [event.to_json() for event in self.repeated],
            "release": self.committed.to_json() if self.committed else None,
            "state": self.state,
        }
        if terms.contained:
            content["contained"] = [part.to_json() for part in terms.contained]
        return {**content, "checksum": checksum(content)}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Rebuild from `to_json`; another format or checksum, or an unknown entry, raises `InputError`."""
        with unsealed(data, FORMAT):
            target, unit, relation = data["target"], parse_unit(data["unit"]), parse_relation(data["relation"])
            if target is not None:
                target = Budget(number_from_json(target["epsilon"]), number_from_json(target["delta"]))
            contained = tuple(Part.from_json(item) for item in data.get("contained", ()))
            books = cls(LedgerTerms(unit, relation, target, str(data["owner"]), contained))
            for entries, key in ((books.entries, "events"), (books.repeated, "repeated")):
                if not isinstance(data[key], list):
                    raise TypeError(f"{key} is not a list")
                for item in data[key]:
                    event = Event.from_json(item)
                    books.check(event)
                    append(entries, event)
            books.fingerprint = {str(name): str(value) for name, value in data["fingerprint"].items()}
            books.state = None if data["state"] is None else str(data["state"])
            books.committed = None if data["release"] is None else Committed.from_json(data["release"])
            if unknown := set(data) - set(books.to_json()) - {"contained"}:
                raise ValueError(f"unknown entries: {', '.join(sorted(unknown))}")
        return books

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Rebuild from the content of a file; raises `InputError` if it is damaged, foreign or changed."""
        return parsed(content, path, cls.from_json)


def append(entries: list[Event], event: Event) -> None:
    """Append an event, run-length encoded."""
    if entries and entries[-1].single == event.single:
        event = event.repeated(entries.pop().count + event.count)
    entries.append(event)


def count(entries: Sequence[Event]) -> int:
    """Return the number of charges."""
    return sum(event.count for event in entries)


# The file of a ledger ----------------------------------------------------------------------------------------------


def lock_of(path: Path) -> Path:
    """Return the hidden file beside a ledger whose lock is the ledger's."""
    return path.with_name(f".{path.name}.lock")


def is_marked(path: Path) -> bool:
    """Whether that file says that the ledger had a limit."""
    mark = lock_of(path)
    return mark.is_file() and mark.stat().st_size > 0


def ledgers_near(bases: Iterable[Path]) -> set[Path]:
    """Return the ledgers in folders and, below the root of the file system, in those that lie in them.

    What vanishes meanwhile, or is another user's, is passed over. Those folders may hold millions of images.
    """
    found = set[Path]()
    for base in bases:
        places = [base]
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            places += [base / entry.name for entry in entries if base.name and not entry.is_file(follow_symlinks=False)]
        for place in places:
            with contextlib.suppress(OSError):
                found |= {place.resolve() / name for name in os.listdir(place) if name.endswith(LEDGER)}
    return found


@contextlib.contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Lock a ledger against all other users, and remove the files that killed writers left.

    Args:
        busy: Message of the `InputError` if another holds the lock; None = wait for it.
    """
    with file_lock(lock_of(path), busy=busy):
        for part in parts_of(path):
            part.unlink(missing_ok=True)  # the writer of this file is dead: all live ones wait for this lock
        yield


def refusal(path: Path, reason: str, remedy: str = REMEDY) -> InputError:
    """Say why a ledger cannot be used, and what to do."""
    return InputError(f"the ledger {path} cannot be used: {reason.removesuffix('.')}. {remedy}")


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextlib.contextmanager
def unsealed(data: Any, form: str) -> Iterator[None]:
    """Check format and checksum of a ledger's JSON; turn any error of the block that reads it into an `InputError`.

    Raises:
        InputError: If it is of another format than ``form``, was changed, or a missing or unknown entry, or one of
            another type, raises any error in the block.
    """
    actual = data.get("format") if isinstance(data, dict) else None
    if actual != form:
        raise InputError(
            f"its format is not the right one: it is {str(actual)[:40]!r}, this version of idpgan reads {form!r}."
        )
    content = {name: value for name, value in data.items() if name != "checksum"}
    if data.get("checksum") != checksum(content):
        raise InputError("it was changed: its checksum does not fit.")
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(f"it is not written by idpgan ({str(error)[:200]}).") from error


def parsed(content: bytes, path: Path, build: Callable[[Any], T], remedy: str = REMEDY) -> T:
    """Return what ``build`` makes of the JSON of a ledger's file; see `unsealed`.

    Raises:
        InputError: With the path and the remedy, also if the content is damaged.
    """
    try:
        data = parse_json(content)
    except ValueError as error:
        raise refusal(path, f"it is damaged ({error})", remedy) from error
    try:
        return build(data)
    except InputError as error:
        raise refusal(path, str(error), remedy) from error


# The file of a one-time release ------------------------------------------------------------------------------------


def recover(
    file: Path, pending: Path, committed: Committed | None, known: dict[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """Return the released tensors that a ledger names (None if it names none), and delete any that it does not name.

    The caller holds the ledger's lock. After a kill at any moment either the committed file lies under its name, or no
    file.

    Args:
        file: Where the tensors lie.
        pending: Its second name, from before the ledger named it.
        committed: What the ledger names.
        known: The tensors, if they were read or written before; they are not read again.

    Raises:
        InputError: If the file is missing or changed.
    """
    for part in parts_of(pending):
        part.unlink(missing_ok=True)
    if pending.exists():
        if committed is not None and sha256_file(pending) == committed.digest:
            move_durably(pending, file)
        else:
            pending.unlink()
    if committed is None:
        file.unlink(missing_ok=True)
        return None
    if known is None:
        if not file.is_file() or sha256_file(file) != committed.digest:
            what = "is not what the ledger names" if file.is_file() else "is missing"
            raise InputError(f"Cannot resume from {file}: it {what}. Restore the file from a copy, or start a new run.")
        from safetensors.torch import load

        known = load(file.read_bytes())
    return known
