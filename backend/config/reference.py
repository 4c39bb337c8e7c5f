"""Writes the settings reference, docs/settings.md, from the schema: ``python -m backend.config.reference``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.base.files import write_atomic
from backend.base.paths import PROJECT_ROOT
from backend.config.coerce import NAMED
from backend.config.profiles import PROFILES
from backend.config.schema import SECTIONS, Setting, section_title, settings
from backend.config.toml_io import dumps_value

TARGET = PROJECT_ROOT / "docs" / "settings.md"

_KINDS = {
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "text": "text, lines allowed",
    "path": "path",
    "choice": "",
    "float_list": "list of numbers",
    "int_list": "list of whole numbers",
    "str_list": "list of texts",
    "table": "table",
    "tables": "rows",
}

_HEAD = """# Settings

<!-- Made by `python -m backend.config.reference` from backend/config/; change it there. -->

A settings file is TOML in UTF-8. It names only what differs from the defaults; all else has the default that is given
here, never what was on the screen before. A smallest file:

```toml
[model]
base_model = 'models/FLUX.1-dev'

[[dataset.folders]]
path = 'pictures/my-cat'
```

Write Windows paths in 'single quotes' or with `/`: in "double quotes" a `\\` begins a code. Relative paths are below
the project's folder. On the command line each setting is a flag, with the same name: `train my.toml --network_dim 32`;
`none` leaves one empty. An unknown name, a wrong type or two settings that contradict each other are refused, all at
once, with the line and what to do. No secret belongs in a settings file. The page shows the settings that are marked as
basic at its [basic level](page.md).
"""


def reference() -> str:
    """The whole page as Markdown."""
    parts = [_HEAD]
    for section in SECTIONS:
        title, help_ = section_title(section)
        parts.append(f"## [{section}] {title}\n\n{help_}\n")
        parts += [_entry(s) for s in settings() if s.section == section]
    parts += [_profiles(), _coercions()]
    return "\n".join(parts)


def write(target: Path = TARGET) -> bool:
    """Write the page; False when it was current already."""
    text = reference()
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, text)
    return True


def _entry(setting: Setting) -> str:
    lines = [f"### {setting.name}", "", f"{_facts(setting)}", "", setting.help]
    if setting.columns:
        lines += ["", f"Each row comes after a line `[[{setting.path}]]`:", ""]
        lines += [f"- **{c.name}** ({_facts(c)}): {c.help}" for c in setting.columns]
    if setting.aliases:
        lines += ["", f"Names in other trainers: {', '.join(setting.aliases)}."]
    return "\n".join(lines) + "\n"


def _facts(setting: Setting) -> str:
    facts = [f"*{setting.label}*"]
    if setting.choices:
        facts.append("one of " + ", ".join(f"`{choice}`" for choice in setting.choices))
    elif setting.suggestions:
        facts.append("text, such as " + ", ".join(f"`{choice}`" for choice in setting.suggestions))
    else:
        facts.append(" ".join(part for part in (_KINDS[setting.kind], setting.bounds.words()) if part))
    if setting.unit:
        facts.append(f"in {setting.unit}")
    facts.append("required" if setting.required else f"default {_default(setting.default)}")
    if setting.basic:
        facts.append("basic")
    return "; ".join(facts)


def _default(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "empty"
    return f"`{dumps_value(value)}`"


def _profiles() -> str:
    names = list(next(iter(PROFILES.values())))
    lines = ["## Compile profiles", "", "What `compile_profile` sets. `custom` leaves the options as they are.", ""]
    lines += ["| | " + " | ".join(PROFILES) + " |", "|---|" + "---|" * len(PROFILES)]
    for name in names:
        cells = ["from the plan" if p[name] is None else f"`{dumps_value(p[name])}`" for p in PROFILES.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _coercions() -> str:
    lines = ["## Accepted spellings", "", "Types are strict, with these exceptions:", ""]
    return "\n".join([*lines, *(f"- `{written}`: {meaning}" for written, meaning in NAMED)]) + "\n"


if __name__ == "__main__":
    write()
