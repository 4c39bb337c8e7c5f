"""Draws one widget for each setting, from the schema.

Where a setting sits and what it looks like follows from its section and its kind. What differs from that is in one
table, ``EXCEPTIONS``; a test compares it with the schema, so that a new setting can't be forgotten and a removed one
can't stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gradio as gr

from backend.config.declare import Setting
from backend.config.schema import settings
from backend.families.table import FAMILIES
from gui import theme
from gui.value_text import number_text, toml_value


@dataclass(frozen=True)
class Group:
    """A panel of settings."""

    key: str
    tab: str
    """The tab's id."""
    title: str
    note: str = ""
    """One line under the title."""
    open: bool = True
    """Whether it is unfolded at first."""


@dataclass(frozen=True)
class Placed:
    """How one setting differs from others of its kind."""

    group: str | None = None
    """Another panel than that of its section."""
    first: bool = False
    """Before the others."""
    wide: bool = False
    """On a row of its own."""
    lines: int | None = None
    """Height of the text box."""
    placeholder: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    """Choices that the widget holds by another name."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """What choices are called in the list, where the value stays as it is."""


TABS = {
    "model": "Model",
    "dataset": "Dataset",
    "training": "Training",
    "compile": "Compile",
    "memory": "Memory",
    "sampling": "Sampling",
    "run": "Run",
    "queue": "Queue",
    "preview": "Preview",
    "library": "Library",
}

_GROUPS = (
    Group("model", "model", "Base model", "The model that is trained on. Its files are only read, never changed."),
    Group(
        "parts",
        "model",
        "Separate model files",
        "VAE and text encoders, when the base model is one file or you use others.",
        False,
    ),
    Group("network", "model", "LoRA network", "Type and size of the LoRA: how much it can learn."),
    Group("layers", "model", "Trained layers", "To train other layers than the usual ones of the model family.", False),
    Group("restraint", "model", "Dropout and weight norms", "Against overfitting on a small dataset.", False),
    Group("earlier", "model", "Existing LoRAs", "To continue training one, or to train on top of others.", False),
    Group(
        "dataset",
        "dataset",
        "Images and captions",
        "Folders of images. Each image has a caption in a text file of the same name.",
    ),
    Group(
        "captions",
        "dataset",
        "Changing captions",
        "Several captions for an image, tags in another order each time, words drawn at random.",
        open=False,
    ),
    Group(
        "masks",
        "dataset",
        "Masks",
        "Which parts of an image count: by a mask folder, set in the table of folders, or by its transparency.",
        open=False,
    ),
    Group(
        "augmentation",
        "dataset",
        "Augmentation",
        "Images that are mirrored, cropped or given other colours from time to time.",
        open=False,
    ),
    Group(
        "video",
        "dataset",
        "Video clips",
        "Which frames of each video are trained on. Videos lie in the same folders as images, with captions as theirs.",
    ),
    Group("training", "training", "Training steps", "Length of the training, seed and gradient accumulation."),
    Group("optimizer", "training", "Optimizer and learning rate"),
    Group("timesteps", "training", "Timesteps", "Which noise levels are trained, and how often."),
    Group("loss", "training", "Loss", "How the error of a prediction is measured.", open=False),
    Group("saving", "training", "Saving"),
    Group(
        "metadata",
        "training",
        "Metadata of the saved file",
        "Shown by tools that list LoRA files and models.",
        open=False,
    ),
    Group("logging", "training", "Logging", open=False),
    Group(
        "compile",
        "compile",
        "Torch Compile Settings",
        "Compiles the model once, at the start of a run.",
    ),
    Group("memory", "memory", "Precision and memory saving", "Settings that need less memory, and often more time."),
    Group("sampling", "sampling", "Sample images", "Made during training, from the prompts below."),
    Group("validation", "sampling", "Validation loss", "Measured on images that are not trained on."),
)
GROUPS = {group.key: group for group in _GROUPS}

EXCEPTIONS: dict[str, Placed] = {
    "model.family": Placed(titles={name: row.title for name, row in FAMILIES.items()}),
    "model.base_model": Placed(first=True, placeholder="/path/to/FLUX.1-dev"),
    "model.weight_dtype": Placed(group="memory"),
    "dataset.excluded_images": Placed(wide=True, lines=2),
    "network.targets_include": Placed(group="layers", wide=True, lines=3),
    "network.targets_exclude": Placed(group="layers", wide=True, lines=2),
    "network.layer_settings": Placed(group="layers", wide=True),
    "network.network_dropout": Placed(group="restraint"),
    "network.rank_dropout": Placed(group="restraint"),
    "network.module_dropout": Placed(group="restraint"),
    "network.scale_weight_norms": Placed(group="restraint"),
    "network.network_weights": Placed(group="earlier", first=True),
    "network.base_weights": Placed(group="earlier", wide=True, lines=2),
    "network.base_weights_multiplier": Placed(group="earlier"),
    "optimizer.optimizer_args": Placed(wide=True, lines=2, placeholder="one per line, for example  momentum = 0.9"),
    "training.kind": Placed(first=True, titles={"lora": "LoRA", "full": "Full fine-tuning: the whole model"}),
    "training.mixed_precision": Placed(group="memory"),
    "training.full_weight_dtype": Placed(group="memory"),
    "training.gradient_checkpointing": Placed(group="memory"),
    # Gradio reads a value "blocks" as the key of a translation, and fails.
    "compile.compile_scope": Placed(names={"blocks": "each block", "model": "the whole model"}),
    "saving.metadata_title": Placed(group="metadata"),
    "saving.metadata_author": Placed(group="metadata"),
    "saving.metadata_description": Placed(group="metadata", wide=True, lines=2),
    "saving.metadata_license": Placed(group="metadata"),
    "saving.metadata_tags": Placed(group="metadata"),
    "saving.metadata_trigger": Placed(group="metadata"),
}
Widgets = dict[str, gr.components.Component]

_PLAIN = Placed()
_WIDE = ("tables", "text", "path")
_NUMBERS = {"int": "numeric", "float": "decimal"}
_ONE_A_LINE = {"table": "one per line: name = value", "str_list": "one per line"}
WORDS = (*_ONE_A_LINE.values(), "not set", "More", "on", "off", "none", "most")
"""What widgets, tables of differences and drawings show in place of a value."""


def elem_id(path: str) -> str:
    """The DOM id of a setting's widget: ``dataset.batch_size`` -> ``f-dataset-batch_size``."""
    return "f-" + path.replace(".", "-")


