"""One look at a process: is it alive?"""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

_SHOWN = 500


def ask(url: str, timeout_s: float) -> str:
    """Empty: it answered with 200. Else why not, for people. `url` is one that WatchConfig takes, or anybody's for --probe."""
    try:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    except (ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        body = response.read(_SHOWN).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a name that no resolver takes
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return "" if response.status == 200 else f"{response.status}: {body}"
