"""Finds out whether Weights & Biases has a login on this machine. Torch-free; reads no key into anything."""

from __future__ import annotations

import configparser
import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

CLOUD = "https://api.wandb.ai"
"""The server, where none is set."""
OFFLINE = ("offline", "disabled", "dryrun")
"""Values of WANDB_MODE with which nothing is sent."""
_IN_ENVIRONMENT = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def has_login() -> bool:
    """Whether a run can log in: from the environment, or from what ``wandb login`` wrote for the server in use."""
    if any(os.environ.get(name, "").strip() for name in _IN_ENVIRONMENT):
        return True
    try:
        entry = netrc.netrc(_netrc_file()).authenticators(urlsplit(server()).netloc)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return bool(entry and entry[2])


def needs_login(on: bool, mode: str) -> bool:
    """Whether a run with these settings (logging.wandb, logging.wandb_mode) sends anything and can't log in."""
    return on and mode == "online" and os.environ.get("WANDB_MODE", "") not in OFFLINE and not has_login()


def server() -> str:
    """The address of the server that runs are sent to: from the environment or wandb's own settings file."""
    if url := os.environ.get("WANDB_BASE_URL", "").strip():
        return url
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read(_config_folder() / "settings", encoding="utf-8")
        return settings.get("default", "base_url", fallback=CLOUD)
    except (OSError, configparser.Error, UnicodeDecodeError):
        return CLOUD


def _config_folder() -> Path:
    return Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()


def _netrc_file() -> Path:
    """Where wandb keeps the login, as wandb itself looks for it."""
    if named := os.environ.get("NETRC"):
        return Path(named).expanduser()
    places = [Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()]
    return next((place for place in places if place.exists()), places[0])
