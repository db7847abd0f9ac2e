"""The share of the proven separation: what it is, that it reaches the proof, and that a forged one is refused."""

import dataclasses
import math

import pytest

from idpgan.audit.bounds import share_text
from idpgan.audit.cases import audited_again, stated_share
from idpgan.audit.entry import Request
from idpgan.commands.audit import method_case
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.report.epsilons import why


@pytest.fixture(scope="module")
def audited():
    return method_case("gaussian", Request(1.0, 1e-5)).run(400_000, seed=1)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_an_audit_of_one_gaussian_release_reaches_nine_tenths_of_the_proof(audited, epsilon):
    found = audited if epsilon == 1 else method_case("gaussian", Request(epsilon, 1e-5)).run(400_000, seed=1)
    share = found.result.separation.mu_lower / found.proven_mu
    assert 0.9 < share < 1
    assert found.result.held_out >= 50_000
    assert found.to_json()["share"] == share_text(found.result.separation.mu_lower, found.proven_mu)


def test_the_share_is_told_in_words_and_computed_again(audited):
    stated = audited.guarantee
    assert audited_again(stated) is None
    share, mine, proven = stated_share(stated)
    assert share == audited.to_json()["share"]
    assert float(mine) < float(proven) == pytest.approx(0.268, abs=1e-3)
    report = PrivacyReport(audited.case.claimed, audited.case.proven, stated, "a reason", True)
    assert f"{share} ({mine} of {proven} standard deviations)" in " ".join(why(report))


@pytest.mark.parametrize("forge", ["share", "mine", "proven", "counts", "words"])
def test_a_forged_share_is_refused(audited, forge):
    stated = audited.guarantee
    share, mine, proven = stated_share(stated)
    counts = f"right {audited.result.separation.true_positives} and wrong"
    old, new = {
        "share": (f"; {share}", "; 100 %"),
        "mine": (f": {mine} of", f": {float(mine) + 0.001:.4f} of"),
        "proven": (f"of {proven} standard", "of 0.2000 standard"),
        "counts": (counts, "right 9 and wrong"),
        "words": ("standard deviations", "standard deviations (very private)"),
    }[forge]
    changed = stated.basis.replace(old, new) if forge != "counts" else new.join(stated.basis.rsplit(old, 1))
    assert changed != stated.basis
    assert audited_again(dataclasses.replace(stated, basis=changed)) is not None


def test_a_basis_without_a_share_is_that_of_an_earlier_version_and_holds(audited):
    earlier = dataclasses.replace(audited.guarantee, basis=audited.guarantee.basis.partition("; ")[0])
    assert audited_again(earlier) is None
    assert stated_share(earlier) is None


def test_the_law_of_the_simulated_pair_stands_beside_the_proven_one():
    """The proof of arden is pure and must allow any law; 16 Laplace features are nearly Gaussian and show less."""
    found = method_case("arden", Request(1.0)).run(200_000, seed=1)
    assert found.exact_mu < 0.4 * found.proven_mu
    assert 0.85 < found.result.separation.mu_lower / found.exact_mu < 1
    gaussian = math.sqrt(16) / 16  # 16 features of epsilon / 16 each
    assert found.exact_mu == pytest.approx(gaussian, rel=0.05)
