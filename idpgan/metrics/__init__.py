"""What judges generated images: pure functions on tensors, nothing of a method.

All numbers of this room are computed with real, private images: they stay with the curator and no epsilon covers them.
The names below are loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.metrics.accuracy import Accuracy, measure_accuracy
    from idpgan.metrics.autoencoder import fit_feature_autoencoder
    from idpgan.metrics.cache import Cache
    from idpgan.metrics.dpimagebench import BenchmarkResult, BenchmarkSettings, measure_dpimagebench
    from idpgan.metrics.evaluation import Evaluation, evaluate_images
    from idpgan.metrics.fairness import Fairness, measure_fairness
    from idpgan.metrics.features import (
        FeatureClassifier,
        FeatureNetwork,
        class_probabilities,
        extract_features,
        fit_feature_classifier,
        full_training_set,
    )
    from idpgan.metrics.fidelity import (
        FidelityResult,
        NearestScores,
        frechet_distance,
        kernel_distance,
        measure_fidelity,
        nearest_scores,
    )
    from idpgan.metrics.filters import mean_filter, median_filter
    from idpgan.metrics.images import (
        absolute_error,
        entropy,
        grey_histograms,
        histogram_distance,
        mse,
        psnr,
        relative_error,
        ssim,
    )
    from idpgan.metrics.inception import InceptionResult, inception_score, measure_inception
    from idpgan.metrics.inception_v3 import load_inception
    from idpgan.metrics.recognition import Recognition, first_images, halves, recognize, recognize_by_network
    from idpgan.metrics.source import read_images
    from idpgan.metrics.utility import ClassifierScore, UtilityResult, measure_utility

__all__ = [
    "Accuracy",
    "BenchmarkResult",
    "BenchmarkSettings",
    "Cache",
    "ClassifierScore",
    "Evaluation",
    "Fairness",
    "FeatureClassifier",
    "FeatureNetwork",
    "FidelityResult",
    "InceptionResult",
    "NearestScores",
    "Recognition",
    "UtilityResult",
    "absolute_error",
    "class_probabilities",
    "entropy",
    "evaluate_images",
    "extract_features",
    "first_images",
    "fit_feature_autoencoder",
    "fit_feature_classifier",
    "frechet_distance",
    "full_training_set",
    "grey_histograms",
    "halves",
    "histogram_distance",
    "inception_score",
    "kernel_distance",
    "load_inception",
    "mean_filter",
    "measure_accuracy",
    "measure_dpimagebench",
    "measure_fairness",
    "measure_fidelity",
    "measure_inception",
    "measure_utility",
    "median_filter",
    "mse",
    "nearest_scores",
    "psnr",
    "read_images",
    "recognize",
    "recognize_by_network",
    "relative_error",
    "ssim",
]

_MODULES = {
    "Accuracy": "accuracy",
    "BenchmarkResult": "dpimagebench",
    "BenchmarkSettings": "dpimagebench",
    "Cache": "cache",
    "ClassifierScore": "utility",
    "Evaluation": "evaluation",
    "Fairness": "fairness",
    "FeatureClassifier": "features",
    "FeatureNetwork": "features",
    "FidelityResult": "fidelity",
    "InceptionResult": "inception",
    "NearestScores": "fidelity",
    "Recognition": "recognition",
    "UtilityResult": "utility",
    "absolute_error": "images",
    "class_probabilities": "features",
    "entropy": "images",
    "evaluate_images": "evaluation",
    "extract_features": "features",
    "first_images": "recognition",
    "fit_feature_autoencoder": "autoencoder",
    "fit_feature_classifier": "features",
    "frechet_distance": "fidelity",
    "full_training_set": "features",
    "grey_histograms": "images",
    "halves": "recognition",
    "histogram_distance": "images",
    "inception_score": "inception",
    "kernel_distance": "fidelity",
    "load_inception": "inception_v3",
    "mean_filter": "filters",
    "measure_accuracy": "accuracy",
    "measure_dpimagebench": "dpimagebench",
    "measure_fairness": "fairness",
    "measure_fidelity": "fidelity",
    "measure_inception": "inception",
    "measure_utility": "utility",
    "median_filter": "filters",
    "mse": "images",
    "nearest_scores": "fidelity",
    "psnr": "images",
    "read_images": "source",
    "recognize": "recognition",
    "recognize_by_network": "recognition",
    "relative_error": "images",
    "ssim": "images",
}

__getattr__ = lazy_names(__name__, _MODULES)
