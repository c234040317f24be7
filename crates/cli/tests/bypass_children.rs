//! Children and threads made in unusual ways under the bypass, and numbers that get another file beneath a stream.

mod common;

traps! {
    /// The next bad buffer was the program's end.
    a_fault_and_a_signal_that_come_at_once_leave_nothing_blocked = "children/faults", ["write"];
    /// Its first bytes were overwritten.
    a_stream_that_appends_sets_o_append_for_all = "children/appends", ["write"];
    /// The receiver got SIGBUS: the kernel knew no size of the second file.
    files_sent_one_after_the_other_have_their_sizes = "children/sent_later", ["write"];
    /// Copies from it ended early, and appends to it overwrote.
    a_descriptor_that_a_process_sends_itself_has_the_present_size = "children/sent_to_itself", ["write"];
    /// It appended at the size from before.
    a_descriptor_that_a_process_sends_itself_appends_at_the_end = "children/sent_end", ["write", "resize"];
    a_program_that_is_started_later_finds_the_end = "children/started_later", ["write"];
    /// One of them stayed blocked for ever.
    two_signals_that_come_at_once_are_both_handled = "children/at_once", ["write"];
    /// Pieces of the copy overwrote its source.
    a_file_reached_through_two_places_is_one_file = "children/copied", ["write"];
    /// It hung: redis-server with jemalloc, for example.
    an_allocator_may_take_its_locks_before_a_fork = "children/allocator", ["write"];
    a_log_may_take_its_lock_before_a_fork = "children/log", ["write"];
    /// The stream overwrote what the program had written to its number.
    a_file_put_beneath_a_stream_keeps_its_offset = "children/streams", ["write"];
    /// A write at an offset did not append.
    a_descriptor_that_a_process_fetches_from_itself_shares_o_append = "children/fetched", ["write"];
    /// The next write began at offset 0.
    a_cancelled_close_leaves_the_offset_where_it_is = "children/cancelled_close", ["write"];
    /// Both waited for ever.
    a_child_may_wait_for_another_thread_of_its_parent = "children/waits", ["write"];
    /// The parent's next write began at offset 0.
    the_child_of_a_vfork_may_fork_itself = "children/forks_again", ["write"];
    /// The child waited for the heap's lock for ever.
    a_child_without_fork_handlers_may_write = "children/heapless", ["write"];
    /// As above: it counted the file that it opened.
    a_child_without_fork_handlers_may_be_first_to_open = "children/first_open", ["write"];
    /// The parent's next write went to the child's file.
    two_first_processes_of_namespaces_may_share_memory = "children/first", [];
    /// The parent's next write went nowhere, and its handlers were the child's.
    a_child_with_words_of_its_own_may_share_memory = "children/words", ["write"];
    /// Both wrote at the offset of the fork: the daemon's standard output was in the table no more.
    a_daemon_shares_the_offset_of_numbers_that_stay_open = "shared/daemon", ["write"];
    a_failed_login_leaves_the_offset_shared = "shared/login", ["write"];
    /// What the C library wrote when it closed the stream was overwritten.
    a_stream_is_written_out_beside_another_process = "shared/streams", ["write"];
    /// Writes of both began at offset 0 now and then.
    a_thread_without_memory_of_its_own_may_write = "children/wordless", ["write"];
}

/// Its writes began at an old offset, and the next file got those of another one.
#[test]
fn a_library_that_prefers_the_c_librarys_functions_may_write() {
    common::traps::trap_with("apart/prefers", &["write"], &["plug"]);
}

/// As above.
#[test]
fn a_library_in_a_namespace_of_its_own_may_write() {
    common::traps::trap_with("apart/apart", &["write"], &["plug"]);
}
