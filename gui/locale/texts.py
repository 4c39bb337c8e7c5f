"""Collects every text that a catalogue translates, with the place that it is from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from backend.base.paths import PROJECT_ROOT
from backend.config.schema import settings
from backend.runs.diagnose_rules import RULES
from backend.runs.remedy_filter import shortened
from gui import fields, theme
from gui.locale.script_texts import Found, texts_of
from gui.locale.sentences import sentences_of

# Modules whose sentences the page shows, and which are translated. What others say stays English.
SENTENCES = (
    "gui/actions.py",
    "gui/form.py",
    "gui/form_routes.py",
    "gui/plots.py",
    "gui/plans.py",
    "gui/dataset_scan.py",
    "gui/run_store.py",
    "gui/run_routes.py",
    "gui/run_bin.py",
    "gui/queue_routes.py",
    "gui/finish_routes.py",
    "gui/compile_routes.py",
    "gui/preview_routes.py",
    "gui/preview_drawing.py",
    "gui/captions.py",
    "gui/publish_routes.py",
    "gui/base_model.py",
    "gui/imports.py",
    "gui/lora_routes.py",
    "gui/picture_results.py",
    "backend/runs/status.py",
    "backend/runs/status_reader.py",
    "backend/runs/hang.py",
    "backend/runs/validation_words.py",
    "backend/queue/view.py",
    "backend/queue/changes.py",
    "backend/queue/folder.py",
    "backend/config/explain.py",
    "backend/plan/findings.py",
    "backend/plan/image_findings.py",
    "backend/plan/caption_findings.py",
    "backend/plan/training_findings.py",
    "backend/plan/lora_findings.py",
    "backend/plan/payback.py",
    "backend/plan/plan.py",
    "backend/plan/steps.py",
    "backend/plan/graphs.py",
    "backend/plan/start_check.py",
    "backend/plan/finish/probe.py",
    "backend/plan/finish/earlier_runs.py",
    "backend/plan/finish/reckoning.py",
    "backend/plan/memory/changes.py",
    "backend/plan/memory/machine.py",
    "backend/plan/memory/preview.py",
    "backend/plan/memory/report.py",
    "backend/plan/memory/swap.py",
    "backend/dataset/scan_findings.py",
    "backend/dataset/picture_findings.py",
    "backend/dataset/clip_findings.py",
    "gui/bulk_captions.py",
    "gui/caption_job.py",
    "gui/caption_routes.py",
    "gui/caption_writing.py",
    "gui/image_filter.py",
    "gui/image_routes.py",
    "gui/near_duplicates.py",
    "gui/library_routes.py",
    "gui/further_routes.py",
    "gui/report_routes.py",
    "gui/tune_plot.py",
    "gui/tune_routes.py",
    "backend/captioning/captioner.py",
    "backend/captioning/session.py",
    "backend/captioning/work.py",
    "backend/plan/further.py",
    "backend/plan/tune/factors.py",
    "backend/plan/tune/report.py",
    "backend/plan/tune/search.py",
    "backend/runs/captioning/model_folder.py",
    "backend/runs/comparison.py",
    "backend/runs/notes.py",
    "backend/dataset/caption_changes.py",
    "backend/dataset/caption_edits.py",
    "backend/dataset/caption_journal.py",
    "backend/queue/disk.py",
    "backend/config/rules/captions.py",
    "backend/config/rules/check.py",
    "backend/config/rules/compile.py",
    "backend/config/rules/dataset.py",
    "backend/config/rules/full.py",
    "backend/config/rules/loss.py",
    "backend/config/rules/masks.py",
    "backend/config/rules/memory.py",
    "backend/config/rules/model.py",
    "backend/config/rules/network.py",
    "backend/config/rules/optimizer.py",
    "backend/config/rules/packages.py",
    "backend/config/rules/rule.py",
    "backend/config/rules/sampling.py",
    "backend/config/rules/saving.py",
    "backend/config/rules/training.py",
    "backend/config/rules/video.py",
    "backend/runs/diagnose.py",
    "backend/runs/diagnose_rules.py",
    "backend/runs/exit_codes.py",
    "backend/base/files.py",
    "backend/training/ending.py",
    "backend/training/oom.py",
    "backend/training/rescue.py",
    "backend/training/saver.py",
    "backend/training/step_log.py",
    "backend/training/trainer.py",
    "backend/importers/ai_toolkit.py",
    "backend/importers/arguments.py",
    "backend/importers/checked.py",
    "backend/importers/combined.py",
    "backend/importers/common_reasons.py",
    "backend/importers/convert.py",
    "backend/importers/datasets.py",
    "backend/importers/diffusion_pipe.py",
    "backend/importers/easy.py",
    "backend/importers/experts.py",
    "backend/importers/family.py",
    "backend/importers/folder_values.py",
    "backend/importers/metadata.py",
    "backend/importers/names.py",
    "backend/importers/network.py",
    "backend/importers/notes.py",
    "backend/importers/onetrainer.py",
    "backend/importers/onetrainer_data.py",
    "backend/importers/onetrainer_images.py",
    "backend/importers/optimizers.py",
    "backend/importers/pictures.py",
    "backend/importers/program.py",
    "backend/importers/program_values.py",
    "backend/importers/programs.py",
    "backend/importers/prompts.py",
    "backend/importers/reasons.py",
    "backend/importers/simpletuner.py",
    "backend/importers/simpletuner_names.py",
    "backend/importers/source.py",
    "backend/importers/timesteps.py",
    "backend/importers/unsaid.py",
    "backend/importers/value_tables.py",
    "backend/importers/values.py",
    "backend/importers/whole_model.py",
    "backend/config/file_kinds.py",
    "backend/config/reading.py",
    "backend/config/sections/values.py",
    "backend/config/formats.py",
    "backend/config/load.py",
    "backend/config/migrate.py",
    "backend/config/names.py",
    "backend/config/profiles.py",
    "backend/config/reading.py",
    "backend/config/sniff.py",
    "backend/config/sniff.py",
    "backend/config/packages.py",
    "backend/doctor/__main__.py",
    "backend/doctor/cache.py",
    "backend/doctor/checks.py",
    "backend/base/compile_cache.py",
    "backend/setup/system.py",
    "backend/setup/toolchain.py",
    "backend/shapes/attention_routes.py",
    "backend/memory/quantization_support.py",
)


def form_texts() -> Iterator[tuple[str, str]]:
    """(text, place) of labels, help, titles of choices, panels and tabs. Choices that TOML has too stay as they are."""
    for title in fields.TABS.values():
        yield title, "gui/fields.py TABS"
    for group in fields.GROUPS.values():
        yield from ((text, f"panel {group.key}") for text in (group.title, group.note) if text)
    for setting in settings():
        yield from ((text, setting.path) for text in (setting.label, fields.labelled(setting), setting.help))
        for column in setting.columns:
            place = f"{setting.path} {column.name}"
            yield from ((text, place) for text in (fields.labelled(column), column.help))
        how = fields.EXCEPTIONS.get(setting.path)
        if how is not None and setting.path != "model.family":
            yield from ((text, setting.path) for text in (*how.names.values(), *how.titles.values()))
        if how is not None and " " in how.placeholder:
            yield how.placeholder, setting.path
    yield from ((text, "gui/fields.py") for text in fields.WORDS)
    for path in sorted((PROJECT_ROOT / "gui" / "tabs").glob("*.py")):
        yield from ((text, f"gui/tabs/{path.name}") for text in _panels(path))


def _panels(path: Path) -> Iterator[str]:
    """Title and note of each panel without settings that a tab draws."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "panel":
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            yield from (str(text) for text in [*texts[:1], *texts[2:]])


@cache
def script_texts() -> tuple[tuple[Found, str], ...]:
    """(text, place) of every text in the page's scripts."""
    return tuple(
        (each, f"assets/js/{path.name}:{each.line}")
        for path in sorted((theme.ASSETS / "js").glob("*.js"))
        for each in texts_of(path.read_text(encoding="utf-8"))
    )


def sentence_texts() -> Iterator[tuple[str, str]]:
    """(text, place) of the server's sentences."""
    for name in SENTENCES:
        for text, line in sentences_of(PROJECT_ROOT / name):
            yield text, f"{name}:{line}"
    for rule in RULES:
        yield from ((text, f"remedy of {rule.kind}, shortened") for text in shortened(rule.remedy))


def all_texts() -> dict[str, str]:
    """Place by text, each text once; nouns of numbers are in `all_counts`."""
    scripts = ((each.text, place) for each, place in script_texts() if not each.count)
    pairs = [*form_texts(), *scripts, *sentence_texts()]
    return dict(reversed(pairs))


def all_counts() -> dict[str, str]:
    """Place by noun: what `formatCount` counts, in English and in the singular."""
    return {each.text: place for each, place in script_texts() if each.count}
