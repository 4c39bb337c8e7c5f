"""The page of families says what the tests prove, and no more."""

from __future__ import annotations

from backend.families.table import FAMILIES
from tests.tiny import families_page


def test_every_proof_is_a_test_of_that_family() -> None:
    proven = families_page.proofs()
    features = proven.pop("features")
    assert set(proven) == set(FAMILIES)
    for family, cells in proven.items():
        assert set(cells) <= set(features), family
        for feature, cell in cells.items():
            assert cell.startswith("no: ") or families_page.is_test(cell, family), (family, feature, cell)


def test_the_committed_page_is_what_the_proofs_give() -> None:
    assert families_page.PAGE.read_text(encoding="utf-8") == families_page.render()
