"""Does what the buttons of the bar ask: each takes the form on screen and answers with a message for the page."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import resolve
from backend.base.problems import Problem
from backend.config import load, presets
from backend.config.schema import Config, Setting, by_path, with_values
from backend.families.table import FAMILIES
from backend.plan.start_check import start_problems
from backend.queue.folder import QueueFolder
from backend.runs import supervise
from backend.runs.errors import RunBusy, RunError
from backend.runs.folder import Run
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from backend.runs.start_lock import one_start
from gui import base_model, fields, form, imports, keep_on_load, messages, queue_routes
from gui.draft import Draft
from gui.run_settings import read_settings
from gui.run_store import RunStore

log = logging.getLogger(__name__)

Message = dict[str, Any]
_LARGEST_IMPORT = 1_000_000
_LONGEST_TITLE = 120
_NOT_KEPT = "This file is not kept any more. Import it again."


@dataclass
class Reply:
    """The answer to a button."""

    message: Message
    """For the page's scripts."""
    reload: bool = False
    """Whether the form on screen has to be replaced by the draft."""


class Actions:
    """The buttons. One method an action, called by its name with the page's request."""

    def __init__(self, draft: Draft, store: RunStore, shelf: presets.Shelf = presets.SHELF) -> None:
        self.draft = draft
        self.store = store
        self.shelf = shelf
        self._bin: dict[str, presets.Trashed] = {}
        self._imported: imports.OwnSettings | imports.ForeignSettings | None = None
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
            "save-import": self.save_import,
            "undo": self.undo,
            "redo": self.redo,
            "apply": self.apply,
            "start": self.start,
            "enqueue": self.enqueue,
        }

    def greet(self) -> Message:
        """Everything a page needs when it is opened."""
        return self.state() | {"settings": fields.search_index()}

    def load_first(self, preset: str) -> None:
        """Load a preset into a page that nobody has used yet, so that Start training works at once; undo empties it."""
        for candidate in presets.list_presets(self.shelf):
            if self.draft.is_new and candidate.name == preset:
                self._take(presets.load(candidate), preset, preset)

    def kept(self, values: Mapping[str, Any], tab: str | None = None) -> Message:
        """Take what was edited in this tab; the answer says what is wrong with the form. Called after every edit."""
        before = self.draft.now.values
        behind = self.draft.keep(values, tab)
        advice = self._of_new_family(before, self.draft.now.values)
        return {
            "behind": behind,
            "draft": self.draft.facts(),
            "problems": messages.all_problem_facts(form.read(self.draft.now.values).problems),
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
        text = f"{row.title} does not support the shape mode {now['compile.shape_mode']}."
        return messages.notice(text, "info", f"Set {mode}", {"what": "apply", "change": change})

    def state(self, problems: list[Problem] | None = None) -> Message:
        """The bar, the presets and these problems; without any, those of the form."""
        if problems is None:
            problems = form.read(self.draft.now.values).problems
        return {
            "draft": self.draft.facts(),
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
        behind = self.draft.keep(values, tab)
        what = str(request.get("what", ""))
        if behind and what in ("refresh", "start", "enqueue"):
            return self._overtaken(what)
        reply = self._do(what, request)
        reply.reload |= behind
        return reply

    def _overtaken(self, what: str) -> Reply:
        """The form of a browser tab is out of date: the tab gets the new one, and starts nothing unseen."""
        text = "The settings were changed in another browser tab. This one shows them now."
        if what == "refresh":
            return Reply(self._answer(text).message, reload=True)
        again = "start" if what == "start" else "add them to the queue"
        return Reply(self._answer(f"{text} Check them, then {again} again.", "error").message, reload=True)

    def _do(self, what: str, request: Mapping[str, Any]) -> Reply:
        action = self._known.get(what)
        if action is None:
            return self._answer(f"The page asked for something unknown: {what!r}. Reload the page.", "error")
        try:
            return action(request)
        except (Refused, RunError, WriteFailed) as wrong:
            return self._answer(messages.words(wrong), "error")
        except OSError as wrong:
            log.warning("%s failed: %s", what, wrong)
            return self._answer(f"That failed: {wrong}", "error")
        except Exception as wrong:
            # A bug of ours: without an answer the button would seem dead.
            log.exception("%s failed", what)
            return self._answer(
                f"That failed because of a bug in the page ({type(wrong).__name__}). See the page's terminal.",
                "error",
            )

    # ---- presets ---------------------------------------------------------------------------------------------------

    def compare(self, request: Mapping[str, Any]) -> Reply:
        """What loading a preset would change; without a name, what going back to the defaults would.

        kept: settings of a person that the preset does not have; they stay with ``keep``.
        """
        name, builtin, loaded = self._requested(request)
        rows, kept = [], self._kept_values(name, loaded)
        if loaded.config is not None:
            after = form.to_values(loaded.config) | (kept if request.get("keep") else {})
            rows = form.differences(self.draft.now.values, after)
        facts = {"name": name, "builtin": builtin, "rows": rows, "kept": keep_on_load.labels(kept)}
        return Reply({"difference": facts | {"problems": messages.all_problem_facts(loaded.problems)}})

    def load(self, request: Mapping[str, Any]) -> Reply:
        """Load a preset, and keep nothing of what was there before; without a name, load the defaults.

        With ``keep``, settings of a person that the preset does not have stay.
        """
        name, _, loaded = self._requested(request)
        kept = self._kept_values(name, loaded) if request.get("keep") else {}
        return self._take(loaded, name or None, name or "the defaults", kept)

    def _kept_values(self, name: str, loaded: load.Loaded) -> form.Values:
        if not name or loaded.config is None:
            return {}
        built_in = {preset.name for preset in presets.list_presets(self.shelf) if preset.builtin}
        return keep_on_load.kept_values(
            self.draft.now, self.draft.now.preset in built_in, form.to_values(loaded.config)
        )

    def load_run(self, request: Mapping[str, Any]) -> Reply:
        """Load the settings of an earlier run; with ``from_file``, to continue from its newest file."""
        return self._take(*read_settings(self.store.run(str(request.get("name", ""))), bool(request.get("from_file"))))

    def save(self, request: Mapping[str, Any]) -> Reply:
        """Save the form to its own preset."""
        return self._save(str(request.get("name", "")), overwrite=True, change=request.get("change"))

    def save_as(self, request: Mapping[str, Any]) -> Reply:
        """Save the form as a new preset, with a change where one is given; offer to replace one of the person's own."""
        name = str(request.get("name", "")).strip()
        taken = next((p for p in presets.list_presets(self.shelf) if p.name.casefold() == name.casefold()), None)
        if taken is not None and not taken.builtin:
            again = {"what": "save", "name": taken.name, "change": request.get("change")}
            return self._notify(
                messages.notice(f"There is already a preset “{taken.name}”.", "error", "Replace", again)
            )
        return self._save(name, overwrite=False, change=request.get("change"))

    def rename(self, request: Mapping[str, Any]) -> Reply:
        """Give a preset another name."""
        preset = self._preset(request)
        renamed = presets.rename(preset, str(request.get("to", "")), self.shelf)
        self.draft.renamed(preset.name, renamed.name)
        return self._answer(f"“{preset.name}” is now called “{renamed.name}”.")

    def delete(self, request: Mapping[str, Any]) -> Reply:
        """Move a preset to the trash, with Undo in the notice."""
        preset = self._preset(request)
        trashed = presets.delete(preset, self.shelf)
        self._bin[trashed.path.name] = trashed
        self.draft.renamed(preset.name, None)
        undo = {"what": "restore", "token": trashed.path.name}
        return self._notify(messages.notice(f"“{preset.name}” was deleted.", action="Undo", request=undo))

    def restore(self, request: Mapping[str, Any]) -> Reply:
        """Restore a preset from the trash."""
        trashed = self._bin.pop(str(request.get("token", "")), None)
        if trashed is None:
            return self._answer("This preset is no longer in the trash.", "error")
        restored = presets.restore(trashed, self.shelf)
        return self._answer(f"“{restored.name}” was restored.")

    def import_(self, request: Mapping[str, Any]) -> Reply:
        """Read a file of settings, ours or another program's: shown as a difference, and kept until it is loaded."""
        try:
            content = base64.b64decode(str(request.get("content", "")), validate=True)
            dataset = base64.b64decode(str(request["dataset"]), validate=True) if request.get("dataset") else None
        except (binascii.Error, ValueError):
            return self._answer(
                "The file could not be read. Choose a TOML file or settings of another trainer.", "error"
            )
        if len(content) > _LARGEST_IMPORT or len(dataset or b"") > _LARGEST_IMPORT:
            return self._answer("This file is too large for a preset (over 1 MB).", "error")
        name, now = str(request.get("name", "")) or "the file", self.draft.now.values
        family = str(now.get("model.family") or "")
        is_foreign = imports.is_foreign(content)
        settings = imports.read(name, content, dataset, family) if is_foreign else imports.read_own(name, content)
        if settings.loaded.config is None:
            problems = messages.all_problem_facts(settings.loaded.problems)
            return Reply({"importFailed": {"name": settings.name, "problems": problems}})
        self._imported = settings
        rows = form.differences(now, form.to_values(settings.loaded.config) | settings.kept_values(now))
        return Reply({"foreign": {"name": settings.name, "rows": rows, **settings.facts()}})

    def take_import(self, request: Mapping[str, Any]) -> Reply:
        """Load the settings of a file that were shown."""
        if self._imported is None or self._imported.name != request.get("name"):
            return self._answer(_NOT_KEPT, "error")
        kept = self._imported.kept_values(self.draft.now.values)
        return self._take(self._imported.loaded, None, f"the settings of {self._imported.name}", kept)

    def save_import(self, request: Mapping[str, Any]) -> Reply:
        """Save a file of ours that was shown as a preset, as it is. The form stays as it is."""
        imported = self._imported
        if not isinstance(imported, imports.OwnSettings) or imported.name != request.get("name"):
            return self._answer(_NOT_KEPT, "error")
        return self._answer(f"Saved as “{imported.save(self.shelf).name}”. The form stays as it is.")

    def _save(self, name: str, overwrite: bool, change: Any = None) -> Reply:
        loaded = form.read(self.draft.now.values)
        if loaded.config is None:
            message = self.state(loaded.problems)
            notice = messages.notice("Not saved: some settings have errors. They are listed at the top.", "error")
            return Reply(message | {"notice": notice, "refused": True})
        config = with_values(loaded.config, change) if change else loaded.config
        saved = presets.save(config, name, overwrite=overwrite, shelf=self.shelf)
        if change:
            return self._answer(f"Saved as “{saved.name}”. The form stays as it is.")
        self.draft.saved_as(saved.name)
        return self._answer(f"Saved as “{saved.name}”.")

    def _take(
        self, loaded: load.Loaded, preset: str | None, title: str, kept: Mapping[str, Any] | None = None
    ) -> Reply:
        if loaded.config is None:
            facts = messages.all_problem_facts(loaded.problems)
            first = f"{facts[0]['text']} {facts[0]['remedy']}" if facts else ""
            return self._answer(f"“{title}” can't be loaded. {first}", "error")
        before = self.draft.now.values
        after = form.to_values(loaded.config)
        count = len(form.changed(after | dict(kept or {}), before))
        self.draft.load(after, preset, kept)
        changed = "nothing changed" if not count else "1 setting changed" if count == 1 else f"{count} settings changed"
        notice = messages.notice(f"Loaded {title}: {changed}.", action="Undo", request={"what": "undo"})
        return Reply(self.state(loaded.problems) | {"notice": notice}, reload=True)

    # ---- undo, start -----------------------------------------------------------------------------------------------

    def undo(self, request: Mapping[str, Any]) -> Reply:
        """Undo the last load."""
        return self._moved(self.draft.undo(), "The settings from before are restored.")

    def redo(self, request: Mapping[str, Any]) -> Reply:
        """Redo the last load."""
        return self._moved(self.draft.redo(), "Loaded again.")

    def apply(self, request: Mapping[str, Any]) -> Reply:
        """Change some settings at once, as the page suggested; undo takes them back."""
        known = by_path()
        change = request.get("change")
        values = {path: value for path, value in change.items() if path in known} if isinstance(change, Mapping) else {}
        if not values:
            return self._answer("There is nothing to change.", "error")
        shown = {path: fields.to_widget(known[path], value) for path, value in values.items()}
        self.draft.change(shown)
        names = ", ".join(f"{known[path].label} = {_shortened(known[path], shown[path])}" for path in shown)
        notice = messages.notice(f"Changed: {names}.", action="Undo", request={"what": "undo"})
        return Reply(self.state() | {"notice": notice}, reload=True)

    def _moved(self, moved: bool, text: str) -> Reply:
        return Reply(self.state() | ({"notice": messages.notice(text)} if moved else {}), reload=moved)

    def enqueue(self, request: Mapping[str, Any]) -> Reply:
        """Check everything as a start does; then put the settings at the end of the queue."""
        config, problems = self._ready()
        if config is None:
            return Reply(self.state(problems) | {"refused": True})
        folder, preview = QueueFolder.of_page(self.draft.folder), PreviewFolder.of_page(self.draft.folder)
        try:
            entry = folder.add(config)
        except WriteFailed as wrong:
            return self._answer(messages.words(wrong), "error")
        self.store.started_in(resolve(config.saving.output_dir))
        queue_routes.see_to(self.store, folder, preview)
        queue = folder.read()
        rest = "" if queue.on else " The queue is paused: start it on the Queue tab."
        notice = messages.notice(f"Added “{entry.name}” to the queue. Runs that wait: {len(queue.waiting())}.{rest}")
        return Reply(self.state(problems) | {"notice": notice, "queued": {"entry": entry.id}})

    def _ready(self) -> tuple[Config | None, list[Problem]]:
        """The form's settings if a run can be started from them, and all problems of such a start."""
        loaded = form.read(self.draft.now.values)
        problems = [*loaded.problems]
        if loaded.partial is not None:
            problems += start_problems(loaded.partial)
        return (None if form.has_errors(problems) else loaded.config), problems

    def start(self, request: Mapping[str, Any]) -> Reply:
        """Check everything; then write the run's folder and start its trainer."""
        config, problems = self._ready()
        if config is None:
            return Reply(self.state(problems) | {"refused": True})
        try:
            with one_start(self.store.runs):
                give_gpu_back(PreviewFolder.of_page(self.draft.folder))
                run = Run.create(config)
                supervise.start(None, run)
        except RunBusy as wrong:
            notice = messages.notice(messages.words(wrong), "error", "Add to queue", {"what": "enqueue"})
            return Reply(self.state(problems) | {"refused": True, "notice": notice})
        except (RunError, WriteFailed) as wrong:
            problems.append(Problem("saving.output_dir", None, wrong.text, wrong.remedy))
            return Reply(self.state(problems) | {"refused": True})
        self.store.started_in(run.path.parent)
        return Reply(self.state(problems) | {"started": {"run": run.name}})

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _requested(self, request: Mapping[str, Any]) -> tuple[str, bool, load.Loaded]:
        """Name, whether it is built in, and content of a preset; the defaults are the one without a name."""
        if not request.get("name"):
            return "", True, load.parse({})
        preset = self._preset(request)
        return preset.name, preset.builtin, presets.load(preset)

    def _preset(self, request: Mapping[str, Any]) -> presets.Preset:
        return presets.find(str(request.get("name", "")), self.shelf)

    def _answer(self, text: str, kind: str = "info") -> Reply:
        return self._notify(messages.notice(text, kind))

    def _notify(self, notice: Message) -> Reply:
        return Reply(self.state() | {"notice": notice, "refused": notice["kind"] == "error" or None})


def _shortened(setting: Setting, shown: Any) -> str:
    """What the widget calls a value, cut where it is a long list."""
    title = fields.title_of(setting, shown) or "not set"
    return title if len(title) <= _LONGEST_TITLE else f"{title[:_LONGEST_TITLE]}…"
