"""Settings of another program as ours, and for every name of theirs what became of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.config import load
from backend.config.foreign import reasons, tables
from backend.config.foreign.datasets import Row, read_dataset
from backend.config.foreign.family import Found, family_of
from backend.config.foreign.network import read_network
from backend.config.foreign.notes import Fate, Note, shown
from backend.config.foreign.optimizers import read_optimizer
from backend.config.foreign.prompts import read_prompts
from backend.config.foreign.source import TITLES, Source
from backend.config.foreign.timesteps import read_timesteps
from backend.config.foreign.unsaid import take_unsaid
from backend.config.foreign.values import READERS, Left, Taken, is_off, number
from backend.config.foreign.work import Work
from backend.config.load import Loaded
from backend.config.problems import Problem
from backend.config.schema import Setting, by_name, by_path, settings
from backend.models.table import FAMILIES, lacking

_UNKNOWN = "no name of these programs that is known here"
_RULING = ("unet_lr", "lr_scheduler_type")
"""Names that rule over the common one, wherever they stand."""
_WHOLE = 4096
"""The largest rank. From half of a LoKr's large factor on LyCORIS leaves it whole, and people write 100000 for that."""
_ROUNDS = 4  # a refused value may hide that of another rule


@dataclass
class Converted:
    """loaded: our settings, checked. notes: one a name of theirs, in their order. title: what the file is."""

    title: str
    loaded: Loaded
    notes: list[Note] = field(default_factory=list)

    def with_fate(self, *fates: Fate) -> list[Note]:
        """The notes of these kinds."""
        return [note for note in self.notes if note.fate in fates]


def convert(source: Source, dataset: Source | None = None) -> Converted:
    """Bring a file over. dataset: the data set file that goes with it, where it is one of its own.

    What can't be taken is in the notes; `loaded.config` is None only where the files themselves can't be read.
    """
    problems = [*source.problems, *(dataset.problems if dataset else ())]
    if dataset is not None and not dataset.problems and dataset.kind != "dataset":
        remedy = "Choose the .toml file with [[datasets]]"
        problems.append(Problem(None, None, "the second file is no data set: it has no [[datasets]]", remedy))
    if source.kind == "monotile":
        remedy = "Load it as it is: launcher.py train FILE, or Import in the page"
        problems.append(Problem(None, None, "the file holds settings of Monotile already", remedy))
    if problems or source.kind is None:
        return Converted("", Loaded(None, problems))
    return _Conversion(source, dataset).run()


