"""Builds the page: ``python -m gui [--host HOST] [--port PORT] [--no-browser] [--password WORD]``.

One Gradio form behind our own server. Gradio has the fields; what changes by itself (a run, a dataset scan) uses our
own routes, so that a tab costs nothing while nobody looks at it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gradio as gr
from fastapi import FastAPI

from backend.base.paths import PROJECT_ROOT
from backend.config import presets
from backend.queue.folder import QueueFolder
from backend.runs import recovery
from backend.runs.preview.folder import PreviewFolder
from gui import (
    caption_routes,
    compile_routes,
    fields,
    form,
    further_routes,
    library_routes,
    preview_routes,
    publish_routes,
    queue_routes,
    run_routes,
    theme,
)
from gui.actions import Actions
from gui.assets import Assets
from gui.draft import Draft
from gui.finish_routes import FinishProbe
from gui.form_routes import FormRoutes
from gui.locale.page import InLanguage
from gui.lora_routes import LoraReader
from gui.password import Password, password_fault
from gui.report_routes import ReportWriter
from gui.run_store import RunStore
from gui.security import BodyLimit, Hardening, NoUploads, SameOrigin, TrustedHosts
from gui.sub_path import SubPath, read_root
from gui.tabs import compile, dataset, library, memory, model, preview, queue, run, sampling, training
from gui.tune_routes import TunePanel

log = logging.getLogger(__name__)

_TABS: dict[str, ModuleType] = {
    "model": model,
    "dataset": dataset,
    "training": training,
    "compile": compile,
    "memory": memory,
    "sampling": sampling,
    "run": run,
    "queue": queue,
    "preview": preview,
    "library": library,
}
# Too short to be felt; the same as Gradio's own on Windows.
_QUEUE_PAUSE_S = 0.05


@dataclass(frozen=True)
class Home:
    """Where the page keeps its own files."""

    presets: Path = presets.USER_PRESETS
    """A person's presets."""
    draft: Path = PROJECT_ROOT / "runs" / ".page"
    """The draft, the list of run folders, and thumbnails."""
    first: str | None = "demo"
    """The preset that a new page shows."""

    @classmethod
    def at(cls, folder: Path) -> Home:
        """Everything below one folder, with an empty form at first."""
        return cls(folder / "presets", folder / "page", first=None)


def make_app(
    home: Home | None = None,
    *,
    remote: bool = False,
    names: Sequence[str] = (),
    password: str | None = None,
    root_path: str | None = None,
) -> FastAPI:
    """The whole application: form, routes and the layers that guard both.

    remote: bound to an address that other machines reach; needs a password (ValueError otherwise). names: further host
    names that the page answers to. root_path: where a reverse proxy shows the page, as `sub_path.read_root` takes it.
    """
    if remote and (not password or password_fault(password)):
        raise ValueError(f"a page that other machines reach needs a password. {password_fault(password or '')}")
    root = read_root(root_path)
    names = [*names, root.host] if root.host else names
    home = home or Home()
    draft = Draft(home.draft)

    def runs_folder() -> str:
        name = str(draft.now.values.get("saving.output_dir", ""))
        return "" if name in draft.untyped() else name

    preview_folder, queue_folder = PreviewFolder.of_page(draft.folder), QueueFolder.of_page(draft.folder)
    store = RunStore(runs_folder, home.draft / "places.json", queue_folder.roots)
    actions = Actions(draft, store, presets.Shelf(user=home.presets))
    form_routes = FormRoutes(draft, store, actions.shelf)
    if draft.is_new and store.runs():
        draft.level = "all"  # somebody trained here before, from a terminal or by another data folder
    if home.first:
        actions.load_first(home.first)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> Any:
        # Records that a crash or a power cut left wrong are fixed before anybody reads them.
        for root in store.roots():
            recovery.reconcile(root)
        store.empty_bins()
        # A queue that was on when the machine went down continues.
        queue_routes.see_to(store, queue_folder, preview_folder)
        yield

    app = FastAPI(title="Monotile", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.draft = draft
    _include_routes(app, store, form_routes, preview_folder, queue_folder)
    app.mount("/page", Assets(directory=theme.ASSETS), name="page")
    _mount(app, build(actions), root.path)
    app.add_middleware(InLanguage)
    app.add_middleware(NoUploads)
    app.add_middleware(BodyLimit, roomy=("/cache/import",))
    if password:
        app.add_middleware(Password, password=password)
    app.add_middleware(SameOrigin, names=names)
    app.add_middleware(TrustedHosts, remote=remote, names=names)
    app.add_middleware(Hardening)
    if root.path or root.address:
        app.add_middleware(SubPath, root=root)
    return app


def _include_routes(
    app: FastAPI, store: RunStore, form_routes: FormRoutes, preview: PreviewFolder, queue: QueueFolder
) -> None:
    """All routes of our own."""
    views = run_routes.RunViews(store)
    app.include_router(run_routes.routes(store, views, preview))
    app.include_router(library_routes.routes(store, views))
    app.include_router(further_routes.routes(store, preview))
    app.include_router(ReportWriter(store).routes())
    app.include_router(form_routes.routes())
    app.include_router(caption_routes.routes(form_routes.writer, store, preview, form_routes.draft.folder))
    app.include_router(compile_routes.routes(store, form_routes.config))
    app.include_router(publish_routes.routes(store))
    app.include_router(preview_routes.routes(store, form_routes.config, preview))
    app.include_router(queue_routes.routes(store, queue, preview))
    app.include_router(FinishProbe(store, form_routes.config, preview).routes())
    app.include_router(TunePanel(form_routes.draft, form_routes, preview).routes())
    app.include_router(LoraReader(store).routes())


def _mount(app: FastAPI, blocks: gr.Blocks, root_path: str) -> None:
    """Serve what Gradio makes of `blocks` below the routes. root_path: where a reverse proxy shows the page, or ""."""
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        theme=theme.build(),
        head=theme.head(root_path),
        footer_links=[],
        ssr_mode=False,
        run_history=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        show_error=True,
        max_file_size="1mb",
        blocked_paths=[str(PROJECT_ROOT)],
    )
    # Gradio checks a thousand times a second whether a button was pressed, which costs 4 % of a core all the time.
    blocks._queue.sleep_when_free = _QUEUE_PAUSE_S


