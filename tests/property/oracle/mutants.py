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

MUTANTS: dict[Mutant, tuple[int, str]] = {
    saving.accumulator: (1, "sealed with rows"),
    saving.reset_where_the_v1_runner_says_so: (3, "sealed with rows"),
    saving.table_kept_on_resume: (0, "sealed with rows|is free"),
    saving.bound_by_written_alone: (0, "offer_failed"),
    saving.flag_instead_of_count: (3, "is free|reused while a save reads it|copies are under way"),
    saving.save_ended_before_it_was_copied: (0, "is free|reused while a save reads it|copies are under way"),
    saving.pinned_twice_for_a_block_in_two_pages: (1, "that nobody holds"),
    saving.tail_with_salt: (5, "sealed with rows|a page that is not of it"),
    saving.hashes_taken_for_blocks: (0, "with wrong rows|sealed with rows|that are stored were loaded|offer_failed"),
    saving.blocks_filled_by_decoding_not_saved: (0, "computed and not stored"),
    saving.local_hits_not_offered: (0, "computed and not stored"),
    saving.tail_not_saved: (0, "computed and not stored"),
    saving.tail_that_was_loaded_counts_as_a_full_page: (1, "computed and not stored"),
    saving.offered_once_whether_published_or_not: (0, "computed and not stored"),
    loading.stale_session_trusted: (3, "out of another session"),
    loading.stale_local_hits_trusted: (1, "a page that is not of it|differ in number|out of range"),
    loading.stale_probe_trusted: (0, "an answer to another question"),
    loading.lookup_not_sent: (0, "nobody was asked|that are stored were loaded"),
    loading.tail_not_asked_for: (0, "that are stored were loaded"),
    loading.lease_kept: (0, "leases are held"),
    loading.lease_forgotten_on_abort: (0, "leases are held"),
    loading.second_claim_after_failure: (7, "claims again"),
    loading.failed_load_not_reported_as_failed: (0, "wrong rows"),
    loading.failed_blocks_not_reported: (0, "wrong rows"),
    loading.generation_checked_before_only: (21, "wrong rows"),
    loading.load_of_shard_nought: (0, "page of another shard"),
    loading.load_reported_twice: (0, "once too often"),
    loading.load_started_by_both_hooks: (0, "not its own|once too often"),
    loading.load_that_raised_never_reported: (1, "never end"),
    loading.refused_load_never_reported: (0, "never end"),
}
"""Mutant → seed, and what the oracle has to say about it as a regular expression.

The seeds only save time: others find the same faults later, most within some hundred schedules.
"""
