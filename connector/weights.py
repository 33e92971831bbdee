"""A digest of a model's files that does not depend on where they lie.

Reads the small files whole and of the weights only names, sizes and headers: gigabytes are not worth reading for a
question that a header answers. Two checkpoints with the same header and different numbers (a fine-tune under the
old name) differ in their metadata at best, so the first bytes of the data are taken too.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

CONFIGS = ("config.json", "generation_config.json", "quantize_config.json", "params.json", "model.safetensors.index.json")
SAMPLE_BYTES = 1 << 16
MAX_HEADER_BYTES = 64 << 20


def weights_digest(directory: Path) -> str:
    """32 hex digits over configs and weight files of a model directory. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16, person=b"pegaflow-weight")
    for name in CONFIGS:
        path = directory / name
        if path.is_file():
            _add(digest, name, path.read_bytes())
    weights = sorted(path for suffix in ("safetensors", "bin", "pt", "gguf") for path in directory.glob(f"*.{suffix}"))
    for path in weights:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            header = 0
            if path.suffix == ".safetensors" and len(head) == 8:
                # A safetensors file starts with the length of its JSON header.
                header = min(struct.unpack("<Q", head)[0], MAX_HEADER_BYTES)
            file.seek(0)
            content = file.read(8 + header + SAMPLE_BYTES)
            file.seek(max(0, size - SAMPLE_BYTES))
            content += file.read(SAMPLE_BYTES)
        _add(digest, f"{path.name}:{size}", content)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, name: str, content: bytes) -> None:
    encoded = name.encode()
    digest.update(struct.pack("<IQ", len(encoded), len(content)))
    digest.update(encoded)
    digest.update(content)
