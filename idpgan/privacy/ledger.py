"""The one place where privacy is spent: charged durably before the read or with its result, refused beyond the target.

A ledger on the disk is replaced whole at every charge, under the lock of a file beside it. A charge first reads the
file again, so no handle and no process loses the charge of another.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, move_durably, write_bytes_atomic, write_text_atomic
from idpgan.privacy import accounting, books
from idpgan.privacy.books import Books, BudgetError
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit
from idpgan.privacy.noise import Noise
from idpgan.privacy.plan import Budget, Price
from idpgan.privacy.totals import Part

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Budget", "BudgetError", "Ledger"]


class Ledger:
    """All private reads of one data set, for one unit and one relation, in order, run-length encoded.

    `charge` comes before the read that it pays for. With a ``path`` the charge is on the disk (written, synced,
    renamed) when `charge` returns. A failure afterwards may leave a charge for a read that never happened, but no read
    goes unpaid. `release` is for a one-time read whose result is kept: charge and result stand or fall together. A read
    without a proof (`Event.non_private`) makes epsilon infinite once and for all, so only the first of a row is synced;
    `flush` writes their count.

    The ledger also names the newest saved state of its run (`record_state`). Steps after that state may be repeated
    without a charge (`rewind`); steps after any other state are charged again (`repeat`).
    """

    def __init__(
        self,
        unit: Unit,
        relation: Relation,
        target: Budget | None = None,
        path: Path | None = None,
        owner: str = "",
        contained: Sequence[Part] = (),
    ) -> None:
        """Open an empty ledger. Every event must be of its unit and relation.

        Args:
            target: Budget that `charge` refuses to exceed; None = no limit.
            path: Where the ledger is kept on disk; None = in memory. Charges of a ledger of the same terms that lies
                there already count.
            owner: Hash of the run's configuration; `open` refuses a ledger of another owner.
            contained: Charges of the releases that the run builds on, outside the target; `totals.total` adds all up.
        """
        self.path = path
        self.unit: Final = unit
        self.relation: Final = relation
        self.target: Final = target
        self.owner: Final = owner
        self.contained: Final = tuple(contained)
        self.before_repeating: Callable[[Sequence[Event]], None] | None = None  # asked before charges beyond the plan
        self._books = Books(books.LedgerTerms(unit, relation, target, owner, self.contained))
        self._released: dict[str, Tensor] | None = None  # what `release` returned, on the CPU
        self._replay: list[Event] = []  # charges that a resumed run meets again, the next one last
        # The last priced event, how often it is affordable at least, and whether it is no more often.
        self._allowance: tuple[Event, int, bool] | None = None
        self._unwritten: list[Event] = []  # unprotected reads that wait for a `flush`
        self._seen: bytes | None = None  # content of the file when this handle last saw it
        self._stale = False  # a write failed: memory and disk may differ
        self._absent: Books | None = None  # the books while there was no file yet

    @classmethod
    def of(cls, price: Price, owner: str = "") -> Self:
        """Open an empty ledger in memory for what a plan charges."""
        return cls(price.unit, price.relation, price.budget, owner=owner, contained=price.contained)

    def __repr__(self) -> str:
        events, target = books.count(self.events), self.target
        limit = f", at most epsilon = {target.epsilon:g} at delta = {target.delta:g}" if target else ""
        return f"<Ledger of unit {self.unit}, {self.relation}: {events:,} charges{limit}>"

    # Reading the books -----------------------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """Every charge, in order; equal ones in a row are one event with a count."""
        return tuple(self._books.entries)

    @property
    def position(self) -> int:
        """Number of charges met so far; a resumed run meets the charges of repeated steps again."""
        return books.count(self._books.entries) - books.count(self._replay)

    @property
    def state_digest(self) -> str | None:
        """SHA-256 (hex) of the newest saved state; None where there is none to repeat steps from."""
        return self._books.state

    @property
    def released_digest(self) -> str | None:
        """SHA-256 (hex) of what `release` returned; None before."""
        return None if self._books.committed is None else self._books.committed.digest

    @property
    def released_position(self) -> int:
        """Number of charges when `release` was done; 0 before."""
        return 0 if self._books.committed is None else self._books.committed.position

    @property
    def has_repeated(self) -> bool:
        """Whether steps were charged again, so that the run may be shorter than planned."""
        return bool(self.repeated)

    @property
    def repeated(self) -> tuple[Event, ...]:
        """Charges for steps that were repeated with fresh noise, which no plan has."""
        return tuple(self._books.repeated)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of all charges at ``delta``; infinite where nothing is proven.

        Takes up to a second for tens of thousands of steps: call it at ticks, not per step.
        """
        return accounting.compose_epsilon(self._books.entries, delta)

    def proven(self, delta: float) -> Guarantee:
        """Return the proven guarantee at ``delta``; an infinite epsilon has delta 0, since no delta makes it finite."""
        epsilon = self.epsilon(delta)
        reads = books.count(self._books.entries)
        kinds = ", ".join(sorted({event.kind for event in self._books.entries})) or "nothing"
        basis = f"privacy loss accounting of {reads} charge{'s' if reads != 1 else ''} ({kinds})"
        return Guarantee(epsilon, delta if math.isfinite(epsilon) else 0.0, self.unit, self.relation, basis)

    def affordable(self, event: Event, planned: int = 0) -> int:
        """Return how often ``event`` can still be charged, at most 2^40.

        Where all ``planned`` charges can be paid, that number is the answer, and holds for them: one composition for a
        run. Otherwise, and for a charge beyond them, bisection finds the largest, once.
        """
        self._books.check(event)
        target = self._books.terms.target
        if target is None:
            return 1 << 40
        paid, spent = books.count(self._replay), self._books.entries  # charges to be met again are paid already
        single, most, largest = self._allowance or (None, 0, False)
        if single != event.single or (most + paid < max(planned, event.count) and not largest):
            single, most = event.single, planned - paid
            largest = most <= 0 or not accounting.is_within(
                [*spent, single.repeated(most)], target.epsilon, target.delta
            )
            if largest:
                most = accounting.affordable(spent, single, target.epsilon, target.delta, most)
            self._allowance = (single, most, largest)
        return most + paid

    # Spending --------------------------------------------------------------------------------------------------

    def charge(self, event: Event) -> None:
        """Charge ``event`` before the read that it pays for.

        Raises:
            BudgetError: If the event is of another unit or relation, the target would be exceeded, or a resumed run
                charges something else than the interrupted one did. Nothing is charged then.
        """
        self._books.check(event)
        if self._replay:
            self._meet_again(event)
            return
        entries = self._books.entries
        if not event.is_private and entries and entries[-1].single == event.single:
            books.append(entries, event)  # the ledger on the disk has an infinite epsilon already
            books.append(self._unwritten, event)
            return
        with self._changed():
            if self._books.terms.target is not None and event.count > self.affordable(event):
                raise self._exceeds([event])
            books.append(self._books.entries, event)
            if self._allowance is not None:
                single, most, largest = self._allowance
                self._allowance = (single, most - event.count, largest) if single == event.single else None

    def charge_together(self, events: Sequence[Event]) -> None:
        """Charge the events of one read before it: all of them, or none if the target does not cover them together.

        Raises:
            BudgetError: See `charge`.
        """
        self._refuse_beyond(events)
        for event in events:
            self.charge(event)

    def release(
        self, events: Sequence[Event], compute: Callable[[], Mapping[str, Tensor]], *, noise: Noise
    ) -> dict[str, Tensor]:
        """Read private data once, keep the noisy result, and charge it: all of this or nothing, whenever it is stopped.

        A later call returns the same result from the disk; nothing is computed or charged again. While ``compute`` runs
        nothing with noise leaves the process, so a run that is stopped there has released nothing. Then (1) the result
        is written beside the ledger under a second name; (2) the ledger that names its hash replaces the old one, and
        from here on the result is released and paid; (3) the result gets its name. A result that no ledger names is
        deleted, never used.

        Args:
            events: What the read costs.
            compute: Reads, adds noise, and returns named tensors; called at most once, and only if the target covers
                it.
            noise: What ``compute`` draws from; a result of a fixed seed is never taken for a private one.

        Returns:
            The released tensors, on the CPU. Not to be modified in place.

        Raises:
            BudgetError: If the target would be exceeded. Then nothing was read, or nothing of it is kept.
            InputError: If what was released is missing, damaged, or was drawn from a fixed seed.
        """
        released, committed = self.released(), self._books.committed
        if released is not None and committed is not None:
            if noise.private and not committed.private:
                raise InputError("the saved release was made with a fixed noise seed and is not private; start anew.")
            return released
        self._refuse_beyond(events)
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in compute().items()}
        content = save(tensors)
        with self._newest():
            if self._books.committed is not None:
                raise BudgetError("another process has released from this ledger meanwhile. Resume the run.")
            self._refuse_beyond(events)
            file, pending = self._prepared or (None, None)
            if pending is not None:
                write_bytes_atomic(pending, content, mode=PRIVATE_FILE)
            for event in events:
                books.append(self._books.entries, event)
            self._allowance = None
            digest = hashlib.sha256(content).hexdigest()
            self._books.committed = books.Committed(digest, books.count(self._books.entries), noise.private)
            self._write()  # the commit
            if file is not None and pending is not None:
                move_durably(pending, file)
            self._released = tensors
        return tensors

    def released(self) -> dict[str, Tensor] | None:
        """Return what `release` returned; None if it was never finished, and then no trace of it is left.

        Raises:
            InputError: If the result is missing, or not what the ledger names.
        """
        with self._newest():
            committed = self._books.committed
            if self._prepared is not None:
                self._released = books.recover(*self._prepared, committed, self._released)
            return None if committed is None else self._released

    def flush(self) -> None:
        """Write the ledger to its path, durably."""
        with self._changed():
            pass

    # Going on after an interruption ----------------------------------------------------------------------------

    def bind(self, fingerprint: Mapping[str, str]) -> Mapping[str, str]:
        """On the first call remember what must be equal in every continuation of the run; return what is remembered."""
        if not self._books.fingerprint:
            with self._changed():
                self._books.fingerprint = self._books.fingerprint or dict(fingerprint)
        return self._books.fingerprint

    def record_state(self, digest: str) -> None:
        """Name the newest saved state by its SHA-256 (hex), durably; unwritten charges are written with it."""
        with self._changed():
            self._books.state = digest

    def rewind(self, position: int) -> None:
        """Go back to an earlier `position` of the same run, to repeat the steps after it with the same noise.

        The charges after ``position`` stay on the ledger. `charge` meets them again in order and adds nothing to them:
        the same read with the same noise is one release. The caller vouches that the repeated steps are bit for bit the
        same, by comparing state, config, data, code and machine.

        Raises:
            BudgetError: If the position lies beyond the ledger: the state belongs to another ledger.
        """
        self._replay = self._books.after(position)[::-1]
        self._allowance = None

    def repeat(self, position: int, paid_ahead: Sequence[Event] = ()) -> None:
        """Go back to an earlier `position`, to repeat the steps after it with fresh noise.

        The charges after ``position`` stay on the ledger, and repeated steps are charged again. The newest saved state
        is forgotten: the charges that follow it paid for other noise, so no step may be repeated without a charge
        before the next state is saved.

        Args:
            position: Where the state was saved; `released_position` where there is none.
            paid_ahead: Charges made in advance for the repeated steps; charged again here.

        Raises:
            BudgetError: If the position lies beyond the ledger, or the target does not cover ``paid_ahead``.
        """
        again = [*self._books.after(position), *paid_ahead]
        self._replay = []
        if again and self.before_repeating is not None:
            self.before_repeating(again)
        if again or self._books.state is not None:
            with self._changed():
                for event in again:
                    books.append(self._books.repeated, event)
                self._books.state = None
        for event in paid_ahead:
            self.charge(event)

    def _meet_again(self, event: Event) -> None:
        remaining = event.count
        while remaining:
            if not self._replay or self._replay[-1].single != event.single:
                raise BudgetError(
                    "the resumed run charges something else than the interrupted one did, so it is another run: "
                    "its repeated steps would need fresh noise and a fresh charge. Start a new run."
                )
            head = self._replay.pop()
            met = min(remaining, head.count)
            remaining -= met
            if head.count > met:
                self._replay.append(head.repeated(head.count - met))

    def _refuse_beyond(self, events: Sequence[Event]) -> None:
        """Refuse several charges that the target does not cover together."""
        for event in events:
            self._books.check(event)
        together, target = [*self._books.entries, *events], self._books.terms.target
        if target is not None and accounting.compose_epsilon(together, target.delta) > target.epsilon:
            raise self._exceeds(events)

    def _exceeds(self, events: Sequence[Event]) -> BudgetError:
        what = " and ".join(f"{event.count} x {event.kind}" for event in events)
        target = self._books.terms.target or Budget(math.inf, 0.0)
        return BudgetError(
            f"{what} would exceed the target epsilon = {target.epsilon:g} at delta = {target.delta:g} "
            f"({self.epsilon(target.delta):.4g} is spent, unit {self.unit}, {self.relation}). Nothing was read. "
            "Raise the target, add noise, or stop here."
        )

    # Keeping the books -----------------------------------------------------------------------------------------

    @property
    def _prepared(self) -> tuple[Path, Path] | None:
        """The file of the one-time release, and its second name from before it is paid; None in memory."""
        names = "prepared.safetensors", "prepared.new.safetensors"
        return None if self.path is None else (self.path.with_name(names[0]), self.path.with_name(names[1]))

    @contextlib.contextmanager
    def _newest(self) -> Iterator[None]:
        """Lock out all other handles, and read the books as they stand on the disk."""
        with contextlib.nullcontext() if self.path is None else books.locked(self.path):
            self._look()
            yield

    @contextlib.contextmanager
    def _changed(self) -> Iterator[None]:
        """Write the newest books when the block ends without an exception."""
        with self._newest():
            yield
            self._write()

    def _look(self) -> None:
        """Read the books again if the file changed. The caller holds the lock.

        The content is compared, not its time: two charges of another process may lie within one tick of the clock.
        """
        if self.path is None:
            return
        if self.path.is_symlink():  # a charge would replace the link, and never reach its target
            raise BudgetError(f"the ledger {self.path} is a symbolic link. Name the file itself.")
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            if self._seen is not None:
                raise BudgetError(f"the ledger {self.path} is gone: what was spent is unknown. Restore it.") from None
            if self._stale and self._absent is not None:  # the first write failed: its content is not charged
                self._books, self._allowance, self._stale = self._absent, None, False
            self._books.committed = None  # not written yet, or not with success
            self._absent = copy.deepcopy(self._books)
            return
        if content == self._seen and not self._stale:
            return
        found = Books.parse(content, self.path)
        if found.terms != self._books.terms:
            raise BudgetError(f"the ledger {self.path} is another one than this run's; it is not written over.")
        if self._replay and found.entries != self._books.entries:
            raise BudgetError(f"the ledger {self.path} was charged by another process while this run was continued.")
        begun = self._seen is None and not self._stale and bool(self._books.entries)  # in memory, before it had a path
        if begun and found.entries:
            raise BudgetError(f"the ledger {self.path} is in use by another process; it is not written over.")
        if not begun:
            self._books, self._allowance = found, None
            for event in self._unwritten:
                books.append(found.entries, event)
        self._seen, self._stale = content, False

    def _write(self) -> None:
        """Replace the file, under the lock. After an error `_look` reads what is really on the disk."""
        if self.path is not None:
            text = json.dumps(self.to_json(), indent=1) + "\n"
            self._stale = True
            write_text_atomic(self.path, text, mode=PRIVATE_FILE)
            self._seen, self._stale, self._unwritten = text.encode(), False, []

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, with the checksum of everything in it."""
        return self._books.to_json()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`, in memory; raises `InputError` on anything foreign or changed."""
        return cls._of(Books.from_json(data))

    @classmethod
    def _of(cls, found: Books, path: Path | None = None) -> Self:
        terms = found.terms
        ledger = cls(terms.unit, terms.relation, terms.target, path, terms.owner, terms.contained)
        ledger._books = found
        return ledger

    @classmethod
    def open(cls, path: Path, owner: str, price: Price | None = None) -> Self:
        """Load the ledger kept at ``path``; further charges are kept there too.

        This checks the checksum, the owner, that the charges keep to the target, and what ``price`` says: unit,
        relation, target, and that no event is charged that the config does not plan, or more often than planned and
        repeated. The checksum finds damage and careless edits. Whoever can write the file can forge it; ``price`` and
        the hash of the saved state make that harder.

        Args:
            owner: Hash of the run's configuration.
            price: What the run plans to charge; None = the config is not at hand.

        Raises:
            InputError: If the file is missing, damaged, foreign, of another owner, or not what the config says.
        """
        if not path.is_file():
            raise InputError(
                f"no ledger at {path}: the run's spending is unknown, so it cannot go on. Start a new run."
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"the ledger {path} cannot be read ({error.strerror or error}). Check its permissions."
            ) from error
        ledger = cls._of(Books.parse(content, path), path)
        ledger._seen = content
        if ledger.owner != owner:
            raise InputError(
                f"the ledger {path} belongs to another configuration, or another version of idpgan began the run. "
                "Resume the run that wrote it, with the version that began it."
            )
        try:
            if price is not None:
                ledger._books.refuse_unplanned(price)
            ledger._books.refuse_overspent()
        except InputError as error:
            raise books.refusal(path, str(error)) from error
        return ledger
