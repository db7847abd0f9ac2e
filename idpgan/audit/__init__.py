"""Audit: an empirical lower bound of epsilon, found by playing the distinguishing game against a mechanism.

A guarantee is an upper bound that a proof gives; an audit is a lower bound that an attack gives. An audit above the
proven epsilon refutes proof or code. An audit below it proves nothing (docs/audit.md). The names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.audit.bounds import AuditResult, cap, epsilon_bound
    from idpgan.audit.cases import CASES, AuditCase, Audited, Request
    from idpgan.audit.distinguish import audit
    from idpgan.audit.neighbors import Pair
    from idpgan.audit.one_run import OneRunResult, audit_guesses, audit_one_run, insert_canaries, make_canaries
    from idpgan.audit.statistics import Statistic

__all__ = [
    "CASES",
    "AuditCase",
    "AuditResult",
    "Audited",
    "OneRunResult",
    "Pair",
    "Request",
    "Statistic",
    "audit",
    "audit_guesses",
    "audit_one_run",
    "cap",
    "epsilon_bound",
    "insert_canaries",
    "make_canaries",
]

_MODULES = {
    "CASES": "cases",
    "AuditCase": "cases",
    "AuditResult": "bounds",
    "Audited": "cases",
    "OneRunResult": "one_run",
    "Pair": "neighbors",
    "Request": "cases",
    "Statistic": "statistics",
    "audit": "distinguish",
    "audit_guesses": "one_run",
    "audit_one_run": "one_run",
    "cap": "bounds",
    "epsilon_bound": "bounds",
    "insert_canaries": "one_run",
    "make_canaries": "one_run",
}

__getattr__ = lazy_names(__name__, _MODULES)
