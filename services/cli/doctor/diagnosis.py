"""All findings from all facts. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from pegaflow.services.cli.departed import Departed
from pegaflow.services.cli.doctor import attached, naming, surroundings, versions
from pegaflow.services.cli.doctor.finding import Finding, Severity
from pegaflow.services.cli.doctor.patient import Absent, Patient, engines

_OF_EACH = (
    attached.judge,
    surroundings.limits,
    surroundings.permissions,
    surroundings.curve,
    surroundings.reachability,
    surroundings.transports,
    surroundings.disk,
)


def diagnose(patients: Sequence[Patient], absent: Sequence[Absent] = (), lost: Sequence[Departed] = ()) -> list[Finding]:
    """Errors first, in an order that is the same for the same facts."""
    known = engines(patients)
    found = [finding for one in absent for finding in surroundings.absence(one)]
    found += [surroundings.loss(one) for one in lost]
    found += [*naming.judge(known), *versions.judge(patients, known), *surroundings.clocks(patients)]
    for patient in patients:
        for judge in _OF_EACH:
            found += judge(patient)
    return sorted(found, key=lambda one: one.severity is not Severity.ERROR)
