"""Papers of drawn images for catalogs: Croissant metadata, and an entry for a registry of deployments.

Both are made from what the release states, without a network. What only the curator can say is left open.

Sources: the Croissant format 1.0 and its vocabulary for responsible AI 1.0 (MLCommons 2024); the description of a
deployment by Nanayakkara, Ghazi and Vadhan (2025), "Practitioners' Perspectives on a Differential Privacy Deployment
Registry", arXiv 2509.13509, on which the Differential Privacy Deployments Registry is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from idpgan.data.metadata import FILE_NAME, LABEL, METADATA
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit, number_to_json
from idpgan.release.card import RECORDS
from idpgan.release.verify import Opened

CROISSANT, DEPLOYMENT = "croissant.json", "dp-deployment.json"
_SPOKEN = ("http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0")
_ALIASES = (  # of Croissant's context: short for cr:NAME
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
} | {name: f"cr:{name}" for name in _ALIASES}
_OPEN = "to be stated by the curator"


def croissant(release: Opened, manifest: Mapping[str, Any], name: str, content: bytes) -> dict[str, Any]:
    """Return the Croissant metadata of drawn images.

    Args:
        release: What they were drawn from.
        manifest: Of the images.
        name: Of the file that lists or holds them: the metadata.csv of a folder, or an ``.npz`` file.
        content: Of that file.
    """
    settings = release.settings
    file = {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "encodingFormat": "text/csv" if name == METADATA else "application/x-npz",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    title = f"{manifest['num']:,} generated images after {settings.data}, method {settings.method}"
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": title,
        "description": f"{title}. {_protection(release)}",
        "conformsTo": list(_SPOKEN),
        "license": settings.license or "unknown",
        "version": "1.0.0",
        **_responsible(release, manifest),
        "distribution": [file, *_pictures(name)],
        "recordSet": _records(name, bool(manifest["classes"])),
    }


def _pictures(name: str) -> list[dict[str, Any]]:
    if name != METADATA:
        return []
    return [
        {
            "@type": "cr:FileSet",
            "@id": "images",
            "name": "images",
            "encodingFormat": "image/png",
            "includes": "**/*.png",
        }
    ]


def _records(name: str, labeled: bool) -> list[dict[str, Any]]:
    """Return the record sets: rows of the table, and pictures; an ``.npz`` file has no columns that a reader knows."""
    if name != METADATA:
        return []
    columns = [FILE_NAME, LABEL] if labeled else [FILE_NAME]
    rows = [
        _field("rows", each, "sc:Text", {"fileObject": {"@id": name}, "extract": {"column": each}}) for each in columns
    ]
    pictures = [
        _field("pictures", each, kind, {"fileSet": {"@id": "images"}, "extract": {"fileProperty": of}})
        for each, kind, of in (("image", "sc:ImageObject", "content"), ("path", "sc:Text", "fullpath"))
    ]
    return [
        {"@type": "cr:RecordSet", "@id": each, "name": each, "field": fields}
        for each, fields in (("rows", rows), ("pictures", pictures))
    ]


def _field(records: str, name: str, kind: str, source: Mapping[str, Any]) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": f"{records}/{name}", "name": name, "dataType": kind, "source": source}


def _responsible(release: Opened, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for responsible AI: where the images come from, what they show, what they are not for."""
    settings, report = release.settings, release.stated.report
    protected = RECORDS.get(report.proven.unit, f"one {report.proven.unit}")
    return {
        "rai:dataCollection": f"The images were drawn by a generator, seed {manifest['seed']}; nobody was photographed "
        f"for them. It was made from {settings.num_private:,} private images of {settings.data}, license "
        f"{settings.data_license or 'unknown'}. Taken as public: {'; '.join(report.public_assumptions) or 'nothing'}.",
        "rai:dataCollectionType": ["Software Collection"],
        "rai:dataManipulationProtocol": f"Method {settings.method} of idpgan; SHA-256 of the generator's weights: "
        f"{manifest['generator_sha256']}.",
        "rai:personalSensitiveInformation": [f"{_protection(release)} What is protected: {protected}."],
        "rai:dataLimitations": ["What epsilon does not cover stands on the card beside the images."],
        "rai:dataBiases": [
            "Noise hits small groups hardest: what is rare in the private images is rarer or distorted here. "
            f"By how much: {_OPEN} (idpgan evaluate --by COLUMN)."
        ],
        "rai:dataUseCases": [f"Training and testing where the private images may not be seen. Others: {_OPEN}."],
    }


def _protection(release: Opened) -> str:
    report = release.stated.report
    if not report.private:
        return f"NOT private: {report.reason}."
    return f"Proven: {report.stated}. Why: {report.reason}."


def deployment(release: Opened, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry for the registry of deployments; null is what the curator has to say."""
    settings, stated = release.settings, release.stated
    report, price = stated.report, settings.plan.price
    return {
        "name": f"{settings.data} by {settings.method}",
        "data_curator": None,
        "intended_use": None,
        "publication_date": None,
        "description": f"{manifest['num']:,} synthetic images. {_protection(release)}",
        "data_product_type": "synthetic images",
        "dp_flavor": {
            "name": _flavor(report),
            "relation": str(report.proven.relation),
            "data_domain": "images with public size, channels and classes",
        },
        "privacy_loss": {
            "privacy_unit": str(report.proven.unit),
            "privacy_unit_description": RECORDS.get(report.proven.unit, str(Unit(report.proven.unit))),
            "privacy_parameters": {key: _numbers(getattr(report, key)) for key in ("claimed", "proven", "audited")},
            "total_with_contained_releases": _numbers(report.total),
        },
        "model": {
            "name": "central",
            "trusted": "the curator, who holds the private images and adds the noise",
            "release": "static",
        },
        "accounting": {
            "composition": report.proven.basis,
            "charges": [event.to_json() for event in stated.events],
            "delta": price.delta,
            "post_processing": "All images were drawn from the release; drawing more costs nothing.",
        },
        "implementation": {
            "library": f"idpgan {stated.document['idpgan']}",
            "mechanisms": sorted({event.kind for event in stated.events}),
            "method": settings.method,
            "public_assumptions": list(report.public_assumptions),
            "verification": "idpgan verify derives the charges, delta and epsilon again from the released settings.",
        },
        "additional_information": None,
    }


def _flavor(report: PrivacyReport) -> str:
    if not report.private:
        return "none"
    return "approximate differential privacy" if report.proven.delta else "pure differential privacy"


def _numbers(guarantee: Guarantee | None) -> dict[str, Any] | None:
    return None if guarantee is None else {"epsilon": number_to_json(guarantee.epsilon), "delta": guarantee.delta}
