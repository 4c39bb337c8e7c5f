"""Searches settings with which a run ends soonest: one factor at a time from the best so far, then the best pair."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from backend.config.schema import Config
from backend.dataset.items import DatasetScan
from backend.plan.finish.pace import Pace, keep_pace, read_pace
from backend.plan.finish.probe import Measure, ProbeFailed
from backend.plan.finish.reckoning import finish_time
from backend.plan.memory.report import gigabytes
from backend.plan.tune.candidates import Candidate, Candidates
from backend.plan.tune.expected_gains import Surroundings
from backend.plan.tune.factors import FACTORS, Choice, Factor, most_promising
from backend.plan.tune.trials import Trial, Tuned, better
from backend.runs.errors import RunBusy, RunError

log = logging.getLogger(__name__)

MOST_PROBES = 24
_NO_MEMORY = ("cuda_oom", "ram", "page_file")

Report = Callable[[Tuned, str, float], object]
"""Takes what was tried, what the probe is at, and the share of it that is done, 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a person asks for."""

    allow: frozenset[str] = frozenset()
    """Of `factors.ALLOWED`."""
    probes: int = MOST_PROBES
    """At most."""
    by_class: bool = False
    again: bool = False
    """Results of before are not used."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A choice from the best of its time that was not kept."""

    factor: str
    choice: Choice
    trial: Trial
    ratio: float | None
    """Its finish time by that of the best it was compared with; None where it has no figures."""


class _Ended(Exception):
    """Ends a search early; what was tried is kept."""


