"""What the buttons of the bar do. Each takes the form as it is on screen and answers with a message for the page."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.config import load, presets
from backend.config.schema import Config, by_path
from backend.dataset.images import EXTENSIONS
from backend.families.table import FAMILIES
from backend.plan import base_model_check as family_check
from backend.runs import supervise
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run
from backend.runs.start_lock import one_start
from gui import base_model, fields, form, imports, keep_on_load, messages
from gui.draft import Desk
from gui.run_store import Places

log = logging.getLogger(__name__)

Message = dict[str, Any]
_LARGEST_IMPORT = 1_000_000
_NOT_IN_FILES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]+')


@dataclass
class Reply:
    """message: for the page's scripts. reload: the form on screen is to be replaced by the one on the desk."""

    message: Message
    reload: bool = False


class Actions:
    """The buttons. One method an action, called by its name with the page's request."""

    def __init__(self, desk: Desk, places: Places, shelf: presets.Shelf = presets.SHELF) -> None:
        self.desk = desk
        self.places = places
        self.shelf = shelf
        self._bin: dict[str, presets.Trashed] = {}
        self._brought: imports.Brought | None = None
        self._known: dict[str, Callable[[Mapping[str, Any]], Reply]] = {
            "compare": self.compare,
            "refresh": lambda request: Reply(self.greet(), reload=True),
            "load": self.load,
            "load-run": self.load_run,
            "save": self.save,
            "save-as": self.save_as,
            "rename": self.rename,
            "delete": self.delete,
            "restore": self.restore,
            "import": self.import_,
            "take-import": self.take_import,
            "undo": self.undo,
            "redo": self.redo,
            "apply": self.apply,
            "start": self.start,
        }

    def greet(self) -> Message:
        """Everything a page needs when it is opened."""
        return self.state(form.read(self.desk.now.values).problems) | {"settings": fields.search_index()}

    def lay_out(self, preset: str) -> None:
        """Put a preset on a desk that nobody has used yet, so that Start has something to do; undo empties it."""
        for found in presets.list_presets(self.shelf):
            if self.desk.is_new and found.name == preset:
                self._take(presets.load(found), preset, preset)

    def kept(self, values: Mapping[str, Any], tab: str | None = None) -> Message:
        """Take the form as this tab shows it; the answer says what is wrong with it. Called after every edit."""
        before = self.desk.now.values
        behind = self.desk.keep(values, tab)
        advice = self._of_new_family(before, self.desk.now.values)
        return {
            "behind": behind,
            "desk": self.desk.facts(),
            "problems": messages.all_problem_facts(form.read(self.desk.now.values).problems),
            **({"notice": advice} if advice else {}),
        }

    @staticmethod
    def _of_new_family(before: form.Values, now: form.Values) -> Message | None:
        """What else has to change with a family that was just chosen."""
        row = FAMILIES.get(str(now["model.family"]))
        if row is None or now["model.family"] == before["model.family"]:
            return None
        change = base_model.change_to(row, str(now["compile.shape_mode"]))
        if len(change) == 1:
            return None
        mode = change["compile.shape_mode"]
        text = f"{row.title} can't have the shape mode {now['compile.shape_mode']}."
        return messages.notice(text, "info", f"Set {mode}", {"what": "apply", "change": change})

    def state(self, problems: list[Problem]) -> Message:
        """The bar, the presets and these problems."""
        return {
            "desk": self.desk.facts(),
            "problems": messages.all_problem_facts(problems),
            "presets": [
                {
                    "name": preset.name,
                    "builtin": preset.builtin,
                    "description": preset.description,
                    "family": keep_on_load.family_of(preset.name) if preset.builtin else None,
                }
                for preset in presets.list_presets(self.shelf)
            ],
        }

    def act(self, request: Mapping[str, Any], values: Mapping[str, Any], tab: str | None = None) -> Reply:
        """Do what this tab asks. Errors for people become a notice; the form is kept in any case."""
        behind = self.desk.keep(values, tab)
        what = str(request.get("what", ""))
        if behind and what in ("refresh", "start"):
            return self._overtaken(what)
        reply = self._do(what, request)
        reply.reload |= behind
        return reply

    def _overtaken(self, what: str) -> Reply:
        """The form of a tab is older than the desk: it is given the new one, and starts nothing unseen."""
        text = "The form was changed in another tab; this one shows it now."
        if what == "refresh":
            return Reply(self._say(text).message, reload=True)
        return Reply(self._say(f"{text} Look at it, then start.", "error").message, reload=True)

    def _do(self, what: str, request: Mapping[str, Any]) -> Reply:
        action = self._known.get(what)
        if action is None:
            return self._say(f"The page asked for something unknown: {what!r}.", "error")
        try:
            return action(request)
        except (Refused, RunError, WriteFailed) as wrong:
            return self._say(messages.words(wrong), "error")
        except OSError as wrong:
            log.warning("%s failed: %s", what, wrong)
            return self._say(f"That did not work: {wrong}", "error")
        except Exception as wrong:
            # A mistake of ours: without an answer the button would seem dead.
            log.exception("%s failed", what)
            return self._say(f"That failed inside the page ({type(wrong).__name__}); its terminal tells more.", "error")

    # ---- presets ---------------------------------------------------------------------------------------------------

    def compare(self, request: Mapping[str, Any]) -> Reply:
        """What loading a preset would change; without a name, what going back to the defaults would.

        own: what a person has given that the preset does not name; kept with ``keep``.
        """
        name, builtin, loaded = self._chosen(request)
        rows, given = [], self._given(name, loaded)
        if loaded.config is not None:
            after = form.to_values(loaded.config) | (given if request.get("keep") else {})
            rows = form.differences(self.desk.now.values, after)
        facts = {"name": name, "builtin": builtin, "rows": rows, "own": keep_on_load.labels(given)}
        return Reply({"difference": facts | {"problems": messages.all_problem_facts(loaded.problems)}})

    def load(self, request: Mapping[str, Any]) -> Reply:
        """Put a preset on the desk, and nothing of what was there before; without a name, the defaults.

        With ``keep``, what a person has given and the preset does not name stays.
        """
        name, _, loaded = self._chosen(request)
        given = self._given(name, loaded) if request.get("keep") else {}
        return self._take(loaded, name or None, name or "the defaults", given)

    def _given(self, name: str, loaded: load.Loaded) -> form.Values:
        if not name or loaded.config is None:
            return {}
        ours = {preset.name for preset in presets.list_presets(self.shelf) if preset.builtin}
        return keep_on_load.given(self.desk.now, self.desk.now.preset in ours, form.to_values(loaded.config))

    def load_run(self, request: Mapping[str, Any]) -> Reply:
        """Put the settings of an earlier run on the desk."""
        run = self.places.run(str(request.get("name", "")))
        return self._take(load.load(run.config_path), None, f"the settings of {run.name}")

    def save(self, request: Mapping[str, Any]) -> Reply:
        """Write the form to its own preset again."""
        return self._save(str(request.get("name", "")), overwrite=True)

    def save_as(self, request: Mapping[str, Any]) -> Reply:
        """Write the form to a new preset; where a person's own has the name, offer to replace it."""
        name = str(request.get("name", "")).strip()
        taken = next((p for p in presets.list_presets(self.shelf) if p.name.casefold() == name.casefold()), None)
        if taken is not None and not taken.builtin:
            offer = messages.notice(
                f"There is a preset “{taken.name}” already.",
                "error",
                "Replace it",
                {"what": "save", "name": taken.name},
            )
            return self._notify(offer)
        return self._save(name, overwrite=False)

    def rename(self, request: Mapping[str, Any]) -> Reply:
        """Give a preset another name."""
        preset = self._preset(request)
        renamed = presets.rename(preset, str(request.get("to", "")), self.shelf)
        self.desk.renamed(preset.name, renamed.name)
        return self._say(f"“{preset.name}” is now called “{renamed.name}”.")

    def delete(self, request: Mapping[str, Any]) -> Reply:
        """Put a preset into the trash, with the way back in the notice."""
        preset = self._preset(request)
        trashed = presets.delete(preset, self.shelf)
        self._bin[trashed.path.name] = trashed
        self.desk.renamed(preset.name, None)
        back = {"what": "restore", "token": trashed.path.name}
        return self._notify(messages.notice(f"“{preset.name}” is deleted.", action="Undo", request=back))

    def restore(self, request: Mapping[str, Any]) -> Reply:
        """Take a preset out of the trash."""
        trashed = self._bin.pop(str(request.get("token", "")), None)
        if trashed is None:
            return self._say("That preset is no longer in the trash.", "error")
        restored = presets.restore(trashed, self.shelf)
        return self._say(f"“{restored.name}” is back.")

    def import_(self, request: Mapping[str, Any]) -> Reply:
        """Take a TOML file in as a preset; nothing is written when it has errors."""
        try:
            content = base64.b64decode(str(request.get("content", "")), validate=True)
            dataset = base64.b64decode(str(request["dataset"]), validate=True) if request.get("dataset") else None
        except (binascii.Error, ValueError):
            return self._say("The file could not be read.", "error")
        if len(content) > _LARGEST_IMPORT or len(dataset or b"") > _LARGEST_IMPORT:
            return self._say("That file is too large for a preset (over 1 MB).", "error")
        if imports.is_foreign(content):
            return self._bring(str(request.get("name", "")) or "the file", content, dataset)
        name = _NOT_IN_FILES.sub("-", str(request.get("name", ""))).strip(" .")[:80] or "imported"
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / f"{name}.toml"
            source.write_bytes(content)
            imported = presets.import_(source, None, self.shelf)
        if imported.preset is None:
            return Reply({"importFailed": {"name": name, "problems": messages.all_problem_facts(imported.problems)}})
        return self._say(f"“{imported.preset.name}” is imported. Choose it under Presets to see what it would change.")

    def _bring(self, name: str, content: bytes, dataset: bytes | None) -> Reply:
        """Another program's settings: shown as a difference, and kept until somebody takes them."""
        now = self.desk.now.values
        brought = imports.bring(name, content, dataset, str(now.get("model.family") or ""))
        if brought.loaded.config is None:
            problems = messages.all_problem_facts(brought.loaded.problems)
            return Reply({"importFailed": {"name": name, "problems": problems}})
        self._brought = brought
        rows = form.differences(now, form.to_values(brought.loaded.config) | brought.given(now))
        return Reply({"brought": {"name": name, "rows": rows, **brought.facts()}})

    def take_import(self, request: Mapping[str, Any]) -> Reply:
        """Put what was brought over and shown on the desk."""
        if self._brought is None or self._brought.name != request.get("name"):
            return self._say("That file is no longer at hand. Import it again.", "error")
        given = self._brought.given(self.desk.now.values)
        return self._take(self._brought.loaded, None, f"the settings of {self._brought.name}", given)

    def _save(self, name: str, overwrite: bool) -> Reply:
        loaded = form.read(self.desk.now.values)
        if loaded.config is None:
            message = self.state(loaded.problems)
            said = messages.notice("Not saved: some settings can't be used yet.", "error")
            return Reply(message | {"notice": said, "refused": True})
        saved = presets.save(loaded.config, name, overwrite=overwrite, shelf=self.shelf)
        self.desk.saved_as(saved.name)
        return self._say(f"Saved as “{saved.name}”.")

    def _take(
        self, loaded: load.Loaded, preset: str | None, called: str, given: Mapping[str, Any] | None = None
    ) -> Reply:
        if loaded.config is None:
            facts = messages.all_problem_facts(loaded.problems)
            first = f"{facts[0]['text']} {facts[0]['remedy']}" if facts else ""
            return self._say(f"“{called}” can't be loaded. {first}", "error")
        before = self.desk.now.values
        after = form.to_values(loaded.config)
        count = len(form.changed(after | dict(given or {}), before))
        self.desk.load(after, preset, given)
        changed = "nothing changed" if not count else "1 setting changed" if count == 1 else f"{count} settings changed"
        said = messages.notice(f"Loaded {called}: {changed}.", action="Undo", request={"what": "undo"})
        return Reply(self.state(loaded.problems) | {"notice": said}, reload=True)

    # ---- undo, start -----------------------------------------------------------------------------------------------

    def undo(self, request: Mapping[str, Any]) -> Reply:
        """Back before the last load."""
        return self._moved(self.desk.undo(), "Back to what was there before.")

    def redo(self, request: Mapping[str, Any]) -> Reply:
        """The load again."""
        return self._moved(self.desk.redo(), "Loaded again.")

    def apply(self, request: Mapping[str, Any]) -> Reply:
        """Change some settings at once, as the page was advised to; undo takes it back."""
        known = by_path()
        given = request.get("change")
        values = {path: value for path, value in given.items() if path in known} if isinstance(given, Mapping) else {}
        if not values:
            return self._say("There is nothing to change.", "error")
        shown = {path: fields.to_widget(known[path], value) for path, value in values.items()}
        self.desk.change(shown)
        names = ", ".join(f"{known[path].label} = {fields.title_of(known[path], shown[path])}" for path in shown)
        said = messages.notice(f"Changed: {names}.", action="Undo", request={"what": "undo"})
        return Reply(self.state(form.read(self.desk.now.values).problems) | {"notice": said}, reload=True)

    def _moved(self, moved: bool, said: str) -> Reply:
        message = self.state(form.read(self.desk.now.values).problems)
        return Reply(message | {"notice": messages.notice(said)} if moved else message, reload=moved)

    def start(self, request: Mapping[str, Any]) -> Reply:
        """Check everything; then write the run's folder and start its trainer."""
        loaded = form.read(self.desk.now.values)
        problems = [*loaded.problems]
        if loaded.partial is not None:
            problems += start_problems(loaded.partial)
        if form.has_errors(problems) or loaded.config is None:
            return Reply(self.state(problems) | {"refused": True})
        try:
            with one_start(self.places.runs):
                run = Run.create(loaded.config)
                supervise.start(None, run)
        except RunBusy as wrong:
            said = messages.notice(messages.words(wrong), "error")
            return Reply(self.state(problems) | {"refused": True, "notice": said})
        except (RunError, WriteFailed) as wrong:
            problems.append(Problem("saving.output_dir", None, wrong.text, wrong.remedy))
            return Reply(self.state(problems) | {"refused": True})
        self.places.started_in(run.path.parent)
        return Reply(self.state(problems) | {"started": {"run": run.name}})

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _chosen(self, request: Mapping[str, Any]) -> tuple[str, bool, load.Loaded]:
        """Name, whether it is built in, and content of a preset; the defaults are the one without a name."""
        if not request.get("name"):
            return "", True, load.parse({})
        preset = self._preset(request)
        return preset.name, preset.builtin, presets.load(preset)

    def _preset(self, request: Mapping[str, Any]) -> presets.Preset:
        return presets.find(str(request.get("name", "")), self.shelf)

    def _say(self, text: str, kind: str = "info") -> Reply:
        return self._notify(messages.notice(text, kind))

    def _notify(self, notice: Message) -> Reply:
        problems = form.read(self.desk.now.values).problems
        return Reply(self.state(problems) | {"notice": notice, "refused": notice["kind"] == "error" or None})


