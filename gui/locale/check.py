"""Compares a catalogue with the texts that the page has, and brings it up to date."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from gui.locale.catalogue import MARK, Catalogue

COMMAND = "python -m gui.locale extract"


def faults(catalogue: Catalogue, texts: dict[str, str], counts: dict[str, str]) -> list[str]:
    """What is wrong with a catalogue, a sentence each: missing, empty, left over, or with other values than the text.

    texts, counts: place by text, as `gui.locale.texts` collects them.
    """
    name = f"{catalogue.language}.json"
    known, nouns = catalogue.texts, catalogue.counts
    lines = [f"{name} lacks {text!r} ({place})" for text, place in texts.items() if not known.get(text)]
    lines += [f"{name} has {text!r}, which is nowhere on the page" for text in known if text not in texts]
    lines += [f"{name} lacks the noun {noun!r} ({place})" for noun, place in counts.items() if not nouns.get(noun)]
    lines += [f"{name} has the noun {noun!r}, which nothing counts" for noun in nouns if noun not in counts]
    for text, translation in known.items():
        if translation and sorted(MARK.findall(text)) != sorted(MARK.findall(translation)) and "{1}" in text:
            lines.append(f"{name}: {text!r} and {translation!r} have different values")
    for noun, forms in nouns.items():
        if any("{n}" not in form for form in forms.values()) or "other" not in forms:
            lines.append(f'{name}: each form of {noun!r} needs {{n}}, and one form is "other"')
    return lines


def updated(catalogue: Catalogue, texts: dict[str, str], counts: dict[str, str]) -> tuple[Catalogue, list[str]]:
    """The catalogue with an empty entry for each text that it lacks and without those left over; and what was done.

    An empty entry shows English. The translation of a text that is gone is told beside the new text most like it.
    """
    new = [text for text in texts if text not in catalogue.texts]
    gone = [text for text in catalogue.texts if text not in texts]
    lines = []
    for text in new:
        lines.append(f"+ {text}")
        lines += [f"    before: {catalogue.texts[near]}" for near in get_close_matches(text, gone, 1, 0.7)]
    lines += [f"- {text}" for text in gone]
    forms = next(iter(catalogue.counts.values()), {"other": ""})
    nouns = {noun: catalogue.counts.get(noun) or dict.fromkeys(forms, "") for noun in counts}
    kept = {text: catalogue.texts.get(text, "") for text in texts}
    return replace(catalogue, texts=kept, counts=nouns), lines
