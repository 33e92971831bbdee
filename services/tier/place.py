"""What a tier tells everyone about itself."""

from __future__ import annotations

from dataclasses import dataclass

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.attach import Attached
from pegaflow.services.tier.sessions import Member, Session


@dataclass(frozen=True, slots=True)
class Place:
    """Name, life, pool and endpoints of one tier."""

    node: str
    epoch: int
    pool_path: str
    pool_bytes: int
    table_path: str
    intents: str
    events: str
    control: str

    def attached(self, session: Session, member: Member) -> Attached:
        """What a process that attached is told."""
        return Attached(
            self.node,
            session.number,
            member.number,
            session.token,
            member.cursor.next,
            session.topic,
            self.pool_path,
            self.pool_bytes,
            self.table_path,
            GRANULE,
            self.intents,
            self.events,
            self.control,
        )