class _Conversion(Work):
    """One file on its way, name by name."""

    def __init__(self, source: Source, dataset: Source | None) -> None:
        values = {} if source.kind == "dataset" else source.values
        super().__init__(source, source.kind or "sd-scripts", values)
        self.dataset = source if source.kind == "dataset" else dataset
        of_data = read_dataset(self.dataset).values if self.dataset and not self.dataset.problems else {}
        self.all_values = {**self.values, **of_data}

    def run(self) -> Converted:
        if self.kind != "dataset":
            self._family()
            for key, value in sorted(self.values.items(), key=lambda item: item[0] in _RULING):
                self._argument(key, value)
            self._length()
            self._text_encoders()
            self._network()
            self._swap()
            self._prompts()
            self._folder()
        if self.dataset is not None:
            self._dataset(self.dataset)
        take_unsaid(self, self.dataset)
        if self.kind != "dataset":
            read_optimizer(self)
            if self.family not in ("sdxl", "sd15"):
                read_timesteps(self)
        return Converted(TITLES[self.kind], self._checked(), self.notes)

    # ---- one name --------------------------------------------------------------------------------------------------

    def _argument(self, key: str, value: Any, note: Any = None) -> None:
        note = note or self.note
        if key in tables.COMBINED:
            return
        start, switch = next(((s, w) for s, w in tables.SWITCHES.items() if key.startswith(s)), ("", ""))
        if switch and is_off(self.values.get(switch)):
            note(key, "off", f"it counts only where {switch} is on")
            return
        gate, wanted = tables.GATES.get(key, ("", "")) if self.kind == "kohya_ss" else ("", "")
        has = self.values.get(gate)
        if gate in self.values and (is_off(has) if wanted == "on" else str(has) != wanted):
            note(key, "off", f"it counts only where {gate} is {wanted}")
            return
        if self._of_no_compile(key.removeprefix(start), value):
            note(key, "off", "it counts only where compile is on")
            return
        bare = key if key in reasons.NOT_NEEDED else key.removeprefix(start)
        self._named(key, bare, value, note)

    def _of_no_compile(self, name: str, value: Any) -> bool:
        """Whether a name belongs to a compile that is off there."""
        dynamo = not is_off(self.values.get("torch_compile")) or not is_off(self.values.get("anima_torch_compile"))
        if self.kind == "musubi-tuner":
            dynamo = not is_off(self.values.get("dynamo_backend"))
        compiled = not is_off(self.values.get("compile")) or not is_off(self.values.get("anima_compile"))
        if name == "dynamo_backend" and is_off(value):
            return False  # it says so itself
        return (name.startswith("dynamo_") and not dynamo) or (name.startswith("compile_") and not compiled)

    def _named(self, key: str, name: str, value: Any, note: Any) -> None:
        """What is written as `key`, by the name that all files of the other program have for it."""
        own = tables.FAMILY_KEYS.get(self.ours.get("model.family", ""), {})
        goal, reader = own.get(name) or tables.KEYS.get(name) or _by_alias(name) or ("", "")
        if name in reasons.NOT_NEEDED:
            note(key, "not needed", reasons.NOT_NEEDED[name])
        elif name in reasons.NOT_OFFERED:
            beside = reasons.ONLY_BESIDE.get(name, ())
            off = is_off(value) or str(value).strip() in reasons.NEUTRAL.get(name, ())
            off = off or (bool(beside) and all(is_off(self.all_values.get(each)) for each in beside))
            note(key, "off" if off else "not offered", reasons.NOT_OFFERED[name])
        elif goal not in by_path():
            note(key, "off" if is_off(value) and not goal else "not offered" if goal else "unknown", _UNKNOWN)
        elif self._empty(by_path()[goal], value):
            note(key, "off", "empty there")
        else:
            self._read(key, goal, reader, value, note)

    def _empty(self, setting: Setting, value: Any) -> bool:
        return value is None or (isinstance(value, str) and value.strip().lower() in ("", "none"))

    def _read(self, key: str, goal: str, reader: str, value: Any, note: Any) -> None:
        try:
            taken: Taken = READERS[reader](key, value, self.values)
        except Left as left:
            note(key, "not offered" if left.needed else "not needed", str(left))
            return
        if taken.value is None and not by_path()[goal].nullable:
            note(key, "off", "0 there")
            return
        old = self.ours.get(goal)
        if old is not None and taken.value != old and is_off(taken.value):
            note(key, "off", f"{self.origin[goal]} rules")
            return
        if old is not None and taken.value != old:
            self.drop(goal, "not needed", f"{key} rules")
        self.take(goal, taken.value, key)
        note(key, "near" if taken.near else "taken", taken.near, goal)

    # ---- what takes more than one name -----------------------------------------------------------------------------

    def _family(self) -> None:
        found: Found = family_of(self.kind, self.values)
        key = next((k for k in ("network_module", "LoRA_type", "sdxl") if self.values.get(k)), "network_module")
        known = by_path()["model.family"].choices or ()
        if found.family in known:
            why = f"taken for {found.family} {found.guessed}" if found.guessed else ""
            self.ours["model.family"], self.origin["model.family"] = found.family, key
            self.note(key, "near" if why else "taken", why, "model.family")
            if self.values.get("model_version") == "edit-2511":
                self.ours["model.zero_cond_t"], self.origin["model.zero_cond_t"] = "on", "model_version"
                self.note("model_version", "taken", "", "model.zero_cond_t")
        else:
            name = found.family or "this model"
            self.note(key, "not offered", f"{name} is not among the model families here: {', '.join(known)}")
        if self.kind == "kohya_ss" and "LoRA_type" not in self.values:
            other = "an embedding" if "token_string" in self.values else "the whole model"
            self.note("kind of training", "not offered", f"this preset trains {other}; a LoRA is trained here")
        if found.network:
            self.note("network kind", "not offered", f"{found.network} are not offered; a LoRA is trained")
        elif found.kind != "lora":
            self.ours["network.network_type"], self.origin["network.network_type"] = found.kind, "network kind"
            self.note("network kind", "taken", "", "network.network_type")
        for key in ("sdxl", "flux1_checkbox", "sd3_checkbox", "anima_checkbox", "lumina_checkbox",
                    "hunyuan_image_checkbox", "v2", "edit", "edit_plus", "model_version", "LoRA_type",
                    "network_module"):  # fmt: skip
            if key in self.values and all(note.key != key for note in self.notes):
                self.note(key, "off" if is_off(self.values[key]) else "taken", "", "model.family")

    def _length(self) -> None:
        steps, epochs = self.ours.get("training.max_train_steps"), self.ours.get("training.max_train_epochs")
        if steps is None or epochs is None:
            return
        epochs_rule = self.origin["training.max_train_epochs"] == "max_train_epochs"
        gone = "training.max_train_steps" if epochs_rule else "training.max_train_epochs"
        self.drop(gone, "not needed", "there the epochs rule" if epochs_rule else "there the steps rule")

    def _text_encoders(self) -> None:
        unet_only = self.values.get("network_train_unet_only")
        if "network_train_text_encoder_only" in self.values:
            off = is_off(self.values["network_train_text_encoder_only"])
            self.note(
                "network_train_text_encoder_only", "off" if off else "not offered", "the denoiser is always trained"
            )
        switches = {start + "cache_text_encoder_outputs": on for start, on in tables.SWITCHES.items()}
        cached = not is_off(self.values.get("cache_text_encoder_outputs")) or any(
            not is_off(self.values.get(name)) and not is_off(self.values.get(on)) for name, on in switches.items()
        )
        no_rate = "text_encoder_lr" in self.values and is_off(self.values["text_encoder_lr"])
        trained = self.kind != "musubi-tuner" and is_off(unet_only) and not cached and not no_rate
        key, path, rate = "network_train_unet_only", "network.train_text_encoder", "optimizer.text_encoder_lr"
        said = key in self.values
        if "train_text_encoder" in lacking(self.family):
            why = "text encoders of this family are used as they are; there they are trained"
            if trained or said:
                self.note(key, "not offered" if trained else "taken", why if trained else "")
            return
        self.take(path, trained, key)
        if trained and rate not in self.ours and self.origin.get("optimizer.learning_rate") == "unet_lr":
            self.take(rate, number(self.values.get("learning_rate", 2e-6)), "learning_rate")
        if said or trained:
            why = "" if said else "not in the file: text encoders are trained too"
            self.note(key, "taken" if said else "default", why, path)

    def _network(self) -> None:
        self.notes += read_network(self.source, self.ours, self.origin)
        path, rank = "network.network_dim", self.ours.get("network.network_dim")
        if self.ours.get("network.network_type") == "lokr" and isinstance(rank, int) and rank > _WHOLE:
            self.change(
                path, _WHOLE, self.origin[path], "as large a rank as there is: the large factor is whole, as there"
            )
        if "enable_bucket" in self.values:
            near = "pictures always keep their shape here; there they were cropped to a square"
            off = is_off(self.values["enable_bucket"])
            self.note("enable_bucket", "near" if off else "not needed", near if off else "it is always on")

    def _swap(self) -> None:
        """FLUX's blocks are counted there in pairs: half of them double ones, and two single ones for each other."""
        path, count = "memory.blocks_to_swap", self.ours.get("memory.blocks_to_swap")
        if self.family in ("flux", "flux_kontext") and isinstance(count, int) and count > 0:
            double = count // 2
            single = (count - double) * 2 + (self.kind == "musubi-tuner")
            self.change(
                path, double + single, self.origin[path], f"there it is {double} double and {single} single blocks"
            )

    def _prompts(self) -> None:
        given = self.values.get("sample_prompts")
        if "sample_prompts" not in self.values or is_off(given):
            if "sample_prompts" in self.values:
                self.note("sample_prompts", "off", "empty there")
            return
        text = str(given)
        if "\n" not in text and re.search(r"\.(txt|toml|json)$", text.strip()):
            path = _beside(self.source.folder, text.strip())
            if path is None or path.suffix != ".txt":
                why = "the file isn't there" if path is None else "only .txt files with one prompt a line are read"
                self.note("sample_prompts", "not offered", f"{why}; add the prompts in the Sampling tab")
                return
            text = path.read_text(encoding="utf-8-sig", errors="replace")
        side = tables.SAMPLE_SIDE.get(self.kind, 512)
        usual = {"width": side, "height": side, **tables.SAMPLES.get(self.family, tables.OTHER_SAMPLES)}
        rows, left = read_prompts(text, usual)
        self.ours["sampling.prompts"], self.origin["sampling.prompts"] = rows, "sample_prompts"
        self.note("sample_prompts", "taken", "", "sampling.prompts")
        for line, flag, why in left:
            self.notes.append(Note(f"sample_prompts {flag}", "not offered", f"prompt line {line}: {why}"))

    def _folder(self) -> None:
        for key in ("train_data_dir", "image_dir"):
            path = self.values.get(key)
            if isinstance(path, str) and path.strip():
                self.ours["dataset.folders"], self.origin["dataset.folders"] = [{"path": path.strip()}], key
                self.note(key, "taken", "", "dataset.folders")
            elif key in self.values:
                self.note(key, "off", "empty there")
        if "dataset_config" in self.values:
            path = self.values["dataset_config"]
            if self.dataset is None and not is_off(path):
                self.note("dataset_config", "not offered", "that file is brought over together with this one: add it")
            else:
                self.note("dataset_config", "off" if is_off(path) else "taken", "", None)

    def _dataset(self, dataset: Source) -> None:
        found = read_dataset(dataset)

        def note(key: str, fate: Fate, why: str = "", path: str | None = None) -> None:
            where = found.paths.get(key, key)
            value = shown(key, found.values.get(key))
            self.notes.append(Note(where, fate, why, dataset.lines.get(where), path, value))

        def row(each: Row, fate: Fate) -> None:
            self.notes.append(Note(each.path, fate, each.why, dataset.lines.get(each.path)))

        for key, value in found.values.items():
            if key == "enable_bucket":
                note(key, "near" if is_off(value) else "not needed", "pictures always keep their shape here")
            elif key == "class_tokens":
                self.ours["dataset.trigger_word"], self.origin["dataset.trigger_word"] = value, key
                note(key, "near", "put in front of every caption, not only where there is none", "dataset.trigger_word")
            else:
                self._argument(key, value, note)
        for each in found.left:
            row(each, "not offered")
        for each in found.near:
            row(each, "near")
        if found.folders:
            self.ours["dataset.folders"], self.origin["dataset.folders"] = found.folders, "datasets"
            self.notes.append(Note("datasets", "taken", "", dataset.lines.get("datasets"), "dataset.folders"))

    # ---- checked ---------------------------------------------------------------------------------------------------

    def _checked(self) -> Loaded:
        self._lacking()
        self._shape_mode()
        loaded = self._parse()
        for _ in range(_ROUNDS):
            wrong = {self._culprit(problem): problem for problem in loaded.errors}
            if not wrong:
                break
            for path, problem in wrong.items():
                if path is not None:
                    self.drop(path, "not offered", f"{problem.text}. {problem.remedy}".strip())
            loaded = self._parse()
        return loaded

    def _culprit(self, problem: Problem) -> str | None:
        """Which value of theirs brings a problem about: its own, or one that a rule holds against a default of ours."""
        if problem.setting in self.ours:
            return problem.setting
        for path in list(self.ours):
            kept = self.ours.pop(path)
            gone = all(each.setting != problem.setting for each in self._parse().errors)
            self.ours[path] = kept
            if gone:
                return path
        return None

    def _lacking(self) -> None:
        """What the family does not have: nothing of it is taken, since it would only be in the way."""
        gone = lacking(str(self.ours.get("model.family", by_path()["model.family"].default)))
        for path in [path for path in self.ours if path.split(".")[1] in gone]:
            if self.ours[path] == by_path()[path].default:
                del self.ours[path]
                continue
            self.drop(path, "not offered", f"{self.ours.get('model.family')} has no such setting here")

    def _shape_mode(self) -> None:
        """Theirs have none, so where the family can't have the default, the nearest that it can have is taken."""
        lacks = FAMILIES[self.ours.get("model.family", by_path()["model.family"].default)].facts.lacks_modes
        setting = by_path()["compile.shape_mode"]
        if setting.default in lacks:
            self.ours[setting.path] = next(m for m in ("exact_buckets", "dynamic", "off") if m not in lacks)
            self.origin[setting.path] = "shape mode"

    def _parse(self) -> Loaded:
        data: dict[str, dict[str, Any]] = {}
        for path, value in self.ours.items():
            section, name = path.split(".")
            data.setdefault(section, {})[name] = value
        return load.parse(data)


def _by_alias(key: str) -> tuple[str, str] | None:
    """The setting that has this name itself, or has it among its names elsewhere; its value is read as it is."""
    declared = by_name().get(key) or next((s for s in settings() if key in s.aliases), None)
    if declared is None or declared.kind == "tables":
        return None
    return declared.path, "flag" if declared.kind == "bool" else "number" if declared.kind in (
        "int",
        "float",
    ) else "text"


def _beside(folder: Path | None, given: str) -> Path | None:
    """A file named in another: as it is, or beside that one."""
    for path in (Path(given).expanduser(), *([folder / given] if folder else [])):
        if path.is_file() and (path.is_absolute() or folder is not None):
            return path
    return None
