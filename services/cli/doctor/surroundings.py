"""What the machine gives a service: limits, memory, folders, clock, disk, network, and who can get at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pegaflow.common.endpoints import is_local
from pegaflow.services.cli.access import ADVICE, BARRED, Access
from pegaflow.services.cli.departed import Departed
from pegaflow.services.cli.doctor.finding import Finding, error, warning
from pegaflow.services.cli.doctor.patient import Absent, Patient, number
from pegaflow.services.cli.table import size, span

MIN_FILES = 4096
CLOCK_S = 0.5
SLOW_DISK = 500 << 20
_PRIVATE = ("runtime_dir", "sessions", "pool", "disk")
_SECRET = ("curve_key_file", "disk_key_file", "tls_key", "api_keys_file")


def limits(patient: Patient) -> list[Finding]:
    """Open files of every service; locked memory where RDMA wants the pool locked; room for the pool."""
    found = []
    files = number(patient.part("limits").get("nofile"))
    if files is not None and files < MIN_FILES:
        todo = f"raise it to {MIN_FILES} or more: LimitNOFILE= in systemd, minfds in supervisord, ulimit -n in a shell"
        found.append(warning("few_files", patient.name, f"nofile {files:.0f}, {_count(patient.told.get('files'))} in use", todo))
    if patient.service == "tier":
        found += _memory(patient)
    return found


def _memory(patient: Patient) -> list[Finding]:
    found = []
    pool = number(patient.told.get("pool_bytes"))
    locked = number(patient.part("limits").get("memlock"))
    rdma = patient.told.get("rdma_devices")
    if rdma and pool is not None and locked is not None and locked < pool:
        todo = (
            "set it to unlimited: LimitMEMLOCK=infinity in systemd, ulimit -l unlimited; without it RDMA cannot register the pool"
        )
        found.append(error("memlock_too_low", patient.name, f"memlock {size(locked)}, pool {size(pool)}", todo))
    entry = _entry(patient, "pool_dir")
    total = number(entry.get("total_bytes"))
    if pool is not None and total is not None and total < pool:
        todo = "make the file system larger (mount -o remount,size=… /dev/shm; --shm-size for containers) or the pool smaller"
        found.append(error("pool_does_not_fit", patient.name, f"pool {size(pool)}, {entry.get('path')} {size(total)}", todo))
    path = str(entry.get("path") or "")
    free = sum((number(row.get("free")) or 0) * (number(row.get("page_bytes")) or 0) for row in patient.rows("huge_pages"))
    if "huge" in path and not any(number(row.get("total")) for row in patient.rows("huge_pages")):
        todo = "reserve them: sysctl vm.nr_hugepages=…, enough for the pool"
        found.append(error("no_huge_pages", patient.name, f"pool in {path}, {size(free)} of huge pages free", todo))
    return found


def _entry(patient: Patient, what: str) -> Mapping[str, Any]:
    return next((row for row in patient.rows("paths") if row.get("what") == what), {})


def permissions(patient: Patient) -> list[Finding]:
    """Whoever can open the runtime folder's sockets or the pool reads and alters every page."""
    found = []
    for row in patient.rows("paths"):
        what, path = str(row.get("what")), str(row.get("path"))
        where = f"{patient.name}, {path}"
        if row.get("code"):
            found.append(error("path_unreadable", where, f"{what}: {row['code']}", "make it, or give it to the service's user"))
            continue
        mode = str(row.get("mode") or "")
        if what in _PRIVATE and mode.isdecimal() and int(mode, 8) & 0o077:
            found.append(error("open_to_others", where, f"{what} has mode {mode}", f"chmod 0700 {path}"))
        if what in _SECRET and mode.isdecimal() and int(mode, 8) & 0o077:
            todo = f"chmod 0600 {path}, and make a new key if others could have read this one"
            found.append(error("key_open_to_others", where, f"{what} has mode {mode}", todo))
        if what in _PRIVATE and row.get("uid") is not None and row.get("uid") != patient.told.get("uid"):
            what = f"{what} belongs to user {row['uid']}, the service runs as {patient.told.get('uid')}"
            found.append(warning("foreign_owner", where, what, "chown it to the service's user"))
        names = row.get("open_files")
        if what in _PRIVATE and isinstance(names, list) and names:
            found.append(error("open_to_others", where, ", ".join(map(str, names)), f"chmod go= {path}/*"))
    return found


def curve(patient: Patient) -> list[Finding]:
    """Endpoints that other machines can connect to, and no keys."""
    key = patient.option("curve_key_file")
    if key not in (None, "", "(not set)"):
        return []
    endpoints = patient.part("endpoints")
    seen = [f"{name} {url}" for name, url in endpoints.items() if isinstance(url, str) and url and not is_local(url)]
    if not seen:
        return []
    todo = "give every service keys (docs/security.md), or bind where no stranger can connect"
    return [error("no_curve", patient.name, f"without keys: {', '.join(seen)}", todo)]


