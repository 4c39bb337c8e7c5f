"""Lists rules about the names and folders of what a run writes."""

from __future__ import annotations

import os
from pathlib import Path

from backend.base.files import cut_name, longest_name
from backend.base.paths import is_broad, resolve
from backend.config.experts import ENDINGS
from backend.config.rules.rule import Rule, longer_than_run, refused_without_validation
from backend.config.sections.values import LONGEST_ENDING
from backend.families.table import FAMILIES

_LONGEST_FOLDER = 120
"""Bytes of the run's name in its folder's name."""

_TIME = "-20260101-000000-99"
"""What a run folder's name has behind the run's own."""

_STATE = "state/.step-00000000+0000-99.4194304-00000000.part/.optimizer.pt.4194304-00000000.part"
"""The longest path of a run that does not depend on its name."""

_WINDOWS_PATH = 259
"""Letters of a path on Windows, where longer ones are not switched on."""


def name_is_too_long(name: str, output_dir: str) -> bool:
    """True when the disk of `output_dir` takes no file name as long as the run's longest."""
    return len(f"{name}{LONGEST_ENDING}".encode("utf-8", "surrogatepass")) > longest_name(resolve(output_dir))


def path_is_too_long(name: str, output_dir: str) -> bool:
    """True when the longest path of the run's files is longer than the system takes."""
    folder = resolve(output_dir) / f"{cut_name(name, _LONGEST_FOLDER)}{_TIME}"
    paths = [str(folder / _STATE), str(folder / "checkpoints" / f"{name}{LONGEST_ENDING}")]
    if os.name == "nt":
        return max(map(len, paths)) > _WINDOWS_PATH and not _long_paths(folder)
    most = _path_bytes(folder)
    return max(len(path.encode("utf-8", "surrogatepass")) for path in paths) >= most


def _makes_two(experts: str, family: str) -> bool:
    """Whether the run trains two experts, into a LoRA file each."""
    return experts == "both" and FAMILIES[family].experts is not None


def _path_bytes(folder: Path) -> int:
    try:
        return os.pathconf(folder.anchor, "PC_PATH_MAX")
    except (OSError, ValueError):
        return 4096


def _long_paths(folder: Path) -> bool:
    """Whether Windows takes paths of more than 259 letters here, which is a setting of the machine."""
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
    except OSError:
        return False


SAVING_RULES: tuple[Rule, ...] = (
    Rule(
        ("saving.output_dir", "saving.output_name"),
        lambda folder, name: name_is_too_long(name, folder) or path_is_too_long(name, folder),
        f"the disk does not allow a path as long as {{output_dir}}/…/checkpoints/{{output_name}}{LONGEST_ENDING}",
        "Choose a folder with a shorter path, or a shorter output_name; an encrypted home folder allows "
        "names of 143 bytes",
        when="start",
    ),
    Rule(
        ("saving.output_name", "saving.output_dir", "timesteps.train_experts", "model.family"),
        lambda name, folder, experts, family: (
            _makes_two(experts, family)
            and not name_is_too_long(name, folder)
            and name_is_too_long(f"{name}{ENDINGS['high']}", folder)
        ),
        f"output_name is too long for the file of an expert: {{output_name}}…{ENDINGS['high']}",
        f"Shorten output_name by {len(ENDINGS['high'])} bytes",
        when="start",
    ),
    Rule(
        ("saving.save_last_n", "saving.save_every_n_steps", "saving.save_every_n_epochs"),
        lambda last, steps, epochs: last is not None and steps is None and epochs is None,
        "save_last_n has no effect: nothing is saved before the end",
        "Set save_every_n_steps or save_every_n_epochs, or remove save_last_n",
        "warning",
    ),
    *(
        Rule(
            (f"saving.{name}", "timesteps.train_experts", "model.family"),
            lambda value, experts, family: bool(value) and _makes_two(experts, family),
            f"{name} takes one LoRA file, and train_experts both makes two",
            f"Turn {name} off, or set train_experts to high or low",
        )
        for name in ("keep_best", "average_checkpoints")
    ),
    *refused_without_validation("saving.keep_best"),
    *refused_without_validation("saving.average_from", ("saving.average_checkpoints",)),
    Rule(
        ("saving.average_from", "saving.average_checkpoints"),
        lambda which, count: which != "last" and count is None,
        "average_from has no effect: average_checkpoints is empty",
        "Set saving.average_checkpoints, or remove average_from",
        "warning",
    ),
    Rule(
        ("saving.average_checkpoints", "saving.save_every_n_steps", "saving.save_every_n_epochs"),
        lambda count, steps, epochs: count is not None and steps is None and epochs is None,
        "average_checkpoints has no effect: nothing is saved before the end",
        "Set save_every_n_steps or save_every_n_epochs, or remove average_checkpoints",
        "warning",
    ),
    Rule(
        ("saving.average_checkpoints", "saving.save_last_n", "saving.average_from"),
        lambda count, last, which: None not in (count, last) and which == "last" and last < count,
        "average_checkpoints takes the last {average_checkpoints} files, and save_last_n keeps {save_last_n}",
        "Set saving.save_last_n to {average_checkpoints} or more, or average_checkpoints to {save_last_n}",
    ),
    longer_than_run("saving.save_every_n_steps", "the steps of the run", "steps", "Nothing is saved before the end"),
    longer_than_run("saving.save_every_n_epochs", "the epochs of the run", "epochs", "Nothing is saved before the end"),
    Rule(
        ("saving.output_dir",),
        is_broad,
        "{output_dir} is used for other things than runs",
        "Choose a folder that is only for runs, such as {output_dir}/runs",
        "warning",
    ),
)