def group_of(setting: Setting) -> Group:
    """The panel that a setting belongs to. KeyError names a section without a panel."""
    key = "parts" if setting.path in part_settings() else setting.section
    return GROUPS[EXCEPTIONS.get(setting.path, _PLAIN).group or key]


def full_label(setting: Setting) -> str:
    """What a setting is called where its panel is not shown: two panels may have a setting of the same label."""
    same_label = sum(other.label == setting.label for other in settings())
    return setting.label if same_label == 1 else f"{setting.label} ({group_of(setting).title.lower()})"


@cache
def part_settings() -> frozenset[str]:
    """Paths of the settings that give a part of the base model alone, of all families."""
    return frozenset(f"model.{part.setting}" for row in FAMILIES.values() for part in row.parts if part.setting)


def members(key: str) -> list[Setting]:
    """The settings of one panel, basic ones first, in the schema's order."""
    inside = [setting for setting in settings() if group_of(setting).key == key]
    return sorted(inside, key=lambda s: (s.advanced, not EXCEPTIONS.get(s.path, _PLAIN).first))


def column_facts(column: Setting) -> dict[str, Any]:
    """What the table editor needs to know of one column."""
    return {
        "name": column.name,
        "kind": column.kind,
        "label": labelled(column),
        "help": column.help,
        "default": column.default,
        "choices": list(column.choices or column.suggestions),
        "advanced": column.advanced,
    }


def search_index() -> list[dict[str, Any]]:
    """Every setting for the page's scripts: its place, its names here and elsewhere, its help, its columns."""
    return [
        {
            "path": setting.path,
            "id": elem_id(setting.path),
            "tab": TABS[group_of(setting).tab],
            "group": group_of(setting).title,
            "folds": _folds(setting),
            "basic": setting.basic,
            "name": setting.name,
            "label": setting.label,
            "help": setting.help,
            "aliases": list(setting.aliases),
            "kind": setting.kind,
            "columns": [column_facts(column) for column in setting.columns],
        }
        for setting in settings()
    ]


def _folds(setting: Setting) -> list[str]:
    """The accordions around a setting, outermost first; Gradio draws what is in one only when it is unfolded."""
    key = group_of(setting).key
    inside_more = setting.advanced and not all(other.advanced for other in members(key))
    return [f"g-{key}", *([f"g-{key}-more"] if inside_more else [])]


def draw_group(key: str, widgets: Widgets, slots: Iterable[str] = ()) -> None:
    """Draw one panel with all its settings into the current Gradio context, and add the widgets by path.

    slots: ids of plots between the basic settings and the rest.
    """
    group = GROUPS[key]
    basic = [setting for setting in members(key) if not setting.advanced]
    advanced = [setting for setting in members(key) if setting.advanced]
    if not basic:
        basic, advanced = advanced, []
    with gr.Accordion(group.title, open=group.open, elem_id=f"g-{key}", elem_classes="panel"):
        if group.note:
            gr.HTML(f'<p class="note">{group.note}</p>', apply_default_css=False)
        _draw_grid(basic, widgets)
        for slot_id in slots:
            slot(slot_id, "drawing")
        if advanced:
            with gr.Accordion("More", open=False, elem_id=f"g-{key}-more", elem_classes="more"):
                _draw_grid(advanced, widgets)


