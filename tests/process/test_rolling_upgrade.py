"""A rolling upgrade as docs/operate.md describes it, under supervisord and under load: no page lost, no request failed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
import pytest
from cluster import Process, ask, free_port, told, until
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.operate import EngineAdd, EngineRemove, NodeDrain, NodeUndrain, Status
from scripted_engine import ScriptedEngine
from story import EngineProcess

from deployment import plan as planning
from deployment.ports import from_system
from deployment.supervision import Supervision

pytestmark = pytest.mark.timeout(180)

PAGES = 6
WAIT_S = 30.0
"""A page's owner may be on its way back; strict decoders wait as well."""


class Cluster:
    """Two nodes under supervisord, and an engine at each, which are asked one thing at a time."""

    def __init__(self, folder: Path) -> None:
        config = folder / "pegaflow.toml"
        config.write_text('[router]\ndrain_notice = "3s"\n')
        self.plan = planning.make(folder, from_system(), pool_size="64MiB", config=config)
        self.supervision = Supervision(self.plan)
        self.engines: dict[str, EngineProcess] = {}
        self.locks = {node: threading.Lock() for node in "ab"}

    def start(self) -> None:
        self.supervision.start(["metaserver", "tier-a", "tier-b"])
        for node in "ab":
            until(f"tier {node}", lambda node=node: self.status(node).get("state") == "ready")  # type: ignore[misc]
            until(f"metaserver knows {node}", lambda node=node: self.status(node).get("metaserver_known"))  # type: ignore[misc]
            self.engines[node] = EngineProcess(self, node)  # type: ignore[arg-type]  # it asks for the two methods below
            self.attached(node)

    def endpoint(self, node: str) -> str:
        return f"ipc://{self.runtime(node)}/requests.sock"

    def runtime(self, node: str) -> Path:
        return self.plan.runtime / node

    @property
    def metaserver(self) -> str:
        return f"tcp://127.0.0.1:{self.plan.ports.metaserver_requests}"

    def status(self, node: str) -> dict[str, Any]:
        return told(self.endpoint(node))

    def command(self, node: str, message: Any) -> None:
        ask(f"ipc://{self.runtime(node)}/control.sock", message)

    def engine(self, node: str, do: str, **arguments: Any) -> dict[str, Any]:
        with self.locks[node]:
            return self.engines[node].ask(do, **arguments)

    def attached(self, node: str) -> None:
        until(f"engine {node} is attached", lambda: not self.engine(node, "held"))

    def save(self, node: str, topic: str) -> str:
        """The outcome, as the connector counts it."""
        outcome: str = self.engine(node, "save", topic=topic, count=PAGES)["outcome"]
        return outcome

    def load(self, node: str, topic: str) -> int:
        """How many pages came, with the right bytes (wrong ones fail the test)."""

        def asked() -> dict[str, Any] | None:
            """A tier that is silent for a moment is not asked: an engine would compute, and nothing has failed."""
            found = self.engine(node, "load", topic=topic, count=PAGES, wait=WAIT_S, expected=True)
            return None if found.get("code") == "no_tier" else found

        return int(until("a tier that is heard", asked)["right"])

    def listed(self) -> dict[str, str]:
        """States by node, as the metaserver says."""
        answer = ask(self.metaserver, Nodes())
        assert isinstance(answer, NodeList)
        return dict(zip(answer.nodes, answer.states, strict=True))

    def ready(self, node: str) -> tuple[int, dict[str, Any]]:
        port = {"a": self.plan.ports.tier_a_health, "b": self.plan.ports.tier_b_health}[node]
        try:
            with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def replace(self, service: str) -> None:
        """A new process over what the old one left, as a new version would be."""
        pid = self.supervision.process(service).pid
        self.supervision.stop_one(service)
        self.supervision.start_one(service)
        until(f"{service} runs anew", lambda: self.supervision.process(service).pid not in (0, pid))

    def close(self) -> None:
        for engine in self.engines.values():
            engine.kill()
        self.supervision.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("run"))
    try:
        made.start()
        yield made
    finally:
        made.close()


