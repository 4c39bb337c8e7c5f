"""Keeps the catalogues: ``python -m gui.locale extract`` adds new texts to each, and takes out those that are gone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gui.locale import texts
from gui.locale.catalogue import FOLDER, Catalogue, files, read
from gui.locale.check import faults, updated


def main(argv: Sequence[str] | None = None) -> int:
    """Do it for every language, or begin another one. Returns 1 while a text is not translated."""
    parser = argparse.ArgumentParser(prog="python -m gui.locale", description="Keep the page's translations.")
    parser.add_argument("what", choices=["extract", "check"], help="extract: write the files. check: only look")
    parser.add_argument("--language", metavar="CODE", help="one language; a new one is begun, such as fr")
    options = parser.parse_args(argv)
    every, nouns = texts.all_texts(), texts.all_counts()
    catalogues = [read(path) for path in files()]
    if options.language:
        fresh = Catalogue(options.language, options.language, counts={"run": {"one": "", "other": ""}})
        catalogues = [each for each in catalogues if each.language == options.language] or [fresh]
    wrong = 0
    for catalogue in catalogues:
        if options.what == "extract":
            catalogue, lines = updated(catalogue, every, nouns)
            catalogue.write(FOLDER / f"{catalogue.language}.json")
            sys.stdout.write("".join(f"{catalogue.language}: {line}\n" for line in lines))
        problems = faults(catalogue, every, nouns)
        wrong += len(problems)
        sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