def start_problems(config: Config) -> list[Problem]:
    """What a run needs beside a valid config: a whole base model, folders with pictures. Nothing heavy is loaded."""
    problems = [*load.ready(config)]
    if config.model.base_model is not None:
        problems += family_check.problems(config)
    for index, folder in enumerate(config.dataset.folders):
        problems += _folder_problems(resolve(folder.path), f"dataset.folders[{index}].path")
        if folder.control_path is not None:
            problems += _folder_problems(resolve(folder.control_path), f"dataset.folders[{index}].control_path")
    for index, row in enumerate(config.validation.validation_folders):
        place = f"validation.validation_folders[{index}]"
        problems += _folder_problems(resolve(row.path), f"{place}.path")
        if row.control_path is not None:
            problems += _folder_problems(resolve(row.control_path), f"{place}.control_path")
    return problems


def _folder_problems(path: Path, setting: str) -> list[Problem]:
    if not path.exists():
        return [Problem(setting, None, f"there is no folder {path}", "Check the path; a disk may not be connected.")]
    if not path.is_dir():
        return [Problem(setting, None, f"{path} is a file, not a folder", f"Choose its folder: {path.parent}.")]
    try:
        # Stops at the first picture: 20,000 of them must not hold up the button.
        some = any(found.suffix.lower() in EXTENSIONS for found in path.rglob("*"))
    except OSError as wrong:
        return [
            Problem(setting, None, f"{path} can't be read: {wrong.strerror}", "Give yourself permission to read it.")
        ]
    if not some:
        return [Problem(setting, None, f"there is no picture in {path}", "Choose the folder with the pictures.")]
    return []
