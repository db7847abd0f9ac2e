"""How reports and cards of different versions are compared: fields by value, and sentences by the numbers in them.

A later version may say the same in other words, so a release keeps its own words. They cannot be derived, and whoever
made the release may have written anything there: `idpgan verify` shows them, and says whose they are. The rest is
compared: everything that is not a sentence, the number of sentences, and each number in them.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any

from idpgan.files import printable
from idpgan.privacy.guarantee import Guarantee, PrivacyReport

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
_FIELD = re.compile(r"(?<!\\)\||^(license|tags): |^Made with idpgan ")  # fields of a card, such as a table
_NOT_PRIVATE = "**NOT private.**"
_FENCES = ("```", "```python")
_DRAWS = re.compile(r"<|://|\]\(")
_EPSILON = re.compile(r"epsilon|\beps\b|ε", re.IGNORECASE)
_MOST_LINES = 500  # most lines of a card; ours have 60

_Line = tuple[str, str]


def numbers_in(text: str) -> list[str]:
    """Return the numbers in a text, in order, as they stand there: digits of any script."""
    return _NUMBER.findall(text)


def compare_reports(said: PrivacyReport, expected: PrivacyReport) -> tuple[list[str], list[str], list[str]]:
    """Compare the entries of two reports, the audited one left out.

    Returns:
        The names of entries whose fields, or numbers in sentences, differ; the names of entries that differ only in
        words; and the sentences of ``said`` that differ.
    """
    wrong, reworded, sentences = [], [], []
    for name in (field.name for field in dataclasses.fields(PrivacyReport) if field.name != "audited"):
        (fields, texts), (our_fields, our_texts) = (_parts(getattr(report, name)) for report in (said, expected))
        if fields != our_fields or list(map(numbers_in, texts)) != list(map(numbers_in, our_texts)):
            wrong.append(name)
        elif texts != our_texts:
            reworded.append(name)
            sentences += [text for text, ours in zip(texts, our_texts, strict=True) if text != ours]
    return wrong, reworded, sentences


def _parts(entry: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the fields of an entry of a report, and its sentences."""
    if type(entry) is str:
        return None, (entry,)
    if isinstance(entry, Guarantee):
        return (entry.epsilon, entry.delta, entry.unit, entry.relation), (entry.basis,)
    if isinstance(entry, tuple):
        parts = [_parts(item) for item in entry]
        return [fields for fields, _ in parts], tuple(text for _, texts in parts for text in texts)
    return entry, ()


def compare_cards(said: str, expected: str) -> tuple[list[str], list[str]]:
    """Compare a card with the one that this version writes for the same numbers.

    The head (of which ours may have more), the table of the three numbers, the version and whether the release is
    called private must be the same. A line in other words may state no epsilon and no number that ours do not, and hold
    no link and no HTML, which could hide something or show another card. Code may hold any number but an epsilon.

    Returns:
        What is wrong, a phrase each; and the lines that differ: "+" one of the card, "-" one of ours.
    """
    theirs, ours = _lines(said), _lines(expected)
    if len(theirs) > _MOST_LINES:
        return [f": it has {len(theirs):,} lines"], []
    added: list[_Line] = []
    gone: list[_Line] = []
    for tag, first, last, start, stop in difflib.SequenceMatcher(None, ours, theirs).get_opcodes():
        if tag != "equal":
            gone += ours[first:last]
            added += theirs[start:stop]
    problems = []
    if (_NOT_PRIVATE in said) != (_NOT_PRIVATE in expected):
        problems.append(": it does not say whether it is private")
    known = {number for region, text in ours if region != "code" for number in numbers_in(text)}
    for region, text in added:
        own = set() if region == "code" else set(numbers_in(text)) - known
        if text and not printable(text):
            problems.append(f": {text[:80]!a} cannot be printed")
        elif region == "head" or _FIELD.search(text) or _DRAWS.search(text):
            problems.append(f": {text[:80]!a} is not for a card to say")
        elif own or (_EPSILON.search(text) and numbers_in(text)):
            problems.append(f": {text[:80]!a} states a number of its own")
    problems += [f": {text[:80]!a} is missing" for _, text in gone if _FIELD.search(text)]
    return problems, [f"+ {text}" for _, text in added if text] + [f"- {text}" for _, text in gone if text]


def _lines(card: str) -> list[_Line]:
    """Return the lines of a card, each with the region that it is in: "head", "text" or "code"."""
    lines: list[_Line] = []
    region = "head"
    for text in card.split("\n"):
        if text in _FENCES and region != "head":
            region = "text" if region == "code" else "code"
        lines.append((region, text))
        if region == "head" and text == "---" and len(lines) > 1:
            region = "text"
    return lines
