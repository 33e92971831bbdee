"""The faults of `faults_of_saving.py` and `faults_of_loading.py`, and what the oracle has to say about each.

Not among them, because nothing wrong can come of it in this design: a bound by `written` alone while hashes are still
counted. A block's key is vLLM's hash, and vLLM hashes known tokens only, so the number of hashes is the bound by known
tokens in another form. The mutant here drops both. Nor is an answer that is let go for good because vLLM had the blocks
itself, and then lost them: the oracle found it, but once in a thousand schedules, so a unit test of the load tracker keeps it.
"""

from __future__ import annotations

from oracle import faults_of_loading as loading
from oracle import faults_of_saving as saving
from oracle.faults_of_saving import Mutant

MUTANTS: dict[Mutant, str] = {
    saving.accumulator: "sealed with rows",
    saving.reset_where_the_v1_runner_says_so: "sealed with rows",
    saving.table_kept_on_resume: "sealed with rows|is free",
    saving.bound_by_written_alone: "offer_failed",
    saving.flag_instead_of_count: "is free|reused while a save reads it|copies are under way",
    saving.save_ended_before_it_was_copied: "is free|reused while a save reads it|copies are under way",
    saving.pinned_twice_for_a_block_in_two_pages: "that nobody holds",
    saving.tail_with_salt: "sealed with rows|a page that is not of it",
    saving.hashes_taken_for_blocks: "with wrong rows|sealed with rows|that are stored were loaded|offer_failed",
    saving.blocks_filled_by_decoding_not_saved: "computed and not stored",
    saving.local_hits_not_offered: "computed and not stored",
    saving.tail_not_saved: "computed and not stored",
    saving.tail_that_was_loaded_counts_as_a_full_page: "computed and not stored",
    saving.offered_once_whether_published_or_not: "computed and not stored",
    loading.stale_session_trusted: "out of another session",
    loading.stale_local_hits_trusted: "a page that is not of it|differ in number|out of range",
    loading.stale_probe_trusted: "an answer to another question",
    loading.lookup_not_sent: "nobody was asked|that are stored were loaded",
    loading.tail_not_asked_for: "that are stored were loaded",
    loading.lease_kept: "leases are held",
    loading.lease_forgotten_on_abort: "leases are held",
    loading.second_claim_after_failure: "claims again",
    loading.failed_load_not_reported_as_failed: "wrong rows",
    loading.failed_blocks_not_reported: "wrong rows",
    loading.generation_checked_before_only: "wrong rows",
    loading.load_of_shard_nought: "page of another shard",
    loading.load_reported_twice: "once too often",
    loading.load_started_by_both_hooks: "not its own|once too often",
    loading.load_that_raised_never_reported: "never end",
    loading.refused_load_never_reported: "never end",
}
"""Mutant → what the oracle has to say about it, as a regular expression."""
