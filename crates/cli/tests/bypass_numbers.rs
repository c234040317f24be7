//! Descriptors under the bypass: a number means what the kernel says it means, whichever thread closes, replaces or duplicates it.

mod common;

traps! {
    /// Its records went to the start of the other file.
    a_number_replaced_under_its_writer_leaves_each_record_once = "beside/replaced", ["write"];
    a_number_with_a_shared_offset_is_replaced_under_its_writer = "beside/shared", [];
    a_number_closed_under_its_writer_leaves_each_record_once = "beside/closed", ["write"];
    a_duplicate_made_beside_dup2_shares_the_offset = "beside/dup", ["write"];
    /// Two of them began at one offset.
    records_of_threads_are_all_there_though_others_fork = "forks_beside/forks", ["write"];
    /// It waited for a moment in which nobody wrote.
    a_duplicate_closes_while_others_write = "forks_beside/closes", [];
    /// They stayed the file's until the program closed another, or for ever.
    blocks_are_free_when_the_last_call_on_a_closed_file_ends = "beside/gone", ["write"];
}
