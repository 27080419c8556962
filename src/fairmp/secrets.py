"""Passwords and keys in the addresses of databases, hidden wherever text is shown."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "***"

# A path has one slash where the address had two; a drive of Windows has one letter.
_SCHEME = r"\b[A-Za-z](?:[\w+.-]*://|[\w+.-]+:/)"
_URL = re.compile(_SCHEME + r"\S+")
# A password may have any sign, up to the last @ before the next address; a port is none.
_BEFORE_HOST = re.compile(
    rf"({_SCHEME}[^:/?\s]*):((?!\d+(?:[/\s,;)'\"]|$))(?:(?!\w:/)[^\n])*|\S*)@"
)
_PARAMETER = re.compile(r"[?&;]([^=&;?]+)=([^&;]*)")
_SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|key|credential|signature|auth|odbc_connect|dsn|^(pw|sig)$",
    re.IGNORECASE,
)
_ODBC_PASSWORD = re.compile(
    r"\b(pwd|passwd|password)\s*=\s*(?:\{[^}]*\}|[^;&\s'\"]+)", re.IGNORECASE
)
_ODBC_VALUE = re.compile(r"p(?:ass)?w(?:or)?d=([^;]+)", re.IGNORECASE)


def without_password(text: str) -> str:
    """Hide passwords in the addresses of databases in a text, for display.

    Example:
        >>> without_password("cannot open postgresql://me:secret@host/db?sslkey=k")
        'cannot open postgresql://me:***@host/db?sslkey=***'
    """
    if ":/" not in text:
        return text
    text = _hide(text, set())
    return _ODBC_PASSWORD.sub(rf"\1={HIDDEN}", text)  # behind a driver's name, which has spaces


def redact(text: str, url: str) -> str:
    """Hide the passwords of an address in a driver's message, however they are written there."""
    secrets: set[str] = set()
    _hide(url, secrets)
    for part in list(secrets):
        secrets |= {match[1] for match in _ODBC_VALUE.finditer(part)}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return without_password(text)


def _hide(text: str, secrets: set[str]) -> str:
    """Hide the passwords of addresses, in parameters and before the host, and collect them."""

    def hide_parameter(match: re.Match[str]) -> str:
        if not _SECRET_NAME.search(unquote_plus(match[1])):
            return match[0]
        secrets.update({match[2], unquote_plus(match[2])})
        return f"{match[0][0]}{match[1]}={HIDDEN}"

    def hide_password(match: re.Match[str]) -> str:
        secrets.update({match[2], unquote_plus(match[2])})
        return f"{match[1]}:{HIDDEN}@"

    text = _URL.sub(lambda url: _PARAMETER.sub(hide_parameter, url[0]), text)
    return _BEFORE_HOST.sub(hide_password, text)
