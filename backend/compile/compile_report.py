"""Reports what `compile_model` did, as data and as one line."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.setup import toolchain

# More names than these say no more.
_NAMED = 3


@dataclass
class CompileReport:
    """The outcome of `compile_model`; `failed` and `notes` grow during the run.

    state: "off" (not asked for), "compiled", "fallback" (asked for, but everything runs eagerly; `reason` says why) or
    "partly" (some blocks failed and run eagerly, or further shapes do). `blocks` counts compiled blocks by class,
    `eager` names those left out by choice, `failed` maps a block that failed to compile to the reason, `limited` names
    the classes that have as many graphs as the recompile limit allows and were asked for more. `share`: of the blocks'
    forward time that runs compiled, timed in one step where linear layers are left out; None before, and where they are
    not. `recompute`: checkpointing happens within the backward graphs. `limit_is_set`: a person set the recompile
    limit, and not the plan. `may_pad`: shape_mode static is possible and not chosen.
    """

    asked: bool = True
    reason: str | None = None
    scope: str = "blocks"
    backend: str = "inductor"
    mode: str = "default"
    dynamic: bool | None = None
    fullgraph: bool = False
    limit: int | None = None
    disable_linear: bool = False
    recompute: bool = False
    blocks: dict[str, int] = field(default_factory=dict)
    eager: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    limited: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    share: float | None = None
    limit_is_set: bool = True
    may_pad: bool = True

    @property
    def compiled(self) -> int:
        """Blocks (or the one whole model) that run compiled now."""
        return sum(self.blocks.values()) - len(self.failed)

    @property
    def state(self) -> str:
        if not self.asked:
            return "off"
        if self.compiled == 0:
            return "fallback"
        return "partly" if self.failed or self.limited else "compiled"

    @property
    def why(self) -> str | None:
        """Why less is compiled than was asked for, in words; None where nothing is known to be in the way."""
        if self.reason is not None:
            return self.reason
        causes = [f"{_names(names)} failed to compile: {reason}" for reason, names in self._failures().items()]
        causes += [
            f"{kind} blocks have as many graphs as the recompile limit of {self.limit or 'torch'} allows: further "
            "shapes run eagerly"
            for kind in self.limited
        ]
        return "; ".join(causes) or None

    @property
    def remedy(self) -> str:
        """What to do about `why`, a sentence; empty where nothing more can be said than `why` does."""
        known = {toolchain.remedy_of(reason) for reason in self.failed.values()} - {None}
        if self.limited or any("compile_cache_size_limit" in reason for reason in self.failed.values()):
            known.add(self._more_graphs())
        return " ".join(sorted(map(str, known)))

    def _more_graphs(self) -> str:
        """How to have a graph for every shape, by what is not set so already."""
        first = "Leave compile_cache_size_limit empty, so that the plan sets it"
        ways = [first if self.limit_is_set else f"Set compile_cache_size_limit above {self.limit}"]
        ways += ["set shape_mode to static, which needs one graph"] if self.may_pad else []
        return f"{', or '.join(ways)}."

    def _failures(self) -> dict[str, list[str]]:
        """Names of the blocks that failed, by reason: a cause that all blocks share stands once."""
        names: dict[str, list[str]] = {}
        for name, reason in self.failed.items():
            names.setdefault(reason, []).append(name)
        return names

    def verdict(self, graphs: int) -> str | None:
        """What is wrong after the first steps, in words; None when all is well.

        Asked for, nothing known to be in the way, and still no graph: that must never pass in silence.
        """
        if self.state == "compiled" and graphs == 0:
            return "compile is on, but no graph was made: every block runs eagerly, and no reason is known"
        if self.state == "fallback":
            return f"compile was asked for, but the run is eager: {self.why or 'no block was chosen'}"
        return f"the run is compiled in part: {self.why}" if self.state == "partly" else None

    def line(self) -> str:
        """The one log line."""
        if not self.asked:
            return "compile: off"
        if self.compiled == 0:
            return f"compile: fell back to eager: {self.reason or 'no block was chosen'}"
        what = ", ".join(f"{count} {kind}" for kind, count in self.blocks.items() if count)
        dynamic = {None: "auto", True: "true", False: "false"}[self.dynamic]
        parts = [
            f"compile: {what} {'blocks' if self.scope == 'blocks' else ''}".rstrip(),
            f"backend {self.backend}",
            f"mode {self.mode}",
            f"dynamic {dynamic}",
            f"fullgraph {str(self.fullgraph).lower()}",
            f"recompile limit {self.limit if self.limit is not None else 'torch default'}",
        ]
        if self.recompute:
            parts.append("checkpointing within the graphs")
        if self.disable_linear:
            timed = "" if self.share is None else f" ({100 * self.share:.0f} % of the blocks' time compiled)"
            parts.append(f"linear layers eager{timed}")
        if self.eager:
            parts.append(f"left eager: {', '.join(self.eager)}")
        return ", ".join(parts) + "".join(f"; {note}" for note in self.notes)


def _names(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
