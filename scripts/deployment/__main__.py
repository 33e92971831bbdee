"""scripts/demo, after set-up: see there."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from deployment import plan as planning
from deployment import ports as numbers
from deployment.cases import PromptMaker
from deployment.figures import Figures
from deployment.http import HttpFailure, Server
from deployment.plan import MEMORY, Plan
from deployment.proof import Proof
from deployment.readiness import wait_all
from deployment.reference import References, collect
from deployment.supervision import SERVICES, WATCH, Supervision
from environment.checkout import CHECKOUT
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.preflight import GIB, check_disk, check_memory
from environment.progress import say, step

RUN: Final = CHECKOUT / "run"
PORT_BASE: Final = 18100
MEMORY_BYTES: Final = 14 * GIB
"""Three vLLMs of nearly 4 GiB for a while, two pools of 1 GiB, and the services."""
POOL_BYTES: Final = 2 * GIB + GIB // 2
EX_PROOF_FAILED: Final = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the deployment running and print how to use it")
    parser.add_argument("--stop", action="store_true", help="stop a deployment that was kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of the proof")
    parser.add_argument(
        "--port-base", type=int, default=PORT_BASE, metavar="N", help=f"first of {numbers.SPAN} ports (default: {PORT_BASE})"
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        if asked.stop:
            return stop()
        return demonstrate(numbers.from_base(asked.port_base), keep=asked.keep, json=asked.json)
    except (Complaint, HttpFailure) as error:
        print(f"demo: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130


def stop() -> int:
    plan = planning.load(RUN)
    if plan is None:
        say("nothing is running from this checkout")
        return 0
    with step("stop the deployment"):
        Supervision(plan).stop()
    return 0


def demonstrate(ports: numbers.Ports, *, keep: bool, json: Path | None) -> int:
    """Returns 0 if the proof holds, 1 if not. Raises Complaint, HttpFailure."""
    preflight(ports)
    seconds: dict[str, float] = {}
    plan = planning.make(RUN, ports)
    supervision = Supervision(plan)
    kept = False
    try:
        with timed(seconds, "start"):
            start(supervision, ports)
        with timed(seconds, "reference"):
            prompts = PromptMaker(plan.model, plan.model_name)
            references = reference(supervision, ports, prompts)
        show_answer(Server(ports.router), prompts)
        with timed(seconds, "proof"):
            figures = Proof(supervision, ports, references, prompts).run()
        report(figures)
        if json is not None:
            json.write_text(figures.to_json(seconds))
            say(f"figures: {json}")
        kept = keep
        return 0 if figures.holds else EX_PROOF_FAILED
    finally:
        if kept:
            say(usage(plan))
        else:
            with step("stop everything"):
                supervision.stop()


def preflight(ports: numbers.Ports) -> None:
    """Raises Complaint, before anything is started."""
    running = planning.load(RUN)
    if running is not None and Supervision(running).is_up():
        raise Complaint("already_running", "a deployment of this checkout is up; scripts/demo --stop stops it")
    numbers.check_free(ports)
    check_memory(MEMORY_BYTES)
    check_disk(MEMORY, POOL_BYTES)
    check_disk(RUN, GIB)


def start(supervision: Supervision, ports: numbers.Ports) -> None:
    with step("start supervisord, and with it the services"):
        # The reference beside the others: on few cores three vLLMs importing at once take less time than one by one.
        supervision.start([*SERVICES, "reference", WATCH])
    wait_all(supervision, [*SERVICES, "reference"], ports)


def reference(supervision: Supervision, ports: numbers.Ports, prompts: PromptMaker) -> References:
    with step("ask one vLLM alone, without connector, for the right answers"):
        references = collect(Server(ports.reference), prompts)
    with step("stop that vLLM"):
        supervision.stop_one("reference")
    return references


def show_answer(router: Server, prompts: PromptMaker) -> None:
    """Streams one chat answer to the terminal. Raises HttpFailure."""
    question = "In two sentences: what does a river do on its way to the sea?"
    case = prompts.chat("terminal", [{"role": "user", "content": question}])
    say(f"\n  {question}")
    print("  > ", end="", flush=True)
    for _, event in router.stream(case.path, case.body | {"max_tokens": 64}):
        for choice in event["choices"]:
            print((choice["delta"].get("content") or "").replace("\n", "\n    "), end="", flush=True)
    print("\n", flush=True)


def report(figures: Figures) -> None:
    def shown(value: object) -> str:
        return "not measured" if value is None else str(value)

    pages = f"{figures.pages_saved} / {figures.pages_fetched} / {figures.pages_loaded}"
    ttft, handoff = figures.ttft_ms, figures.handoff_ms
    rows = [
        ("answers identical to one vLLM alone", f"{figures.identical} of {figures.cases}"),
        ("prompt positions computed on D", f"{figures.decode_prompt_positions_computed} in {figures.decode_requests} requests"),
        ("pages saved by P / fetched by tier b / loaded on D", pages),
        ("tail pages loaded on D", str(figures.tails_loaded)),
        ("first token at the client (p50 / p99)", shown(ttft and f"{ttft.p50} / {ttft.p99} ms")),
        ("P's answer to D's first token (p50 / p99)", shown(handoff and f"{handoff.p50} / {handoff.p99} ms")),
        ("metaserver killed, catalogue whole again", "yes" if figures.metaserver_recovered else "NO"),
        ("tier a killed, its pages served again", "yes" if figures.tier_restarted else "NO"),
        ("tier a killed and its pool lost, filled again", "yes" if figures.tier_healed else "NO"),
    ]
    say("")
    for name, value in rows:
        say(f"  {name:52} {value}")
    for failure in figures.failures:
        say(f"  FAILED: {failure}")
    say("the proof holds" if figures.holds else "the proof does NOT hold")


def usage(plan: Plan) -> str:
    router = Server(plan.ports.router)
    body = f'{{"model": "{plan.model_name}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return f"""
left running; logs are in {plan.logs}
  router       {router.url()}   (/ready, /metrics)
  P, D         {Server(plan.ports.p).url()}   {Server(plan.ports.d).url()}
  tiers        {Server(plan.ports.tier_a_health).url()}   {Server(plan.ports.tier_b_health).url()}
  metaserver   {Server(plan.ports.metaserver_health).url()}
  bus          {plan.runtime}/a   {plan.runtime}/b   tcp://{numbers.HOST}:{plan.ports.metaserver_requests}

  export PATH={plan.bin}:$PATH {" ".join(f"{name}={value}" for name, value in plan.operator().items())}
  pegaflow status            # who is there, and who is not; pegaflow --help, docs/troubleshooting.md: what else can be asked
  supervisorctl -s unix://{plan.supervisor_socket} status        # what supervisord runs

  curl {router.url("/v1/models")}
  curl -N {router.url("/v1/chat/completions")} -H 'Content-Type: application/json' -d '{body}'
  scripts/demo --stop"""


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - started


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
