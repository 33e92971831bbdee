"""Why a service lets us not in, out of what its endpoint shows. Pure.

libzmq says nothing to whoever is refused: the doorman's 300 lets the handshake run into its timeout (common/bus/auth.py), and a
service that cannot read our first words ends the connection. So a refusal is what is left over: a socket that greets, and with
which no handshake comes to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pegaflow.common.wire.errors import ErrorCode

PATIENCE = 4
"""A handshake is four ways there and back where the greeting is one and a half: by then a service that lets us in has done so,"""
MIN_S = 0.1
"""if it is not busy with other things."""
CUTS = 4
"""More in a row than chance: a service that is being stopped cuts one, and libzmq one whose key was refused before it had looked
away."""


class Access(StrEnum):
    """Stable codes: it is there, and it is we who may not, or cannot, talk to it."""

    KEY_REFUSED = "key_refused"
    WRONG_SERVER_KEY = "wrong_server_key"
    KEY_NEEDED = "key_needed"
    NO_KEYS = "no_keys"
    NO_PERMISSION = "no_permission"


BARRED = frozenset({*Access, ErrorCode.FORBIDDEN})
"""What a service answers, or shows, to somebody who is not the right one. It says nothing of how the service is."""

ADVICE = {
    Access.KEY_REFUSED: "list it in curve_allowed there (`pegaflow keys show` prints the line) and send SIGHUP;"
    " if its log has no connection_refused, it hangs",
    Access.WRONG_SERVER_KEY: "`pegaflow keys show` on its own key file says which it is; if it is this one, an impostor answers",
    Access.KEY_NEEDED: "give --curve-key-file, and #KEY, the service's public key, behind the endpoint",
    Access.NO_KEYS: "it was started without curve_key_file; without keys ask it from its own machine, without --curve-key-file",
    Access.NO_PERMISSION: "run this as the user of the service, or ask at its tcp endpoint",
}
_FACTS = {
    Access.KEY_REFUSED: "it is there, and does not let key {key} in",
    Access.WRONG_SERVER_KEY: "it is there, and the key behind # is not its own",
    Access.KEY_NEEDED: "it is there, and lets nobody in without a key",
    Access.NO_KEYS: "it is there, and has no keys",
    Access.NO_PERMISSION: "this user may not open that socket",
}


@dataclass(slots=True)
class Seen:
    """What one try to get in has shown so far.

    `reached` and `speaks` as in `services/reach.py`, None: not known yet; `greeted_s`: how long it took to greet. `cuts`:
    connections that were ended within the handshake.
    """

    reached: str | None = None
    speaks: str = ""
    greeted_s: float = 0.0
    let_in: bool = False
    refused: bool = False
    cuts: int = 0


def judged(seen: Seen, has_key: bool, held_s: float) -> Access | None:
    """Why we are not let in; None: we are, or that cannot be said (yet), or nobody is there.

    `held_s`: for how long the last connection is open, and its handshake goes on.
    """
    if seen.reached == "no_permission":
        return Access.NO_PERMISSION
    if seen.let_in or seen.reached != "":
        return None
    if seen.speaks == "NULL" and has_key:
        return Access.NO_KEYS
    if seen.speaks != "CURVE":
        return None
    if not has_key:
        return Access.KEY_NEEDED
    if seen.refused:
        return Access.KEY_REFUSED
    if held_s > max(MIN_S, PATIENCE * seen.greeted_s):
        return Access.KEY_REFUSED
    return Access.WRONG_SERVER_KEY if seen.cuts >= CUTS else None


def said(access: Access, key: str) -> str:
    """For people: what it is, and what to do. `key`: ours, in hex."""
    return f"{_FACTS[access].format(key=f'{key[:8]}…')}: {ADVICE[access]}"