def build(actions: Actions) -> gr.Blocks:
    """The form: bar, tabs, and the few events that Gradio carries."""
    widgets: fields.Widgets = {}
    with gr.Blocks(title="Monotile", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(
            html_template='<div id="bar-root" class="own"></div>',
            js_on_load=None,
            apply_default_css=False,
            elem_classes="bar-block",
        )
        # All traffic between scripts and server uses two components: one for requests, one for messages.
        request = gr.HTML(
            value={},
            html_template="<span></span>",
            js_on_load=theme.calling("bridge", "connectRequests(props, trigger)") + "/* 'submit', 'click' */",
            elem_classes="mt-hidden",
        )
        message = gr.HTML(
            value=None,
            html_template="<span></span>",
            js_on_load=theme.calling("bridge", "connectMessages(props, watch)"),
            elem_classes="mt-hidden",
        )
        with gr.Tabs(elem_id="tabs", selected="model", overflow_behavior="wrap"):
            for key, title in fields.TABS.items():
                with gr.Tab(title, id=key, elem_id=f"tab-{key}", render_children=True):
                    if any(group.tab == key for group in fields.GROUPS.values()):
                        fields.slot(f"level-{key}", "level-slot")
                    _TABS[key].draw(widgets)
        _wire(page, actions, widgets, request, message)
    return page


def _wire(page: gr.Blocks, actions: Actions, widgets: fields.Widgets, request: gr.HTML, message: gr.HTML) -> None:
    """Connect form and draft.

    Each widget sends its own value after an edit: with all of them as inputs of one event, Gradio's scripts look at
    each of the two hundred at every edit, for a third of a second on a slow machine. What starts or saves something
    sends all of them, so that it acts on what is on the screen (``submit``); other buttons send none (``click``).
    """
    # The page shows the state of the newest message, so they are numbered across restarts of the server, and in the
    # order in which the draft was changed.
    numbers = itertools.count(time.time_ns() // 1_000_000)
    in_turn = threading.Lock()
    names = {f"f{index}": path for index, path in enumerate(widgets)}
    inputs: dict[str, Any] = {name: widgets[path] for name, path in names.items()}

    def values(sent: dict[str, Any]) -> form.Values:
        return {names[name]: value for name, value in sent.items() if name in names}

    def packed(content: dict[str, Any]) -> dict[str, Any]:
        # The number makes each message new, so that the page reads it even when it equals the last one.
        return {"number": next(numbers), **content}

    # A session is one opened page: Gradio gives each an id.
    def shown(page: gr.Request) -> dict[gr.components.Component, Any]:
        form_now = actions.draft.shown(page.session_hash)
        return {widgets[path]: value for path, value in form_now.items() if path in widgets}

    def greet(page: gr.Request) -> dict[gr.components.Component, Any]:
        with in_turn:
            return {**shown(page), message: packed(actions.greet())}

    def keeper(path: str) -> Callable[..., dict[str, Any]]:
        def keep(value: Any, page: gr.Request) -> dict[str, Any]:
            with in_turn:
                return packed(actions.kept({path: value}, page.session_hash))

        return keep

    def act(page: gr.Request, **sent: Any) -> dict[gr.components.Component, Any]:
        asked = sent.pop("asked") or {}
        # a start takes seconds, for which no edit is to wait
        with contextlib.nullcontext() if asked.get("what") in ("start", "enqueue") else in_turn:
            reply = actions.act(asked, values(sent), page.session_hash)
            return {**(shown(page) if reply.reload else {}), message: packed(reply.message)}

    everything = [*widgets.values(), message]
    # Gradio tells each component that shows progress of each step of each event, even where progress is hidden.
    quiet: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": message, "api_visibility": "private"}
    page.load(greet, None, everything, **quiet)
    for path, widget in widgets.items():
        _edited(widget)(keeper(path), widget, message, queue=False, trigger_mode="always_last", **quiet)
    # "multiple": a second press while the first is under way is a request of its own, never dropped.
    for event, fields_sent in ((request.submit, inputs), (request.click, {})):
        sent = {"asked": request, **fields_sent}
        event(act, None, everything, inputs_kwargs=sent, trigger_mode="multiple", **quiet)


def _edited(widget: gr.components.Component) -> Any:
    """The event after which a widget's value is worth keeping: text when it is left, all else at once."""
    return widget.blur if isinstance(widget, gr.Textbox) else widget.input
