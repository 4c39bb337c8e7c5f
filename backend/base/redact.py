"""Keeps secrets out of every text that is written down: logs, events, records.

Two nets: the values of environment variables whose name says "secret", wherever they turn up; and the forms that tokens
of the services around training have. What matches becomes ``[hidden]``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache

HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(
    r"(TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:^|_|PG)PASS|_PWD)(_|$)", re.IGNORECASE
)
# A shorter value would hide ordinary words ("1", "true", "none") in every line.
_SHORTEST_VALUE = 8

_FORMS = [
    re.compile(form)
    for form in (
        r"\bhf_[A-Za-z0-9]{16,}",  # Hugging Face, user
        r"\bapi_org_[A-Za-z0-9]{16,}",  # Hugging Face, organisation
        r"\bwandb_v\d_[A-Za-z0-9_]{20,}",  # Weights & Biases, new form
        r"\blocal-[0-9a-f]{32,}",  # Weights & Biases, own server
        r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI and others
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})",  # GitHub, GitLab
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"\bAKIA[0-9A-Z]{16}\b",  # Amazon
        r"\bAIza[0-9A-Za-z_-]{30,}",  # Google
        r"(?<![A-Za-z0-9_-])ey[A-Za-z0-9_-]{10,}\.ey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # JSON web token
    )
]
# "token_count = 4096" and "tokens: 4032" are no secrets: the name must end there, the value be long and no number.
_NAMED = re.compile(
    r"""(?ix)
    (?P<name> (?<![a-z]) (?: (?:api[_-]?key|access[_-]?key|secret[_-]?key|secret|token|apikey)
              | wandb[a-z_]*key | authorization ) ["']? )
    (?P<between> \s* [:=] \s* (?:bearer\s+|basic\s+)? ["']? )
    (?P<value> (?!\d+\b(?![a-z])) [A-Za-z0-9_+/=.~-]{16,} )
    """
)
_PASSWORD = re.compile(r"""(?i)((?<![a-z])(?:password|passwd)["']?(?:\s*[:=]\s*|\s+(?=\S*\d))["']?)([^\s"',;&]+)""")
# What follows such a flag is a secret whatever it looks like; a token has eight letters at least.
_SECRET_FLAG = r"--?(?:[a-z0-9]+[_-])*(?:password|passwd|passphrase|secret)"
_TOKEN_FLAG = r"--?(?:[a-z0-9]+[_-])*(?:token|api[_-]?key)"
_FLAG = re.compile(
    rf"""(?i)(?<![\w-])((?:{_SECRET_FLAG}(?:\s*=\s*|\s+)["']?(?=[^\s"'-])|{_TOKEN_FLAG}(?:\s*=\s*|\s+)["']?"""
    rf"""(?=[^\s"'-][^\s"']{{7}})))[^\s"']+"""
)
_ONLY_FLAG = re.compile(rf"(?i){_SECRET_FLAG}|{_TOKEN_FLAG}")
# As an environment file or a shell says it: PGPASS=word, MYSQL_PWD=word.
_ASSIGNED = re.compile(
    r"""\b((?:[A-Z][A-Z0-9]*_)*(?:PG)?(?:PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|SECRET)=["']?)(?=\S)[^\s"']+"""
)
_BASIC = re.compile(r"(?i)\b(basic\s+)([A-Za-z0-9+/]{4,}={0,2})(?![A-Za-z0-9+/=])")
_BEARER = re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9_+/=.~-]{16,}")
# A legacy Weights & Biases key looks like any SHA-1; only beside the service's name is it taken for a key.
_WANDB = re.compile(r"(?i)(\bwandb\b.{0,60}?)\b[0-9a-f]{40}\b")
_IN_URL = re.compile(r"(://[^/\s:@]+:)[^/\s@]+(@)")
_QUERY = re.compile(r"(?i)([?&](?:token|key|api_key|apikey|access_token|sig|signature|x-amz-[a-z-]+)=)[^&\s\"']+")


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with every secret that can be recognised replaced by ``[hidden]``.

    Args:
        text: anything about to be written down.
        environment: where secret values are looked up; the process's own when None.
    """
    return _without(text, _secret_values(os.environ if environment is None else environment))


def _without(text: str, secrets: Sequence[str]) -> str:
    """`text` without these, and without what looks like a secret."""
    for value in secrets:
        if value in text:
            text = text.replace(value, HIDDEN)
    for form in _FORMS:
        text = form.sub(HIDDEN, text)
    text = _NAMED.sub(rf"\g<name>\g<between>{HIDDEN}", text)
    text = _PASSWORD.sub(rf"\1{HIDDEN}", text)
    text = _FLAG.sub(rf"\1{HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_assigned, text)
    text = _BASIC.sub(_hide_basic, text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _WANDB.sub(rf"\1{HIDDEN}", text)
    text = _IN_URL.sub(rf"\1{HIDDEN}\2", text)
    return _QUERY.sub(rf"\1{HIDDEN}", text)


def redact_value(value: object) -> object:
    """`redact` for every string inside lists and dictionaries; other values come back as they are."""
    return _value_without(value, _secret_values(os.environ))


def _value_without(value: object, secrets: Sequence[str]) -> object:
    if isinstance(value, str):
        return _without(value, secrets)
    if isinstance(value, Mapping):
        return {key: _value_without(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # A command line has flag and word apart.
        after_flag = [False, *(isinstance(item, str) and bool(_ONLY_FLAG.fullmatch(item)) for item in value)]
        pairs = zip(value, after_flag, strict=False)
        return [HIDDEN if hidden and _is_word(item) else _value_without(item, secrets) for item, hidden in pairs]
    return value


def _is_word(item: object) -> bool:
    return isinstance(item, str) and not item.startswith("-")


def _hide_assigned(match: re.Match) -> str:
    # PWD alone is the folder that a shell is in.
    return match[0] if match[1].startswith("PWD=") else match[1] + HIDDEN


def _hide_basic(match: re.Match) -> str:
    """HTTP's Basic scheme, known by what it encodes: a name, a colon and a password."""
    try:
        plain = base64.b64decode(match[2] + "=" * (-len(match[2]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return match[0]
    return match[1] + HIDDEN if b":" in plain else match[0]


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    named = {environment[name] for name in environment if _is_secret_name(name)}
    secrets = {value for value in named if len(value) >= _SHORTEST_VALUE and not os.path.exists(value)}
    return sorted(secrets, key=len, reverse=True)


@cache
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None