@dataclass(kw_only=True)
class Tuner:
    """One tune. `tune` runs it; whatever ends it, what was tried is in `result`."""

    candidates: Candidates
    options: Options
    measure: Measure
    report: Report
    result: Tuned = Tuned(trials=())
    _took: list[float] = field(default_factory=list)
    _tried: list[_Tried] = field(default_factory=list)
    _left: tuple[Factor, ...] = FACTORS
    _best: Candidate | None = None

    def run(self) -> Tuned:
        """Try all that the options allow. KeyboardInterrupt ends it like the last candidate, with the best so far."""
        self._left = tuple(f for f in FACTORS if not f.needs or f.needs in self.options.allow)
        try:
            self._begin()
            while self._left:
                self._look_ahead()
                assert self._best is not None
                factor = most_promising(self._left, self._best.config, self._around())
                self._left = tuple(other for other in self._left if other is not factor)
                self._try_factor(factor)
            self._try_pair()
            self._end("done")
        except _Ended:
            pass
        except KeyboardInterrupt:
            self._end("stopped")
        return self.result

    # ---- order -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Measure the present settings; where they don't run, look for the nearest that do."""
        present = self.candidates.of({}, "present settings")
        if present is None:
            raise RunError("These settings can't be trained.", "Correct them: launcher.py plan says what is wrong.")
        trial = self._try(present)
        if trial.ran:
            return
        if trial.state == "failed":
            self._end("done", f"The present settings fail, and not for want of memory: {trial.reason}")
            raise _Ended
        around = self._around(short=True)
        singles = [(factor.name, choice) for factor in self._left for choice in factor.choices(present.config, around)]
        needed = None if present.estimate is None else present.estimate.needed
        for candidate in self._that_need_less(present, singles, needed):
            if self._try(candidate).ran:
                return
        self._end("done", "Nothing that may be changed makes these settings run. The rows say why.")
        raise _Ended

    def _that_need_less(
        self, present: Candidate, singles: list[tuple[str, Choice]], needed: int | None
    ) -> Iterator[Candidate]:
        """Candidates that are estimated to fit and to need less than the present settings: single ones, then pairs."""
        pairs = [[single] for single in singles]
        pairs += [[a, b] for index, a in enumerate(singles) for b in singles[index + 1 :] if a[0] != b[0]]
        for parts in pairs:
            candidate = self._joined(present, parts)
            estimate = None if candidate is None else candidate.estimate
            if candidate is not None and candidate.fits and estimate is not None and estimate.needed < (needed or 0):
                yield candidate

    def _try_factor(self, factor: Factor) -> None:
        """Try all choices of a factor from the best so far."""
        assert self._best is not None
        start, before, ran = self._best, self._chosen(), set()
        for choice in list(factor.choices(start.config, self._around())):
            candidate = self._joined(start, [(factor.name, choice)])
            if candidate is None or ran & choice.slower_than:
                continue
            if self._was_tried(candidate) is not None:
                continue
            trial = self._try(candidate)
            if trial.ran:
                ran.add(choice.words)
            if self.result.best != trial.number:
                ratio = trial.seconds / before.seconds if trial.ran else None
                self._tried.append(_Tried(factor.name, choice, trial, ratio))

    def _try_pair(self) -> None:
        """Try the two choices together that promise most: both nearly as good, or one that makes room for the other."""
        if self._best is None:
            return
        pair = self._best_pair(self._best)
        if pair is not None:
            self._try(pair)

    def _best_pair(self, best: Candidate) -> Candidate | None:
        ran = [tried for tried in self._tried if tried.ratio is not None]
        promises: list[tuple[float, Candidate]] = []
        for index, a in enumerate(ran):
            for b in ran[index + 1 :]:
                ratio = (a.ratio or 1) * (b.ratio or 1)
                pair = (
                    self._joined(best, [(a.factor, a.choice), (b.factor, b.choice)]) if a.factor != b.factor else None
                )
                if pair is not None and pair.fits and ratio < 1 and self._was_tried(pair) is None:
                    promises.append((ratio, pair))
        if promises:
            return min(promises, key=lambda each: each[0])[1]
        # what does not fit alone may with a change that needs less memory and costs little
        full = [tried for tried in self._tried if tried.trial.state in ("does_not_fit", "out_of_memory")]
        for room in sorted(ran, key=lambda tried: tried.ratio or 1):
            for blocked in full:
                if room.factor == blocked.factor:
                    continue
                pair = self._joined(best, [(blocked.factor, blocked.choice), (room.factor, room.choice)])
                if pair is not None and pair.fits and self._was_tried(pair) is None and _needs_less(room, best):
                    return pair
        return None

    # ---- candidates ------------------------------------------------------------------------------------------------

    def _joined(self, start: Candidate, parts: list[tuple[str, Choice]]) -> Candidate | None:
        """`start` with these choices; None where rules refuse it, or where it is `start` itself."""
        values, changes = dict(start.values), list(start.changes)
        for _, choice in parts:
            values |= choice.values
            changes += [choice.changes] if choice.changes and choice.changes not in changes else []
        words = [*([] if start.name == "present settings" else [start.name]), *(choice.words for _, choice in parts)]
        factor = parts[0][0] if len(parts) == 1 else "pair"
        made = self.candidates.of(values, ", ".join(words), factor, tuple(changes))
        return None if made is None or made.config == start.config else made

    def _was_tried(self, candidate: Candidate) -> Trial | None:
        return next((t for t in self.result.trials if dict(t.values) == dict(candidate.values)), None)

    def _around(self, short: bool = False) -> Surroundings:
        parts, best, gpu = self.candidates.parts, self.result.chosen, self.candidates.gpu
        return Surroundings(
            on_gpu=gpu is not None,
            capability=None if gpu is None else gpu.capability,
            blocks=None if parts is None else len(parts.denoiser.blocks),
            attention="" if best is None or best.pace is None else best.pace.attention,
            warm_up=_warm_up(best),
            by_class=self.options.by_class,
            short=short,
        )

    def _chosen(self) -> Trial:
        best = self.result.chosen
        assert best is not None
        return best

    # ---- trials ----------------------------------------------------------------------------------------------------

    def _try(self, candidate: Candidate) -> Trial:
        """Measure a candidate, or say why not; it becomes the best where it is worth it."""
        trial = Trial(
            number=len(self.result.trials),
            name=candidate.name,
            factor=candidate.factor,
            values=candidate.values,
            changes=candidate.changes,
            state="does_not_fit",
            estimated=None if candidate.estimate is None else candidate.estimate.needed,
        )
        if not candidate.fits:
            return self._add(replace(trial, reason=_too_large(candidate)), candidate)
        known = None if self.options.again else read_pace(candidate.config)
        if known is not None:
            return self._add(_with_pace(trial, candidate, known, reused=True), candidate)
        if self.result.probes >= self.options.probes:
            self._end("limit", f"{self.options.probes} probes were made, as many as were asked for.")
            raise _Ended
        return self._add(self._probed(trial, candidate), candidate)

    def _probed(self, trial: Trial, candidate: Candidate) -> Trial:
        self.result = replace(self.result, probes=self.result.probes + 1)
        began = time.monotonic()

        def at(words: str, share: float) -> None:
            self.report(self._with_time_left(time.monotonic() - began), f"{trial.name}: {words}", share)

        at("Starting.", 0.0)
        try:
            pace = self.measure(candidate.config, candidate.plan, at)
            keep_pace(candidate.config, pace)
        except RunBusy as busy:
            self._end("busy", f"{busy} What was measured is used again by the next tune.")
            raise _Ended from busy
        except ProbeFailed as failed:
            full = failed.kind in _NO_MEMORY
            reason = failed.text.removeprefix("The probe failed: ")
            trial = replace(trial, state="out_of_memory" if full else "failed", reason=reason)
        except RunError as wrong:
            trial = replace(trial, state="failed", reason=str(wrong))
        else:
            trial = _with_pace(trial, candidate, pace, reused=False)
        self._took.append(time.monotonic() - began)
        return trial

    def _add(self, trial: Trial, candidate: Candidate) -> Trial:
        best = self.result.best
        if better(trial, self.result.chosen):
            best, self._best = trial.number, candidate
        self.result = replace(self.result, trials=(*self.result.trials, trial), best=best)
        self.result = self._with_time_left(0.0)
        self.report(self.result, "", 0.0)
        return trial

    def _look_ahead(self) -> None:
        """Count the probes in all again, from the best so far."""
        self.result = replace(self.result, planned=self.result.probes + self._to_come())
        self.result = self._with_time_left(0.0)
        self.report(self.result, "", 0.0)

    def _to_come(self) -> int:
        """Probes that are left at most: those of factors not tried yet, from the best so far, and the pair."""
        best = self._best
        if best is None:
            return 0
        count = 1
        for factor in self._left:
            ran: set[str] = set()
            for choice in factor.choices(best.config, self._around()):
                candidate = self._joined(best, [(factor.name, choice)])
                if candidate is None or not candidate.fits or ran & choice.slower_than or self._was_tried(candidate):
                    continue
                ran.add(choice.words)
                count += self.options.again or read_pace(candidate.config) is None
        return min(count, self.options.probes - self.result.probes)

    def _with_time_left(self, spent: float) -> Tuned:
        if not self._took:
            return replace(self.result, left=None)
        each = statistics.mean(self._took)
        running = max(0.0, each - spent) if spent else 0.0
        return replace(self.result, left=self._to_come_now() * each + running)

    def _to_come_now(self) -> int:
        return max(0, self.result.planned - self.result.probes)

    def _end(self, how: str, why: str = "") -> None:
        self.result = replace(self.result, ended=how, why=why, left=0.0, planned=self.result.probes)
        self.report(self.result, "", 1.0)


