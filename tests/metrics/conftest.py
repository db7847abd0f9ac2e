"""The embedded digits, and one feature classifier of them for all tests."""

import pytest

from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.metrics.features import fit_feature_classifier, full_training_set


@pytest.fixture(scope="package", autouse=True)
def quick_fits():
    """A third of the steps that small sets get otherwise: enough for what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.metrics.features.MIN_STEPS_PER_EPOCH", 30)
        yield


@pytest.fixture(scope="package")
def digits():
    return load(DataConfig())


@pytest.fixture(scope="package")
def feature_classifier(digits):
    return fit_feature_classifier(full_training_set(digits))
