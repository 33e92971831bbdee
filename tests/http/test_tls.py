"""TLS towards clients: shown, exchanged while it runs, and refused at start when it cannot be right."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from pegaflow.common.config import ConfigError, resolve
from pegaflow.services.router.config import RouterConfig
from router_process import Process, router, until_ready
from scripted_engine import ScriptedEngine, streams
from test_process import exit_code

BODY = {"prompt": "Hi"}
AUTHORITY = trustme.CA()


def write(folder: Path, name: str) -> tuple[str, str]:
    """A certificate for this name, its key; as the options take them."""
    made = AUTHORITY.issue_cert(name, "127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    return str(cert), str(key)


async def shown(running: Process) -> str:
    """The name in the certificate that a new connection sees."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    return str(next(value for kind, value in certificate["subjectAltName"] if kind == "DNS"))


def test_tls_and_its_certificate_changes_while_a_stream_runs(tmp_path: Path) -> None:
    async def main() -> None:
        cert, key = write(tmp_path, "old.example")
        Path(key).chmod(0o644)
        engine = ScriptedEngine()
        go_on = asyncio.Event()

        async def rest(call: object) -> object:
            await go_on.wait()
            raise ConnectionError("the engine breaks off")

        engine.disturb(streams(engine, chunks=2, then=rest))  # type: ignore[arg-type]
        context = ssl.create_default_context()
        AUTHORITY.configure_trust(context)
        async with (
            engine.running(),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            router("--engine", engine.url, "--tls-cert", cert, "--tls-key", key) as running,
        ):
            url = f"https://127.0.0.1:{running.port}"
            await until_ready(session, url)
            await running.logged("secret_open", option="tls_key", code="unsafe_path")
            async with session.post(url + "/v1/completions", json=BODY | {"stream": True}) as response:
                assert b"Hel" in await response.content.readuntil(b"\n\n")
                assert await shown(running) == "old.example"
                write(tmp_path, "new.example")
                await running.hang_up()
                assert await shown(running) == "new.example"
                await running.logged("secret_open", 2, option="tls_key")
                Path(key).write_text("nonsense")
                await running.hang_up()
                await running.logged("reload_failed", what="config")
                assert await shown(running) == "new.example"
                go_on.set()
                assert b"engine_interrupted" in await response.read()  # the stream lived through all of it
            async with session.post(url + "/v1/completions", json=BODY) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(running.url + "/health")  # plain HTTP

    asyncio.run(main())


def test_what_cannot_be_shown_is_refused_at_start(tmp_path: Path) -> None:
    cert, key = write(tmp_path, "a.example")
    other = tmp_path / "other"
    other.mkdir()
    _, others_key = write(other, "b.example")
    sealed = tmp_path / "sealed.pem"
    sealed.write_bytes(encrypted(Path(key).read_bytes()))
    engine = ("--engine", "http://127.0.0.1:9")
    mismatched = (*engine, "--tls-cert", cert, "--tls-key", others_key)
    for argv, said in (
        ((*engine, "--tls-cert", cert), "they are needed together"),
        (mismatched, "the key does not belong to the certificate"),
        ((*engine, "--tls-cert", cert, "--tls-key", str(tmp_path / "none")), "No such file"),
        ((*engine, "--tls-cert", str(tmp_path), "--tls-key", key), "Is a directory"),
        ((*engine, "--tls-cert", key, "--tls-key", key), "not a PEM pair"),
        ((*engine, "--tls-cert", cert, "--tls-key", str(sealed)), "not a PEM pair without password"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolve(RouterConfig, section="router", argv=argv)
    for more in ((), ("--check-config",)):
        code, err = asyncio.run(exit_code(*mismatched, *more))
        assert code == 78
        assert err.startswith(b"pegaflow-router: bad_config: tls_cert ")


def encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    loaded = form.load_pem_private_key(key, None)
    return loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"word"))