def tune(config: Config, scan: DatasetScan, measure: Measure, report: Report, options: Options | None = None) -> Tuned:
    """Try what may differ from `config`, a probe at a time, and return all that was tried with the choice.

    A probe that fails is a row with its reason. KeyboardInterrupt and a run that takes the GPU meanwhile end it with
    the best so far. Raises WriteFailed where the runs' folder can't be written, RunError where nothing can be tried.
    """
    candidates = Candidates(config, scan)
    return Tuner(candidates=candidates, options=options or Options(), measure=measure, report=report).run()


def _with_pace(trial: Trial, candidate: Candidate, pace: Pace, reused: bool) -> Trial:
    finish = finish_time(candidate.config, pace, candidate.plan.steps.steps)
    return replace(trial, state="reused" if reused else "measured", pace=pace, finish=finish)


def _warm_up(trial: Trial | None) -> float:
    """Share of a trial's finish time that its first steps take above the usual."""
    if trial is None or trial.pace is None or trial.finish is None or not trial.finish.seconds:
        return 0.0
    return trial.pace.warm_up / trial.finish.seconds


def _too_large(candidate: Candidate) -> str:
    estimate = candidate.estimate
    assert estimate is not None
    room = estimate.ram_room if not estimate.on_gpu or estimate.ram_decides else estimate.room
    what = "RAM" if not estimate.on_gpu or estimate.ram_decides else "video memory"
    there = "" if room is None else f", of {gigabytes(room)}"
    return f"It needs about {gigabytes(estimate.needed)} of {what}{there}."


def _needs_less(tried: _Tried, best: Candidate) -> bool:
    needed = None if best.estimate is None else best.estimate.needed
    return needed is not None and tried.trial.estimated is not None and tried.trial.estimated < needed
