"""What judges generated images: pure functions on tensors, nothing of a method.

All numbers of this room are computed with real, private images: they stay with the curator and no epsilon covers them.
The names below are loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.metrics.cache import Cache
    from idpgan.metrics.evaluation import Evaluation, evaluate_images
    from idpgan.metrics.features import (
        FeatureClassifier,
        class_probabilities,
        extract_features,
        fit_feature_classifier,
        full_training_set,
    )
    from idpgan.metrics.images import entropy, grey_histograms, histogram_distance, mse, psnr, ssim
    from idpgan.metrics.inception import InceptionResult, inception_score, measure_inception
    from idpgan.metrics.recognition import Recognition, halves, recognize
    from idpgan.metrics.source import read_images
    from idpgan.metrics.utility import ClassifierScore, UtilityResult, measure_utility

__all__ = [
    "Cache",
    "ClassifierScore",
    "Evaluation",
    "FeatureClassifier",
    "InceptionResult",
    "Recognition",
    "UtilityResult",
    "class_probabilities",
    "entropy",
    "evaluate_images",
    "extract_features",
    "fit_feature_classifier",
    "full_training_set",
    "grey_histograms",
    "halves",
    "histogram_distance",
    "inception_score",
    "measure_inception",
    "measure_utility",
    "mse",
    "psnr",
    "read_images",
    "recognize",
    "ssim",
]

_MODULES = {
    "Cache": "cache",
    "ClassifierScore": "utility",
    "Evaluation": "evaluation",
    "FeatureClassifier": "features",
    "InceptionResult": "inception",
    "Recognition": "recognition",
    "UtilityResult": "utility",
    "class_probabilities": "features",
    "entropy": "images",
    "evaluate_images": "evaluation",
    "extract_features": "features",
    "fit_feature_classifier": "features",
    "full_training_set": "features",
    "grey_histograms": "images",
    "halves": "recognition",
    "histogram_distance": "images",
    "inception_score": "inception",
    "measure_inception": "inception",
    "measure_utility": "utility",
    "mse": "images",
    "psnr": "images",
    "read_images": "source",
    "recognize": "recognition",
    "ssim": "images",
}

__getattr__ = lazy_names(__name__, _MODULES)
