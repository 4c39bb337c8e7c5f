"""Builds the Gradio theme, with system fonts, and the lines of the page's head."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from gradio.themes.utils.colors import Color

ASSETS = Path(__file__).resolve().parent.parent / "assets"
# In this order: of two rules that are equally narrow, the later one counts.
STYLES = ("base", "bar", "form", "run", "content", "images", "preview", "captioning")

_SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Helvetica Neue", "Arial", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Cascadia Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

# A green that keeps 4.5:1 against white at 600 and against the dark ground at 400.
_TILE = Color(
    name="tile",
    c50="#eef7f4",
    c100="#d6ece4",
    c200="#aedacb",
    c300="#7cc1ab",
    c400="#4ca58b",
    c500="#2b8a70",
    c600="#1c6f5a",
    c700="#185949",
    c800="#16483c",
    c900="#133b32",
    c950="#08221d",
)
_PAPER = Color(
    name="paper",
    c50="#faf9f7",
    c100="#f3f1ed",
    c200="#e6e3dc",
    c300="#d3cfc5",
    c400="#a7a297",
    c500="#7b766c",
    c600="#5d5950",
    c700="#47443d",
    c800="#2b2926",
    c900="#1d1c1a",
    c950="#131211",
)


def build() -> gr.themes.Base:
    """The theme, light and dark. It names no web font, so nothing is fetched."""
    theme = gr.themes.Base(
        primary_hue=_TILE,
        secondary_hue=_TILE,
        neutral_hue=_PAPER,
        font=_SANS,
        font_mono=_MONO,
        text_size=gr.themes.sizes.text_md,
        spacing_size=gr.themes.sizes.spacing_md,
        radius_size=gr.themes.sizes.radius_md,
    )
    _ground(theme)
    _controls(theme)
    return theme


def _ground(theme: gr.themes.Base) -> None:
    """Page, text, borders and blocks, light and dark."""
    theme.set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        body_text_color="*neutral_900",
        body_text_color_dark="*neutral_100",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        background_fill_primary="white",
        background_fill_primary_dark="*neutral_900",
        background_fill_secondary="*neutral_50",
        background_fill_secondary_dark="*neutral_950",
        border_color_primary="*neutral_200",
        border_color_primary_dark="#34322e",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0px",
        block_label_text_size="*text_sm",
        block_title_text_size="*text_sm",
        block_title_text_weight="600",
        block_title_text_color="*neutral_900",
        block_title_text_color_dark="*neutral_100",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        block_info_text_size="*text_xs",
    )


def _controls(theme: gr.themes.Base) -> None:
    """Inputs, buttons, checkboxes and links, light and dark."""
    theme.set(
        input_background_fill="white",
        input_background_fill_dark="#161513",
        input_border_color="*neutral_300",
        input_border_color_dark="#45423c",
        input_border_color_focus="*primary_600",
        input_border_color_focus_dark="*primary_400",
        input_border_width="1px",
        input_radius="*radius_sm",
        input_shadow="none",
        input_shadow_focus="none",
        input_text_size="*text_sm",
        input_placeholder_color="*neutral_400",
        input_placeholder_color_dark="#8a857a",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_500",
        button_primary_text_color="white",
        checkbox_background_color="white",
        checkbox_background_color_dark="#161513",
        checkbox_background_color_selected="*primary_600",
        checkbox_background_color_selected_dark="*primary_500",
        checkbox_border_color="*neutral_400",
        checkbox_border_color_dark="#6b675e",
        slider_color="*primary_600",
        link_text_color="*primary_600",
        link_text_color_dark="*primary_300",
    )


def head(root: str = "") -> str:
    """The page's own ``<head>`` lines. root: the path that the page lies below; without one they are relative to it."""
    page = f"{root}/page" if root else "page"
    return "\n".join(
        (
            '<meta name="referrer" content="no-referrer">',
            f'<link rel="icon" type="image/svg+xml" href="{page}/logo.svg">',
            f'<link rel="stylesheet" href="{page}/vendor/uplot/uPlot.min.css">',
            *(f'<link rel="stylesheet" href="{page}/css/{name}.css">' for name in STYLES),
            f'<script type="module" src="{page}/js/main.js"></script>',
        )
    )


def calling(module: str, call: str) -> str:
    """JavaScript for a component's ``js_on_load``: loads a module of ``assets/js`` and calls what it exports.

    A module that the page has loaded already is the same one. Without the base, the address would be relative to the
    script of Gradio that runs this.
    """
    return f'import(new URL("page/js/{module}.js", document.baseURI)).then((module) => module.{call});'
