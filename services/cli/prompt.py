"""A prompt's token ids, from a file or out of a text, and the keys that engines give to its pages."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import FINGERPRINT_BYTES, HashAlgorithm, SeedMissing, none_hash
from pegaflow.services.cli.namespaces import Namespace
from pegaflow.services.cli.target import UsageError

MAX_IDS = 1 << 20
_MAX_DIGITS = 600
"""Python's int() may refuse texts that are longer than a little more."""


class Block(NamedTuple):
    """One page of the prompt: tokens `start` to `end` − 1. `tail`: fewer than a block."""

    number: int
    start: int
    end: int
    tail: bool
    key: bytes


def add_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Which prompt, and how its pages are named if the tiers do not know."""
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--tokens", metavar="FILE", help="token ids: JSON, or numbers in any layout; - is standard input")
    which.add_argument("--text", metavar="STRING", help="a text; --model says whose tokenizer cuts it")
    parser.add_argument("--model", metavar="DIR", help="a folder with tokenizer.json, or that file")
    parser.add_argument("--fingerprint", metavar="HEX", help="only pages of this fingerprint (the first digits do)")
    parser.add_argument("--block-size", type=int, metavar="N", help="tokens of a page, if no tier knows the fingerprint")
    parser.add_argument("--hash", metavar="ALGO", choices=[str(one) for one in HashAlgorithm], help="the same for its hashes")
    parser.add_argument("--seed", metavar="TEXT", help="the same for PYTHONHASHSEED (default: not set)")


def ids(args: argparse.Namespace) -> list[int]:
    """Raises `UsageError` for what cannot be read, or is no list of ids."""
    if args.text is not None:
        return _tokenized(args.text, args.model)
    try:
        text = sys.stdin.read() if args.tokens == "-" else Path(args.tokens).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--tokens: {error}") from None
    return parse(text)


def parse(text: str) -> list[int]:
    """Ids out of JSON (a list, or an object with one under `prompt_token_ids`, `tokens` or `ids`) or of plain numbers."""
    found: Any
    try:
        found = json.loads(text)
    except RecursionError:
        raise UsageError("--tokens: nested too deeply for a list of ids") from None
    except ValueError:
        found = None
    if isinstance(found, dict):
        found = next((found[name] for name in ("prompt_token_ids", "tokens", "ids") if name in found), None)
    if not isinstance(found, list):
        if re.search(r"[^\d\s,;\[\]]", text):
            raise UsageError("--tokens: neither JSON with a list of ids nor plain numbers")
        found = [int(number) if len(number) <= _MAX_DIGITS else -1 for number in re.findall(r"\d+", text)]
    if not found or len(found) > MAX_IDS or any(type(one) is not int or not 0 <= one < 1 << 32 for one in found):
        raise UsageError(f"--tokens: expected 1 to {MAX_IDS} token ids")
    return list(map(int, found))


def _tokenized(text: str, model: str | None) -> list[int]:
    if not model:
        raise UsageError("--text needs --model DIR, whose tokenizer.json cuts the text into tokens")
    path = Path(model)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UsageError(f"--model: no {path}")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("--text needs the package tokenizers (pip install tokenizers); --tokens FILE needs nothing") from None
    try:
        found: list[int] = Tokenizer.from_file(str(path)).encode(text).ids
    except Exception as error:  # the library raises plain Exception
        raise UsageError(f"--model: {path}: {error}") from None
    if not found:
        raise UsageError("--text: no tokens")
    return found


def blocks(scheme: KeyScheme, token_ids: list[int]) -> list[Block]:
    """The pages of a prompt, the tail last if there is one."""
    size = scheme.block_size
    found = [Block(n, n * size, (n + 1) * size, False, key) for n, key in enumerate(scheme.keys(token_ids))]
    tail = scheme.tail(token_ids)
    if tail is not None:
        found.append(Block(len(found), len(found) * size, len(token_ids), True, tail))
    return found


def chosen(args: argparse.Namespace, known: Mapping[bytes, Namespace]) -> dict[bytes, KeyScheme]:
    """The fingerprints to look under. Raises `UsageError` where there is none whose keys can be made here."""
    digits = _digits(args.fingerprint)
    found = {name: one.scheme for name, one in known.items() if name.hex().startswith(digits)}
    schemes = {name: scheme for name, scheme in found.items() if scheme is not None}
    if schemes:
        return schemes
    if args.block_size and args.hash:
        return _told(args, digits, found)
    if found:
        why = "its factors are not known" if not any(known[name].factors for name in found) else "its hashes are pickled"
        raise UsageError(
            f"the keys of {', '.join(name.hex()[:8] for name in found)} cannot be made here: {why}; say --block-size and --hash"
        )
    where = f" that begins with {digits}" if digits else ""
    raise UsageError(f"no tier knows a fingerprint{where}: say --fingerprint, --block-size and --hash")


def _digits(text: str | None) -> str:
    digits = (text or "").lower()
    if not set(digits) <= set("0123456789abcdef") or len(digits) > 2 * FINGERPRINT_BYTES:
        raise UsageError("--fingerprint: at most 32 hexadecimal digits")
    return digits


def _told(args: argparse.Namespace, digits: str, found: Mapping[bytes, object]) -> dict[bytes, KeyScheme]:
    names = [bytes.fromhex(digits)] if len(digits) == 2 * FINGERPRINT_BYTES else list(found)
    if not names:
        raise UsageError("say the whole --fingerprint, 32 hexadecimal digits: no tier knows it")
    if args.block_size < 1:
        raise UsageError("--block-size must be above 0")
    algorithm = HashAlgorithm(args.hash)
    try:
        parent = none_hash(algorithm, args.seed)
    except SeedMissing as error:
        raise UsageError(f"{error}; say --seed") from None
    return {name: KeyScheme(name, args.block_size, args.block_size, algorithm, parent) for name in names}