def clocks(patients: Sequence[Patient]) -> list[Finding]:
    """Leases and deadlines do not depend on it, but logs of two nodes can only be laid side by side if clocks agree."""
    timed = [patient for patient in patients if patient.told]
    if len(timed) < 2:
        return []
    low, high = min(timed, key=lambda one: one.offset_s), max(timed, key=lambda one: one.offset_s)
    apart = high.offset_s - low.offset_s
    if apart - low.doubt_s - high.doubt_s < CLOCK_S:
        return []
    what = f"{apart:.3f} s apart, ± {low.doubt_s + high.doubt_s:.3f} s"
    return [warning("clocks_differ", f"{low.name}, {high.name}", what, "run chrony or systemd-timesyncd on every node")]


def reachability(patient: Patient) -> list[Finding]:
    """What this service cannot connect to, though others advertise it; or that this is not known."""
    if patient.reach_unknown:
        return [warning("reach_unknown", patient.name, f"what it can connect to: {patient.reach_unknown}", _control(patient))]
    advice = {
        "refused": "nobody listens there: is that service up, and is its advertise_host its own address?",
        "deadline": "a firewall, or advertise_host is an address of another network",
        "no_route": "advertise_host is an address that this node has no route to",
        "not_zmq": "another program listens there: give that service another port",
        "not_here": "an ipc endpoint is for one machine: set requests and events of that tier to tcp://…",
        "no_permission": "an ipc endpoint is for one user: set requests and events of that tier to tcp://…",
    }
    return [
        error(
            "unreachable",
            f"{patient.name} → {one.owner}",
            f"{one.socket} {one.endpoint}: {one.code}",
            advice.get(one.code, "try to connect from that node by hand"),
        )
        for one in patient.reached
        if one.code
    ]


def _control(patient: Patient) -> str:
    """What to do about a control endpoint that does not answer."""
    if str(patient.part("endpoints").get("control") or "").startswith("tcp://"):
        return "let this machine connect to that endpoint, or run the doctor where it is reachable"
    return "set its control to a tcp endpoint (docs/deploy.md), or run the doctor on its machine, as its user"


def absence(absent: Absent) -> list[Finding]:
    """What connecting to it says of a service that does not answer: killed, stopped, stuck, or not to be got at."""
    codes = {code for _, code in absent.seen}
    if absent.code in BARRED:
        todo = ADVICE[Access(absent.code)] if absent.code in list(Access) else "look with a listed key of role operator"
        return [error(absent.code, absent.name, absent.endpoint, todo)]
    if "" in codes and len(codes) > 1:
        todo = "it is reachable from some places only: look at firewalls, and at its advertise_host"
    elif "" in codes:
        todo = "its process lives and does not answer: its loop is stuck, or it does not let you in (keys); look at its log"
    elif "silent" in codes:
        todo = "its process is stopped (SIGSTOP, a debugger) or hangs: kill -CONT it, or restart it"
    elif codes == {"refused"} or codes == {"not_here"}:
        todo = "nobody listens there: it was killed or never started (ask its supervisor), or its advertise_host is wrong"
    else:
        todo = "its machine is down, a firewall is between, it is stopped for long, or advertise_host is of another network"
    seen = ", ".join(f"{who}: {code or 'can connect'}" for who, code in absent.seen)
    return [error("no_answer", absent.name, f"{absent.endpoint}: {absent.code}; {seen}", todo)]


def loss(node: Departed) -> Finding:
    """A node that fell silent so long ago that the metaserver has forgotten where it was."""
    had = "" if node.sealed is None else f", had {node.sealed} pages"
    todo = "its process was killed or is stopped, or its machine is down: pegaflow status there, and its supervisor"
    return error("node_lost", f"tier {node.node}", f"silent for {span(node.ago_ms)}{had}", todo)


def transports(patient: Patient) -> list[Finding]:
    """A node with an RDMA device that moves pages by TCP is an order of magnitude slower than it could be."""
    devices = patient.told.get("rdma_devices")
    movers = patient.rows("movers")
    if not devices or not movers or any(mover.get("rdma") for mover in movers):
        return []
    settings = movers[0].get("settings")
    said = ", ".join(f"{name}={value}" for name, value in settings.items()) if isinstance(settings, Mapping) else "?"
    what = f"devices {', '.join(map(str, devices))} are not open; TCP connections: {movers[0].get('tcp')}; {said}"
    todo = (
        f"set ucx_net_devices to {devices[0]}:1 and ucx_tls to rc (with GPUs rc,cuda_copy); check that UCX sees it: ucx_info -d"
    )
    return [warning("rdma_unused", patient.name, what, todo)]


def disk(patient: Patient) -> list[Finding]:
    """The measurement, if there was one, or that there should have been one."""
    found = []
    if patient.disk_unknown:
        todo = _control(patient) if "no answer" not in patient.disk_unknown else f"a longer --timeout; else: {_control(patient)}"
        found.append(warning("disk_unknown", patient.name, f"how fast its disk is: {patient.disk_unknown}", todo))
    for way in ("write", "read"):
        speed = number(patient.disk.get(f"{way}_bytes_per_s"))
        if speed is not None and speed < SLOW_DISK:
            todo = "use a local NVMe for disk_dir: computing a page anew may be faster than this"
            found.append(warning("slow_disk", patient.name, f"{way} {size(int(speed))}/s", todo))
    return found


def _count(value: Any) -> str:
    return str(value) if isinstance(value, int) else "?"
