"""Every setting has its widget, and the table of exceptions speaks of nothing else."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
import pytest

from backend.config.schema import SECTIONS, Setting, by_path, settings
from gui import fields, theme
from gui.actions import Actions
from gui.app import build
from gui.draft import Draft
from gui.run_store import RunStore
from gui.value_text import number_text


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> gr.Blocks:
    folder = tmp_path_factory.mktemp("draft")
    return build(Actions(Draft(folder), RunStore(lambda: "runs", folder / "places.json")))


@pytest.mark.parametrize("setting", settings(), ids=lambda s: s.path)
def test_every_setting_has_one_widget(setting: Setting, drawn: gr.Blocks) -> None:
    widgets = [b for b in drawn.blocks.values() if getattr(b, "elem_id", None) == fields.elem_id(setting.path)]
    assert len(widgets) == 1
    assert isinstance(widgets[0], gr.components.Component)


def test_no_widget_without_a_setting(drawn: gr.Blocks) -> None:
    ids = {b.elem_id for b in drawn.blocks.values() if str(getattr(b, "elem_id", None) or "").startswith("f-")}
    assert ids == {fields.elem_id(setting.path) for setting in settings()}


def test_exceptions_name_settings_and_panels_that_exist() -> None:
    assert set(fields.EXCEPTIONS) <= set(by_path())
    assert {placed.group for placed in fields.EXCEPTIONS.values()} - {None} <= set(fields.GROUPS)
    assert fields.Placed() not in fields.EXCEPTIONS.values(), "an exception that excepts nothing"


def test_every_section_has_a_panel_and_every_panel_settings() -> None:
    assert set(SECTIONS) <= set(fields.GROUPS)
    for key, group in fields.GROUPS.items():
        assert group.tab in fields.TABS
        assert fields.members(key), f"the panel {key} is empty"
    assert sum(len(fields.members(key)) for key in fields.GROUPS) == len(settings())


def test_the_compile_panel_is_called_as_people_know_it(drawn: gr.Blocks) -> None:
    panel = next(b for b in drawn.blocks.values() if getattr(b, "elem_id", None) == "g-compile")
    assert isinstance(panel, gr.Accordion)
    assert (panel.label, panel.open) == ("Torch Compile Settings", True)


def test_the_search_knows_foreign_names_and_where_to_go() -> None:
    index = {entry["path"]: entry for entry in fields.search_index()}
    assert "bucket_no_upscale" in index["dataset.no_upscale"]["aliases"]
    assert index["optimizer.optimizer_args"]["folds"] == ["g-optimizer", "g-optimizer-more"]
    assert index["saving.metadata_title"]["folds"] == ["g-metadata"]
    assert index["model.weight_dtype"]["tab"] == "Memory"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-4, "1e-4"),
        (16.0, "16"),
        (0.05, "0.05"),
        (0, "0"),
        (1e-8, "1e-8"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-3, "-3"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: float, text: str) -> None:
    assert number_text(value) == text
    assert float(number_text(value)) == value


SCRIPTS = sorted((theme.ASSETS / "js").iterdir())


def test_nothing_in_the_page_points_to_another_host() -> None:
    """No font, script or picture may come from outside."""
    for path in (*SCRIPTS, *(theme.ASSETS / "css").iterdir(), theme.ASSETS / "logo.svg"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, path
    assert "//" not in theme.head()
    assert not any("http" in str(font) for font in (*theme.build()._font, *theme.build()._font_mono) if font)


def test_scripts_never_turn_text_into_html() -> None:
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "document.write" not in text, path


def test_gradio_left_no_stub_file_behind() -> None:
    """Gradio writes a .pyi beside every module that subclasses a component; ours must not."""
    assert not list(Path(fields.__file__).parent.rglob("*.pyi"))
