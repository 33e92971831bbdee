"""How an engine knows that it talks to its tier: over ipc by the directory, which is its user's alone; over TCP by keys."""

from __future__ import annotations

from pathlib import Path

from pegaflow.common.bus.keyring import Keyring, check_connects
from pegaflow.common.bus.roles import Role
from pegaflow.common.private import private_directory
from pegaflow.common.wire.errors import LocalError
from pegaflow.connector.options import PREFIX, Options, StartRefused


def engine_keyring(key_file: Path | None) -> Keyring | None:
    """Reads an engine's key. Raises `LocalError`."""
    return None if key_file is None else Keyring(Role.ENGINE, key_file, None)


def refuse_strangers(options: Options) -> None:
    """Raises StartRefused for a key file that cannot be used, an endpoint that does not go with it, and a runtime directory in
    which another user could answer in the tier's place.
    """
    try:
        private_directory(options.runtime_dir)
    except LocalError as error:
        raise StartRefused(error.code, f"{PREFIX}runtime_dir: {error.text}") from None
    try:
        check_connects(engine_keyring(options.curve_key_file), options.tier)
    except LocalError as error:
        raise StartRefused(error.code, f"{PREFIX}tier: {error.text}") from None
