"""Audit: an empirical lower bound of epsilon, found by playing the distinguishing game against a mechanism.

A guarantee is an upper bound that a proof gives; an audit is a lower bound that an attack gives. An audit above the
proven epsilon refutes proof or code. An audit below it proves nothing (docs/reference/audit.md).
The names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.audit.distinguish import audit as audit
    from idpgan.audit.one_run import audit_one_run as audit_one_run

__getattr__ = lazy_names(__name__, {"audit": "distinguish", "audit_one_run": "one_run"})
