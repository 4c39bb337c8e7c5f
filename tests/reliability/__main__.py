"""Runs the long form of the reliability tests: ``python -m tests.reliability damage`` or ``load``."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.reliability import damage, page_load

log = logging.getLogger("reliability")

_MOST_CPU = 0.05


def main() -> int:
    """Run what was asked for; the exit code is 1 when something did not hold."""
    if sys.argv[1:2] == ["feed"]:
        page_load.feed(*sys.argv[2:4])
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    hurt = parts.add_parser("damage", help="hurt runs at random moments")
    hurt.add_argument("--cycles", type=int, default=50, help="how often each thing is done (default: 50)")
    hurt.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    load = parts.add_parser("load", help="measure what open tabs cost on a long run")
    load.add_argument("--steps", type=int, default=500_000, help="rows of the long run (default: 500,000)")
    load.add_argument("--tabs", type=int, default=3, help="open pages (default: 3)")
    load.add_argument("--seconds", type=float, default=60.0, help="how long is measured (default: 60)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    log.setLevel(logging.INFO)
    if options.part == "damage":
        logging.getLogger("backend").setLevel(logging.ERROR)
        return int(any(tally.wrong for tally in damage.measure(options.cycles, options.seed)))
    measured = page_load.measure(options.steps, options.tabs, options.seconds)
    log.info(measured.sentence())
    return int(measured.cpu_share > _MOST_CPU or bool(measured.errors))


if __name__ == "__main__":
    raise SystemExit(main())
