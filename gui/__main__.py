"""Starts the page: ``python -m gui``."""

from gui.server import main

raise SystemExit(main())
