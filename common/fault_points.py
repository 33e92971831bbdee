"""Every fault point, in the order of a page's life: a place between two effects where a death or a pause matters.

    <who>.<what>.<where>     before_… / after_… one effect; `common/faults.py` says how one is armed

Who adds a step between two effects adds its points here. `tests/process/test_fault_points.py` visits each one, and fails for one
that nothing reaches.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Point(StrEnum):
    """Value: the name in `PEGAFLOW_FAULT`. `story`: what has and what has not happened when it is reached."""

    story: str

    def __new__(cls, name: str, story: str) -> Point:
        member = str.__new__(cls, name)
        member._value_ = name
        member.story = story
        return member

    # --- tier: start and end -----------------------------------------------------------------------------------------
    TIER_START_AFTER_POOL = "tier.start.after_pool", "pool and slot table are there, no socket is bound"
    TIER_START_AFTER_SCAN = "tier.start.after_scan", "sockets are bound; lock files of the dead are gone, others kept"
    TIER_START_BEFORE_DISK_LOCK = "tier.start.before_disk_lock", "the disk's folder is open, its lock is not taken"
    TIER_START_AFTER_MOVER = "tier.start.after_mover", "the mover is up; no request is answered yet"
    TIER_BACKED_BEFORE_APPLIED = "tier.backed.before_applied", "a chunk of the pool has memory, the allocator does not know"
    TIER_SLAB_BEFORE_ADOPTED = "tier.slab.before_adopted", "a slab of the life before was read, none of its pages is known"
    TIER_SLABS_BEFORE_ENDED = "tier.slabs.before_ended", "all slabs are read; what was not seen counts as possibly granted"
    TIER_OLD_WRITER_BEFORE_FREED = "tier.old_writer.before_freed", "a writer of the life before is dead, its slots are out of use"
    TIER_DRAIN_BEFORE_BYE = "tier.drain.before_bye", "open work is over, the metaserver still lists this node"
    TIER_DRAIN_AFTER_BYE = "tier.drain.after_bye", "the goodbye is on its way, everything is still open"
    TIER_CLOSE_BEFORE_MOVER = "tier.close.before_mover", "nothing is handled any more, the mover lives"
    TIER_CLOSE_BEFORE_FILES = "tier.close.before_files", "sockets are closed, pool and slot table are still there"
    # --- tier: who is attached ---------------------------------------------------------------------------------------
    TIER_ATTACH_BEFORE_APPLIED = "tier.attach.before_applied", "the lock was seen held, the process is no member yet"
    TIER_ATTACHED_BEFORE_SENT = "tier.attached.before_sent", "a member that does not know it is one"
    TIER_ATTACHED_AFTER_SENT = "tier.attached.after_sent", "the answer is on its way, the bus is not joined"
    TIER_ALIVE_BEFORE_APPLIED = "tier.alive.before_applied", "a beat of an engine's process came in"
    TIER_ALIVE_AFTER_APPLIED = "tier.alive.after_applied", "what it did not list has been ended"
    TIER_SESSION_BEAT_BEFORE_SENT = "tier.session_beat.before_sent", "the members of a session are about to hear who is there"
    TIER_DETACH_BEFORE_APPLIED = "tier.detach.before_applied", "a process says goodbye, its slots and leases are still its"
    TIER_DETACH_AFTER_APPLIED = "tier.detach.after_applied", "they are free, and the answer is on its way"
    TIER_MEMBER_DEAD_BEFORE_APPLIED = "tier.member_dead.before_applied", "a lock was found free, nothing is freed yet"
    TIER_MEMBER_DEAD_AFTER_APPLIED = "tier.member_dead.after_applied", "what the dead process held is free"
    TIER_FORGET_BEFORE_UNLINK = "tier.forget.before_unlink", "the member is gone, its lock file is there"
    TIER_FORGET_AFTER_UNLINK = "tier.forget.after_unlink", "its lock file is gone, its session's topic may still be open"
    # --- tier: saving ------------------------------------------------------------------------------------------------
    TIER_INTENT_BEFORE_APPLIED = "tier.intent.before_applied", "an intent came in, no slot is reserved"
    TIER_GRANT_BEFORE_TABLE = "tier.grant.before_table", "slots are reserved in memory, the slot table does not say so"
    TIER_GRANT_AFTER_TABLE = "tier.grant.after_table", "the slot table says granted, nobody was told"
    TIER_GRANT_AFTER_SENT = "tier.grant.after_sent", "the grant is on its way, the catalogue does not say pending"
    TIER_INTENT_AFTER_APPLIED = "tier.intent.after_applied", "grant and deltas are on their way, nothing is acknowledged"
    TIER_ACK_BEFORE_SENT = "tier.ack.before_sent", "a publication was applied, its publisher would repeat it"
    TIER_WRITTEN_BEFORE_APPLIED = (
        "tier.written.before_applied",
        "the bytes are in, the slot still counts as being written",
    )
    TIER_WRITTEN_AFTER_APPLIED = "tier.written.after_applied", "the last word is taken, the checksum has begun"
    TIER_ABANDONED_BEFORE_APPLIED = "tier.abandoned.before_applied", "a rank gave its slots up, they are still reserved"
    TIER_ABANDONED_AFTER_APPLIED = "tier.abandoned.after_applied", "they are free again"
    TIER_HASH_BEFORE_STARTED = "tier.hash.before_started", "pages are whole, no checksum is being taken"
    TIER_HASH_AFTER_COMPUTED = "tier.hash.after_computed", "checksums are known to the thread that took them only"
    TIER_HASHED_BEFORE_APPLIED = "tier.hashed.before_applied", "checksums are known, nothing is sealed"
    TIER_SEAL_BEFORE_TABLE = "tier.seal.before_table", "sealed in memory, the slot table says granted"
    TIER_SEAL_AFTER_TABLE = "tier.seal.after_table", "the slot table says sealed, no lookup and no catalogue knows"
    TIER_DELTA_BEFORE_SENT = "tier.delta.before_sent", "the index has changed, clones of it have not"
    TIER_DELTA_AFTER_SENT = "tier.delta.after_sent", "the change is on its way"
    TIER_FREE_BEFORE_TABLE = "tier.free.before_table", "a slot is free in memory, the slot table does not say so"
    TIER_FREE_AFTER_TABLE = "tier.free.after_table", "the slot table says free"
    # --- tier: out of memory and back --------------------------------------------------------------------------------
    TIER_EVICT_BEFORE_TABLE = "tier.evict.before_table", "a sealed page is out of the index, the slot table says sealed"
    TIER_EVICT_AFTER_TABLE = "tier.evict.after_table", "the slot table says free, the catalogue still names the page"
    TIER_DISK_WRITE_BEFORE_POST = "tier.disk_write.before_post", "pages are held for a write, no thread knows of it"
    TIER_DISK_SEGMENT_BEFORE_LOG = "tier.disk_segment.before_log", "room for a segment is set aside, it has no log"
    TIER_DISK_WRITE_BEFORE_PAGES = "tier.disk_write.before_pages", "the segment is there, no byte of the pages is"
    TIER_DISK_WRITE_BEFORE_LOG = "tier.disk_write.before_log", "the bytes are on disk, no record names them"
    TIER_DISK_WRITE_AFTER_LOG = "tier.disk_write.after_log", "the log names them, which only the thread knows that wrote it"
    TIER_DISK_WRITTEN_BEFORE_APPLIED = (
        "tier.disk_written.before_applied",
        "written; in memory and held, the catalogue says memory",
    )
    TIER_DISK_WRITTEN_AFTER_APPLIED = "tier.disk_written.after_applied", "dropped from memory, the catalogue says disk"
    TIER_DISK_READ_BEFORE_POST = "tier.disk_read.before_post", "slots to read into are in the table, no thread knows of it"
    TIER_DISK_READ_BEFORE_BYTES = "tier.disk_read.before_bytes", "a thread has the read, no byte has come"
    TIER_DISK_READ_BEFORE_REPORT = "tier.disk_read.before_report", "the bytes are in, which only the thread knows that read them"
    TIER_DISK_READ_ENDED_BEFORE_APPLIED = "tier.disk_read_ended.before_applied", "checksums are known, nothing is sealed"
    TIER_DISK_GIVE_UP_BEFORE_SENT = "tier.disk_give_up.before_sent", "a read is past its deadline, its thread goes on with it"
    TIER_DISK_DROP_BEFORE_UNLINK = "tier.disk_drop.before_unlink", "a segment is out of the catalogue, its files are there"
    TIER_DISK_DROP_AFTER_LOG = "tier.disk_drop.after_log", "its log is gone, its pages are there"
    TIER_SEGMENT_BEFORE_READ = "tier.segment.before_read", "a segment of the life before is open, its log was not read"
    TIER_SEGMENT_BEFORE_ADOPTED = (
        "tier.segment.before_adopted",
        "a segment of the life before was read, none of its pages is known",
    )
    TIER_SEGMENTS_BEFORE_ENDED = "tier.segments.before_ended", "all segments are read, nothing may be written yet"
    # --- tier: loading -----------------------------------------------------------------------------------------------
    TIER_LOOKUP_BEFORE_APPLIED = "tier.lookup.before_applied", "a lookup came in, nobody waits for it"
    TIER_LOOKUP_AFTER_APPLIED = "tier.lookup.after_applied", "it is answered, or waits"
    TIER_HITS_BEFORE_SENT = "tier.hits.before_sent", "the lease is open, its owner does not know it"
    TIER_HITS_AFTER_SENT = "tier.hits.after_sent", "the answer is on its way"
    TIER_LOADING_BEFORE_APPLIED = "tier.loading.before_applied", "ranks copy under a lease that still counts as idle"
    TIER_LOADING_AFTER_APPLIED = "tier.loading.after_applied", "the lease lasts until it is released"
    TIER_RELEASE_BEFORE_APPLIED = "tier.release.before_applied", "every rank has reported, the lease is open"
    TIER_RELEASE_AFTER_APPLIED = "tier.release.after_applied", "the lease is over"
    TIER_CANCEL_BEFORE_APPLIED = "tier.cancel.before_applied", "a lookup that nobody wants is still waiting"
    TIER_CANCEL_AFTER_APPLIED = "tier.cancel.after_applied", "it is answered with nothing"
    # --- tier: fetching ----------------------------------------------------------------------------------------------
    TIER_LOCATE_BEFORE_SENT = "tier.locate.before_sent", "a lookup needs the metaserver, which was not asked"
    TIER_LOCATED_BEFORE_APPLIED = "tier.located.before_applied", "the owners are known, no slot is reserved"
    TIER_FETCH_BEFORE_TABLE = "tier.fetch.before_table", "slots to READ into are reserved in memory only"
    TIER_PIN_BEFORE_SENT = "tier.pin.before_sent", "slots are reserved, the owner does not know that it is read"
    TIER_PIN_BEFORE_APPLIED = "tier.pin.before_applied", "the owner was asked, nothing is pinned"
    TIER_PINNED_BEFORE_SENT = "tier.pinned.before_sent", "pinned at the owner, the reader does not know"
    TIER_PINNED_AFTER_SENT = "tier.pinned.after_sent", "the reader's time runs since before it asked"
    TIER_PINNED_BEFORE_APPLIED = "tier.pinned.before_applied", "the reader has offsets and checksums, no READ is posted"
    TIER_READ_BEFORE_POST = "tier.read.before_post", "the mover knows nothing of the READ"
    TIER_READ_AFTER_POST = "tier.read.after_post", "the READ is the mover's"
    TIER_READ_ENDED_BEFORE_APPLIED = "tier.read_ended.before_applied", "the bytes are here, the pin is held, nothing is verified"
    TIER_READ_ENDED_AFTER_APPLIED = "tier.read_ended.after_applied", "unpinned, checksums are being taken"
    TIER_GIVE_UP_BEFORE_SENT = "tier.give_up.before_sent", "a READ is past its deadline, the mover goes on with it"
    TIER_QUARANTINE_BEFORE_TABLE = "tier.quarantine.before_table", "its slots are out of use in memory only"
    TIER_UNPIN_BEFORE_SENT = "tier.unpin.before_sent", "the READ has ended, the owner still pins"
    TIER_UNPIN_BEFORE_APPLIED = "tier.unpin.before_applied", "the owner was told, the pin is open"
    TIER_UNPIN_AFTER_APPLIED = "tier.unpin.after_applied", "the pin is over"
    # --- tier: catalogue ---------------------------------------------------------------------------------------------
    TIER_HELLO_BEFORE_SENT = "tier.hello.before_sent", "the metaserver has not heard of this life, or not lately"
    TIER_CATALOGUE_BEAT_BEFORE_SENT = "tier.catalogue_beat.before_sent", "clones do not know the head"
    TIER_SYNC_BEFORE_APPLIED = "tier.sync.before_applied", "a clone asks for a chunk, no walk is open for it"
    TIER_SYNC_CHUNK_BEFORE_SENT = "tier.sync_chunk.before_sent", "the walk is open, the clone has nothing of it"
    TIER_SYNC_CHUNK_AFTER_SENT = "tier.sync_chunk.after_sent", "a chunk is on its way"
    # --- mover -------------------------------------------------------------------------------------------------------
    MOVER_START_AFTER_LOCK = "mover.start.after_lock", "the lock is held, the pool is not mapped"
    MOVER_START_AFTER_REGISTER = "mover.start.after_register", "other tiers could read, nobody knows the metadata"
    MOVER_START_AFTER_READY = "mover.start.after_ready", "the tier knows, no command was read"
    MOVER_READ_BEFORE_CONNECT = "mover.read.before_connect", "a READ was taken, the peer is not connected"
    MOVER_READ_BEFORE_POST = "mover.read.before_post", "the READ is prepared, no byte moves"
    MOVER_READ_AFTER_POST = "mover.read.after_post", "bytes move, or have moved"
    MOVER_READ_BEFORE_REPORT = "mover.read.before_report", "the READ has ended, the tier does not know"
    MOVER_READ_AFTER_REPORT = "mover.read.after_report", "the tier is being told"
    MOVER_GIVE_UP_BEFORE_APPLIED = "mover.give_up.before_applied", "the tier has given a READ up, its lane has not heard"
    # --- metaserver --------------------------------------------------------------------------------------------------
    METASERVER_START_AFTER_BIND = "metaserver.start.after_bind", "sockets are bound, no node is known"
    METASERVER_HELLO_BEFORE_APPLIED = "metaserver.hello.before_applied", "a tier says that it lives"
    METASERVER_HELLO_AFTER_APPLIED = "metaserver.hello.after_applied", "it was answered, and met if it was new"
    METASERVER_CONNECT_BEFORE_MADE = "metaserver.connect.before_made", "a node is listed, nobody listens to it"
    METASERVER_CONNECT_AFTER_MADE = "metaserver.connect.after_made", "its catalogue is subscribed to, no snapshot was asked for"
    METASERVER_DISCONNECT_BEFORE_MADE = "metaserver.disconnect.before_made", "a node is lost, its sockets are open"
    METASERVER_SYNC_BEFORE_SENT = "metaserver.sync.before_sent", "a snapshot is wanted, the tier does not know"
    METASERVER_SYNC_CHUNK_BEFORE_APPLIED = "metaserver.sync_chunk.before_applied", "a chunk is here, the new generation lacks it"
    METASERVER_SYNC_CHUNK_AFTER_APPLIED = "metaserver.sync_chunk.after_applied", "taken in; after the last one: swapped"
    METASERVER_NODE_UP_BEFORE_SENT = "metaserver.node_up.before_sent", "the clone is swapped in, nobody was told"
    METASERVER_NODE_UP_AFTER_SENT = "metaserver.node_up.after_sent", "told; those who wait have not been looked at"
    METASERVER_DELTA_BEFORE_APPLIED = "metaserver.delta.before_applied", "a tier's index has changed, its clone has not"
    METASERVER_DELTA_AFTER_APPLIED = "metaserver.delta.after_applied", "the clone has changed, those who waited are answered"
    METASERVER_LOCATE_BEFORE_APPLIED = "metaserver.locate.before_applied", "somebody asks where keys are"
    METASERVER_LOCATED_BEFORE_SENT = "metaserver.located.before_sent", "the answer is known, the asker waits"
    METASERVER_LOCATED_AFTER_SENT = "metaserver.located.after_sent", "the answer is on its way"
    METASERVER_BYE_BEFORE_APPLIED = "metaserver.bye.before_applied", "a tier has left on purpose, its pages are listed"
    METASERVER_NODE_DOWN_BEFORE_SENT = "metaserver.node_down.before_sent", "a node's pages are gone here, nobody was told"
    METASERVER_NODE_DOWN_AFTER_SENT = "metaserver.node_down.after_sent", "told; those who wait have not been looked at"
    METASERVER_BEAT_BEFORE_SENT = "metaserver.beat.before_sent", "subscribers do not know the head"
    # --- connector: link ---------------------------------------------------------------------------------------------
    CONNECTOR_LOCK_AFTER_TAKEN = "connector.lock.after_taken", "the process can be proven dead, the tier does not know it"
    CONNECTOR_ATTACH_BEFORE_SENT = "connector.attach.before_sent", "the process is about to ask"
    CONNECTOR_ATTACHED_BEFORE_APPLIED = "connector.attached.before_applied", "a member, without mapping and without bus"
    CONNECTOR_POOL_AFTER_MAPPED = "connector.pool.after_mapped", "the pool is mapped, the bus is not joined"
    CONNECTOR_JOIN_AFTER_APPLIED = "connector.join.after_applied", "attached, no beat was sent"
    CONNECTOR_PUBLISH_BEFORE_SENT = "connector.publish.before_sent", "a publication has its number and was not sent"
    CONNECTOR_PUBLISH_AFTER_SENT = "connector.publish.after_sent", "sent, not acknowledged"
    CONNECTOR_ACK_BEFORE_APPLIED = "connector.ack.before_applied", "the tier has it, the window still keeps it"
    CONNECTOR_ALIVE_BEFORE_SENT = "connector.alive.before_sent", "the tier has not heard from this process for a beat"
    CONNECTOR_SESSION_BEFORE_UNMAP = "connector.session.before_unmap", "the session is over, the old pool is mapped"
    CONNECTOR_SESSION_AFTER_UNMAP = "connector.session.after_unmap", "nothing is mapped, no new session is asked for"
    CONNECTOR_DETACH_BEFORE_SENT = "connector.detach.before_sent", "unmapped, the tier counts a member"
    # --- connector: saving -------------------------------------------------------------------------------------------
    CONNECTOR_INTENT_BEFORE_SENT = "connector.intent.before_sent", "blocks are pinned for an intent that nobody has heard of"
    CONNECTOR_GRANT_BEFORE_APPLIED = "connector.grant.before_applied", "a grant came in, no rank owes a last word for it"
    CONNECTOR_SAVE_BEFORE_COPY = "connector.save.before_copy", "the rank has slots and has written none"
    CONNECTOR_SAVE_AFTER_COPY = "connector.save.after_copy", "the bytes are in, the tier does not know"
    CONNECTOR_SAVE_BEFORE_REPORT = "connector.save.before_report", "every slot was answered for, vLLM's blocks are pinned"
    CONNECTOR_WRITTEN_BEFORE_SENT = "connector.written.before_sent", "the last word was handed over, it has no number"
    CONNECTOR_ABANDONED_BEFORE_SENT = "connector.abandoned.before_sent", "slots were given up, the tier keeps them reserved"
    # --- connector: loading ------------------------------------------------------------------------------------------
    CONNECTOR_LOOKUP_BEFORE_SENT = "connector.lookup.before_sent", "vLLM waits for an answer to a question not asked"
    CONNECTOR_LOOKUP_AFTER_SENT = "connector.lookup.after_sent", "the question is on its way"
    CONNECTOR_HITS_BEFORE_APPLIED = "connector.hits.before_applied", "a lease that no `alive` of ours lists"
    CONNECTOR_LOADING_BEFORE_SENT = "connector.loading.before_sent", "ranks may copy under a lease that counts as idle"
    CONNECTOR_LOAD_BEFORE_COPY = "connector.load.before_copy", "blocks wait for their bytes"
    CONNECTOR_LOAD_AFTER_COPY = "connector.load.after_copy", "bytes are in, the generations were not looked at again"
    CONNECTOR_LOAD_BEFORE_REPORT = "connector.load.before_report", "the copy is over, vLLM does not know"
    CONNECTOR_RELEASE_BEFORE_SENT = "connector.release.before_sent", "every rank has reported, the tier keeps the lease"
    CONNECTOR_CANCEL_BEFORE_SENT = "connector.cancel.before_sent", "nobody waits any more, the tier does not know"


BY_NAME: Final = {str(point.value): point for point in Point}