class Traffic(threading.Thread):
    """Requests at the engines that take any, in turns: each loads what was saved before, anywhere, and saves something new."""

    def __init__(self, cluster: Cluster, topics: list[str]) -> None:
        super().__init__()
        self._cluster = cluster
        self._served = {node: threading.Lock() for node in "ab"}
        self._over = threading.Event()
        self.topics, self.taking, self.failed, self.requests = topics, {"a", "b"}, list[str](), 0
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                for node in "ab":
                    with self._served[node]:
                        if node in self.taking:
                            self._request(node)
        except BaseException as error:
            self.broken = error

    def _request(self, node: str) -> None:
        topic = self.topics[self.requests % len(self.topics)]
        right = self._cluster.load(node, topic)
        if right != PAGES:
            self.failed.append(f"{topic} at {node}: {right} of {PAGES} pages")
        new = f"request {self.requests}"
        if self.requests < 40 and self._cluster.save(node, new) == "written":
            self.topics.append(new)
        self.requests += 1

    def without(self, node: str) -> None:
        """The router gives this engine nothing more; what is open there ends first."""
        with self._served[node]:
            self.taking.discard(node)

    def more(self, count: int = 4) -> None:
        target = self.requests + count
        until("more requests are answered", lambda: self.requests >= target or self.broken)

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.broken is not None:
            raise self.broken


def saved(cluster: Cluster, node: str, names: list[str]) -> list[str]:
    """Once the tier knows that all of the engine is attached."""
    for name in names:
        until("written", lambda name=name: cluster.save(node, name) == "written")  # type: ignore[misc]
    return names


def sealed(cluster: Cluster, node: str) -> int:
    return int(cluster.status(node).get("pages", {}).get("sealed", 0))


def upgrade_node(cluster: Cluster, node: str, traffic: Traffic, *, probe: Callable[[], None]) -> None:
    """docs/operate.md: the engine out of the router, drain, replace, undrain, the engine back. `probe`: once it drains."""
    traffic.without(node)
    cluster.command(node, NodeDrain())
    status, answer = cluster.ready(node)
    assert status == 503 and [reason["code"] for reason in answer["reasons"]] == ["draining"]
    until("the node list says so", lambda: cluster.listed()[node] == "draining")

    def said() -> str | None:
        """An answer that comes after the rank's 50 ms, or a tier that is silent for a moment, says nothing: asked again."""
        outcome = cluster.save(node, f"while {node} drains")
        return None if outcome in ("no_grant", "not_published") else outcome

    assert until("an answer", said) == "not_granted"
    probe()
    until("quiet", lambda: cluster.status(node)["drain"]["quiet"])
    before = sealed(cluster, node)
    assert before > 0
    cluster.replace(f"tier-{node}")
    until("the next life drains too", lambda: cluster.status(node).get("state") == "draining")
    until("and has every page", lambda: sealed(cluster, node) == before)
    cluster.attached(node)
    cluster.command(node, NodeUndrain())
    until("ready", lambda: cluster.ready(node)[0] == 200)
    until("up", lambda: cluster.listed().get(node) == "up")
    saved(cluster, node, [f"while {node} drains"])
    traffic.taking.add(node)


def test_a_rolling_upgrade_loses_no_page_and_fails_no_request(cluster: Cluster) -> None:
    topics = [*saved(cluster, "a", ["a 1", "a 2", "a 3"]), *saved(cluster, "b", ["b 1", "b 2", "b 3"])]
    unread = {"a": saved(cluster, "a", ["only a"]), "b": saved(cluster, "b", ["only b"])}
    traffic = Traffic(cluster, topics)
    traffic.start()
    try:
        traffic.more()
        for node, other in ("ab", "ba"):

            def served_to_others(node: str = node, other: str = other) -> None:
                assert cluster.load(other, unread[node][0]) == PAGES, "pins are answered while it drains"
                assert cluster.load(node, unread[node][0]) == PAGES, "and its own engine loads"

            upgrade_node(cluster, node, traffic, probe=served_to_others)
            traffic.more()
        cluster.replace("metaserver")
        traffic.more()
        for node in "ab":
            until("known again", lambda node=node: cluster.status(node).get("metaserver_known"))  # type: ignore[misc]
        traffic.more()
    finally:
        traffic.end()
    assert not traffic.failed
    for topic in traffic.topics:
        for node in "ab":
            assert cluster.load(node, topic) == PAGES, f"{topic} at {node}"


class Balancer:
    """Completes prompts without a pause, through routers of which it asks `/ready`, as a load balancer does."""

    def __init__(self, session: aiohttp.ClientSession, routers: list[str]) -> None:
        self._session, self._routers, self._over = session, routers, asyncio.Event()
        self.ready: list[str] = []
        self.done, self.failed = 0, list[str]()

    async def ask(self) -> None:
        """Which routers are ready, again and again, far more often than a router's notice is long."""
        while not self._over.is_set():
            self.ready = [url for url in self._routers if await self.is_ready(url)]
            await asyncio.sleep(0.05)

    async def is_ready(self, url: str) -> bool:
        try:
            async with self._session.get(f"{url}/ready") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def send(self) -> None:
        while not self._over.is_set():
            routers = self.ready
            if not routers:
                self.failed.append("no router is ready")
                return
            url = routers[self.done % len(routers)]
            try:
                async with self._session.post(f"{url}/v1/completions", json={"prompt": "Hi", "stream": True}) as response:
                    text = (await response.read()).decode()
                if response.status != 200 or not text.endswith("data: [DONE]\n\n"):
                    self.failed.append(f"{url}: {response.status} {text[-200:]}")
            except aiohttp.ClientError as error:
                self.failed.append(f"{url}: {error!r}")
            self.done += 1

    async def more(self, count: int = 20) -> None:
        target = self.done + count
        async with asyncio.timeout(60):
            while self.done < target:
                await asyncio.sleep(0.01)

    def end(self) -> None:
        self._over.set()