def panel(title: str, slot_id: str, note: str = "", opened: bool = True) -> None:
    """Draw a panel without settings, whose content one of our scripts puts into the slot."""
    with gr.Accordion(title, open=opened, elem_id=f"g-{slot_id}", elem_classes="panel"):
        if note:
            gr.HTML(f'<p class="note">{note}</p>', apply_default_css=False)
        slot(slot_id)


def slot(slot_id: str, css: str = "") -> None:
    """An empty place on the page for one of our scripts; its template is constant, so Gradio never touches it again."""
    gr.HTML(html_template=f'<div id="{slot_id}" class="own {css}"></div>', js_on_load=None, apply_default_css=False)


def _draw_grid(shown: Iterable[Setting], widgets: Widgets) -> None:
    with gr.Row(elem_classes="grid"):
        for setting in shown:
            widgets[setting.path] = widget(setting)


def widget(setting: Setting) -> gr.components.Component:
    """The widget of one setting, showing its default."""
    how = EXCEPTIONS.get(setting.path, _PLAIN)
    classes = [f"k-{setting.kind}", *(["wide"] if how.wide or setting.kind in _WIDE else [])]
    shared: dict[str, Any] = {
        "label": labelled(setting),
        "elem_id": elem_id(setting.path),
        "elem_classes": classes,
        "min_width": 200,
    }
    value = to_widget(setting, setting.default)
    if setting.kind == "tables":
        return _rows(setting, value, elem_id=shared["elem_id"], elem_classes=classes)
    if setting.kind == "bool":
        return gr.Checkbox(value=value, interactive=True, **shared)
    options = list(setting.choices or setting.suggestions)
    if options:
        # Free text is accepted here and refused by the schema, next to the field: Gradio's own check would block
        # every button that reads the form.
        choices = [(how.titles.get(name, how.names.get(name, name)), how.names.get(name, name)) for name in options]
        if setting.nullable:
            choices = [("not set", ""), *choices]
        return gr.Dropdown(choices, value=value, allow_custom_value=True, interactive=True, **shared)
    return gr.Textbox(
        value=value,
        lines=how.lines or (3 if setting.kind == "text" else 1),
        max_lines=8 if how.lines or setting.kind == "text" else 1,
        placeholder=how.placeholder or _placeholder(setting),
        html_attributes=gr.InputHTMLAttributes(spellcheck=setting.kind == "text", autocomplete="off"),
        interactive=True,
        **shared,
    )


def _rows(setting: Setting, value: list[dict[str, Any]], **placed: Any) -> gr.HTML:
    """A small table editor (folders, prompts): a list of dicts, edited by ``assets/js/table_editor.js``.

    The template is constant and holds no value: Gradio evaluates templates, and a caption is not code. Columns and help
    come with `search_index`: of a component in a tab that was never opened, Gradio forgets properties of its own.
    """
    return gr.HTML(
        value=value,
        html_template='<div class="rows-root"></div>',
        js_on_load=theme.calling("table_editor", "editTable(element, props, () => trigger('input'), watch)"),
        apply_default_css=False,
        label=setting.label,
        **placed,
    )


def to_widget(setting: Setting, value: Any) -> Any:
    """A setting's value as its widget shows it; the way back is ``gui.form.from_widget``."""
    if setting.kind == "tables":
        return [{name: cell for name, cell in row.items() if cell is not None} for row in value or []]
    if setting.kind == "bool":
        return bool(value)
    if value is None:
        return ""
    if setting.kind == "choice":
        return EXCEPTIONS.get(setting.path, _PLAIN).names.get(value, value)
    if setting.kind in ("int_list", "float_list"):
        return ", ".join(number_text(item) for item in value)
    if setting.kind == "str_list":
        return "\n".join(value)
    if setting.kind == "table":
        return "\n".join(f"{name} = {toml_value(item)}" for name, item in value.items())
    if setting.kind in _NUMBERS:
        return number_text(value)
    return str(value)


def choice_of(setting: Setting, shown: str) -> str:
    """The choice behind the name that the widget shows; anything else stays as it is, for the schema to refuse."""
    names = EXCEPTIONS.get(setting.path, _PLAIN).names
    return next((choice for choice, name in names.items() if name == shown), shown)


def title_of(setting: Setting, shown: Any) -> str:
    """What the widget calls a value that it shows."""
    return EXCEPTIONS.get(setting.path, _PLAIN).titles.get(str(shown), str(shown))


def labelled(setting: Setting) -> str:
    """The label with its unit."""
    if not setting.unit or setting.unit in setting.label.lower():
        return setting.label
    return f"{setting.label} ({setting.unit})"


def _placeholder(setting: Setting) -> str:
    if setting.kind in _ONE_A_LINE:
        return _ONE_A_LINE[setting.kind]
    return "not set" if setting.nullable else ""
