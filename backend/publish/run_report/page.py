"""Writes the HTML of a report, section by section. Every text goes through the cleaner, then into HTML as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from string import Template

from backend.config.diff import diff, shown
from backend.config.schema import Config
from backend.families.table import family
from backend.publish.cleaner import Cleaner
from backend.publish.run_report.charts import Line, line_chart
from backend.publish.run_report.facts import ReportFacts
from backend.publish.run_report.observed import compile_rows, graph_rows, plan_rows
from backend.runs.comparison import Outcome, results
from backend.runs.events.environment import EnvironmentEvent
from backend.runs.events.kinds import ValidationEvent, WarningEvent
from backend.runs.events.validation import AverageEvent, BestEvent, EarlyStopEvent
from backend.runs.validation_words import average_words, best_words, early_stop_words

_PAGE = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
_SMOOTH = 0.95
Rows = Sequence[Sequence[str]]


class Page:
    """One report. text: cleans what is shown."""

    def __init__(self, facts: ReportFacts, cleaner: Cleaner) -> None:
        self.facts = facts
        self.clean = cleaner.text

    def html(self) -> str:
        """The whole file."""
        parts: list[Callable[[], str]] = [
            self._head, self._results, self._curves, self._validation, self._samples, self._settings, self._plan,
            self._compile, self._files, self._warnings, self._environment,
        ]  # fmt: skip
        body = "\n".join(text for part in parts if (text := part()))
        return _PAGE.substitute(title=self._text(f"Report of {self.facts.run.name}"), body=body)

    def _text(self, text: str) -> str:
        return escape(self.clean(text))

    def _table(self, headings: Sequence[str], rows: Rows) -> str:
        """A table whose first column names the row; "" without rows. Cells are texts."""
        if not rows:
            return ""
        top = "".join(f"<th>{self._text(heading)}</th>" for heading in headings)
        lines = [
            f"<tr><th>{self._text(first)}</th>{''.join(f'<td>{self._text(cell)}</td>' for cell in rest)}</tr>"
            for first, *rest in rows
        ]
        head = f"<thead><tr>{top}</tr></thead>" if headings else ""
        return f'<div class="scroll"><table>{head}<tbody>{"".join(lines)}</tbody></table></div>'

    def _head(self) -> str:
        facts, cfg, status = self.facts, self.facts.cfg, self.facts.status
        created = facts.run.record().get("created")
        day = time.strftime("%d %B %Y", time.localtime(created)) if isinstance(created, int | float) else ""
        kind = "whole model" if cfg.training.kind == "full" else f"{cfg.network.network_type}, rank"
        kind += "" if cfg.training.kind == "full" else f" {cfg.network.network_dim}"
        line = " · ".join(filter(None, (family(cfg.model.family).title, cfg.model.base_model or "", kind, day)))
        tags = "".join(f'<span class="tag">{self._text(tag)}</span>' for tag in facts.notes.tags)
        notes = f'<p class="notes">{self._text(facts.notes.text)}</p>' if facts.notes.text else ""
        return (
            f"<h1>{self._text(facts.run.name)}</h1><p>{self._text(status.text)}</p>"
            f'<p class="note">{self._text(line)}</p>{f"<p>{tags}</p>" if tags else ""}{notes}'
        )

    def _results(self) -> str:
        facts = self.facts
        outcome = Outcome(steps=facts.status.step, trained_s=facts.curve.trained, summary=facts.summary)
        rows = [(row.label, row.values[0]) for row in results([outcome])]
        return _section("Results", self._table((), rows))

    def _curves(self) -> str:
        line = self.facts.curve
        losses = [(step, loss) for step, loss in zip(line.steps, line.losses, strict=True) if loss is not None]
        rates = [(step, rate) for step, rate in zip(line.steps, line.rates, strict=True) if rate is not None]
        charts = [
            line_chart(
                "Training loss",
                [
                    Line(label="loss", style="faint", points=losses),
                    Line(label="smoothed", style="first", points=_smoothed(losses)),
                ],
            ),
            line_chart("Learning rate", [Line(label="learning rate", style="third", points=rates)], from_zero=True),
        ]
        return _section("Curves", "".join(charts))

    def _validation(self) -> str:
        sets: dict[str, dict[int, ValidationEvent]] = {}
        for event in self.facts.all_of(ValidationEvent):
            if event.loss is not None:
                # a step that was done again after a resume counts once
                sets.setdefault(event.set, {})[event.step] = event
        if not sets:
            return ""
        rows, lines = [], []
        for number, (name, by_step) in enumerate(sets.items()):
            events = [by_step[step] for step in sorted(by_step)]
            best = min(events, key=lambda event: event.loss or 0.0)
            cells = [f"{event.loss:.5f} at step {event.step:,}" for event in (events[0], best, events[-1])]
            rows.append((f"{name} (trained)" if events[0].trained else name, *cells))
            style = ("second", "first", "third", "faint")[min(number, 3)]
            points = [(event.step, event.loss or 0.0) for event in events]
            lines.append(Line(label=name, style=style, points=points, dots=True))
        words = [
            early_stop_words(stop) if (stop := self.facts.last(EarlyStopEvent)) else "",
            best_words(best_event) if (best_event := self.facts.last(BestEvent)) else "",
            average_words(average) if (average := self.facts.last(AverageEvent)) else "",
        ]
        sentences = "".join(f"<p>{self._text(text)}</p>" for text in words if text)
        chart = line_chart("Validation loss at the same noise", lines)
        return _section("Validation", chart + self._table(("Set", "First", "Lowest", "Last"), rows) + sentences)

    def _samples(self) -> str:
        facts = self.facts
        if not facts.pictures:
            return ""
        figures = [
            f'<figure><img src="{data}" alt="Sample"><figcaption>'
            f"{self._text(f'Step {sample.step}' if sample.step is not None else sample.path.name)}"
            f"{self._text(f': {sample.prompt}' if sample.prompt else '')}</figcaption></figure>"
            for sample, data in facts.pictures
        ]
        left = f'<p class="note">{facts.left_out} more are in the run.</p>' if facts.left_out > 0 else ""
        return _section("Samples", f'<div class="pictures">{"".join(figures)}</div>{left}')

    def _settings(self) -> str:
        changes = diff(Config(), self.facts.cfg)
        rows = [(each.label, shown(each.after), shown(each.before)) for each in changes]
        table = self._table(("Setting", "This run", "Default"), rows)
        return _section("Settings that differ from the defaults", table or "<p>None.</p>")

    def _plan(self) -> str:
        table = self._table(("", "Planned", "Observed"), plan_rows(self.facts))
        finish = f"<p>{self._text(self.facts.finish)}</p>" if self.facts.finish else ""
        return _section("Plan and run", table + finish) if table or finish else ""

    def _compile(self) -> str:
        rows = self._table((), compile_rows(self.facts))
        graphs = self._table(("Graph", "Blocks", "Tokens", "Seconds", ""), graph_rows(self.facts))
        return _section("Compile", rows + graphs) if rows or graphs else ""

    def _files(self) -> str:
        rows = [
            f"<tr><th>{self._text(file.path.name)}{self._text(f' ({file.role})' if file.role else '')}</th>"
            f"<td>{'' if file.step is None else f'{file.step:,}'}</td><td>{file.size / 1e6:,.1f} MB</td>"
            f"<td><code>{digest or 'not computed'}</code></td></tr>"
            for file, digest in self.facts.files
        ]
        if not rows:
            return ""
        head = "<thead><tr><th>File</th><th>Step</th><th>Size</th><th>SHA-256</th></tr></thead>"
        table = f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
        return _section("Saved files", table)

    def _warnings(self) -> str:
        texts = dict.fromkeys(f"{_ended(event.text)} {event.remedy}" for event in self.facts.all_of(WarningEvent))
        error = self.facts.status.error
        lines = [f"{error.text} {error.cause} {error.remedy}"] if error else []
        lines += list(texts)[-20:]
        items = "".join(f'<p class="warning">{self._text(text)}</p>' for text in lines)
        return _section("Warnings", items) if items else ""

    def _environment(self) -> str:
        event = self.facts.last(EnvironmentEvent)
        if event is None:
            return _section("Environment", '<p class="note">This run is of a version that did not record it.</p>')
        rows = [("System", event.system), ("Python", event.python), ("Device", event.device)]
        rows += [("CUDA", event.cuda)] if event.cuda else []
        rows += [(name, str(version)) for name, version in (event.packages or {}).items()]
        return _section("Environment", self._table((), rows))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _smoothed(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A running mean that starts at the first value."""
    total = weight = 0.0
    smooth = []
    for step, value in points:
        total, weight = _SMOOTH * total + (1 - _SMOOTH) * value, _SMOOTH * weight + (1 - _SMOOTH)
        smooth.append((step, total / weight))
    return smooth