def test_engines_and_routers_are_replaced_without_a_failed_request(cluster: Cluster) -> None:
    """Two routers; a decode engine is replaced beside a spare one, then the first router."""
    ports, supervision = cluster.plan.ports, cluster.supervision
    spare_port, second_port, second_control = free_port(), free_port(), f"tcp://127.0.0.1:{free_port()}"
    controls = [f"tcp://127.0.0.1:{ports.router_control}", second_control]
    old, spare = (f"http://127.0.0.1:{port}" for port in (ports.d, spare_port))
    flags = ["--prefill", f"http://127.0.0.1:{ports.p}", "--decode", old, "--pd-first-token", "--control", second_control]

    def tell(message: Any) -> None:
        for control in controls:
            ask(control, message)

    def of_engine(url: str, field: str) -> list[Any]:
        views = [json.loads(ask(control, Status()).json)["engines"] for control in controls]
        return [one[field] for view in views for one in view if one["url"] == url]

    async def both_ready(clients: Balancer, urls: list[str]) -> None:
        async with asyncio.timeout(60):
            while not all([await clients.is_ready(url) for url in urls]):
                await asyncio.sleep(0.02)

    async def until_true(check: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(check):
                await asyncio.sleep(0.02)

    async def main() -> None:
        prefill, decode, other = ScriptedEngine(), ScriptedEngine(), ScriptedEngine()
        async with prefill.running(ports.p), other.running(spare_port), aiohttp.ClientSession() as session:
            first_life = AsyncExitStack()
            await first_life.enter_async_context(decode.running(ports.d))
            supervision.start_one("router")
            second = Process("pegaflow.services.router", "--port", str(second_port), *flags)
            urls = [f"http://127.0.0.1:{port}" for port in (ports.router, second_port)]
            clients = Balancer(session, urls)
            load: list[asyncio.Task[None]] = []
            try:
                await both_ready(clients, urls)
                load.append(asyncio.create_task(clients.ask()))
                await until_true(lambda: bool(clients.ready))
                load += [asyncio.create_task(clients.send()) for _ in range(3)]
                await clients.more()
                await asyncio.to_thread(tell, EngineAdd("decode", spare))
                await until_true(lambda: of_engine(spare, "healthy") == [True, True])
                await asyncio.to_thread(tell, EngineRemove("decode", old))
                await until_true(lambda: sum(of_engine(old, "requests")) == 0)
                await first_life.aclose()
                await clients.more()
                async with decode.running(ports.d):
                    await asyncio.to_thread(tell, EngineAdd("decode", old))
                    await until_true(lambda: of_engine(old, "healthy") == [True, True])
                    await asyncio.to_thread(tell, EngineRemove("decode", spare))
                    await until_true(lambda: sum(of_engine(spare, "requests")) == 0)
                    calls = len(decode.calls)
                    await clients.more()
                    assert len(decode.calls) > calls
                    await asyncio.to_thread(cluster.replace, "router")
                    await both_ready(clients, urls)
                    await clients.more()
                    clients.end()
                    await asyncio.gather(*load)
            finally:
                clients.end()
                second.stop()
                supervision.stop_one("router")
        assert not clients.failed

    asyncio.run(main())


def test_a_node_that_leaves_for_good_hands_over_what_only_it_has(cluster: Cluster) -> None:
    topics = saved(cluster, "a", [f"heirloom {i}" for i in range(4)])
    taken = cluster.status("b")["counts"].get("fetched", 0)
    cluster.command("a", NodeDrain(True))
    view = until("handed over", lambda: (found := cluster.status("a")["drain"]["hand_over"])["done"] and found)
    assert view["left_behind"] == 0 and view["handed_over"] >= len(topics) * PAGES
    assert cluster.status("b")["counts"]["fetched"] - taken >= len(topics) * PAGES
    cluster.supervision.stop_one("tier-a")
    until("gone", lambda: list(cluster.listed()) == ["b"])
    for topic in topics:
        assert cluster.load("b", topic) == PAGES
    assert cluster.status("b")["counts"]["fetched"] - taken == view["handed_over"], "nothing was fetched for these loads"
