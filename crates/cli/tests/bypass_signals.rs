//! Signals, children and threads under the bypass: handlers, forks and stacks do what they do without it.

mod common;

traps! {
    /// Every program with Python's `subprocess` was ended by its next SIGTERM.
    the_child_of_a_vfork_changes_no_handler_of_its_parents = "signals/vfork", ["write"];
    /// It was taken for the child of the vfork.
    a_fork_right_after_a_vfork_makes_a_child_that_is_served = "signals/vfork_and_fork", ["write"];
    /// The mount's process waited for the interrupted call, then ended the mount.
    an_undelayed_handlers_call_on_the_same_file_fails_with_edeadlk = "signals/undelayed", ["write"];
    /// As above: not even its calls are seen.
    the_mount_refuses_a_handlers_call_that_its_own_thread_holds_up = "signals/bare", ["write"];
    a_forked_child_handles_no_signal_of_its_parent = "signals/forks", ["write"];
    /// The seventeenth ran its handler in the middle of an append.
    of_many_signals_at_once_none_is_handled_inside_a_call = "signals/many", ["write"];
    /// One of the two was lost, or stayed blocked for ever.
    a_signal_in_the_middle_of_another_is_handled = "signals/between", ["write"];
    signals_of_faults_that_a_program_blocks_stay_blocked = "signals/faults", ["write"];
    a_trace_is_written_where_the_offset_is = "signals/traces", ["write"];
    what_siginterrupt_sets_is_what_an_action_shows = "signals/interrupts", ["write"];
    /// The next chroot, setuid or mlockall waited for ever for it to come back.
    a_handler_may_leave_an_open_by_longjmp = "signals/opens", ["write"];
    /// Opening its first file of a mount ended the program.
    a_thread_with_the_smallest_stack_uses_files = "stacks/threads", ["write", "read", "resize"];
    a_handler_has_room_on_the_smallest_stack = "stacks/handlers", ["write"];
    /// It locked 64 GiB.
    a_handler_that_locks_memory_or_sets_a_filter_unmaps_the_image = "rights/by_handlers", ["write", "read"];
    /// Another thread gave its files back to an engine that was gone.
    rights_may_go_in_a_handler_beside_calls = "rights/by_handlers_beside_calls", ["write"];
    /// The fork had the lock of all descriptors, and waited for the streams' lock; both waited for ever.
    a_handler_in_a_flush_may_close_beside_a_fork = "signals/flushes", ["write"];
    /// Its image was mapped all the same, after the call.
    a_program_that_gives_up_rights_beside_an_open_has_no_image_mapped = "rights/beside", [];
    /// The old file was closed in an engine that was gone.
    rights_may_go_beside_a_replacement = "rights/beside_replacements", ["write"];
}

/// It waited for ever for a lock, whose holder waited for the heap.
#[test]
fn a_handler_in_malloc_may_close() {
    common::traps::trap_with("heap/beside_closes", &["write"], &["at_fork"]);
}

#[test]
fn a_handler_in_malloc_may_read() {
    common::traps::trap_with("heap/beside_vectors", &["read"], &["at_fork"]);
}

/// It waited for ever for the offset.
#[test]
fn a_handler_in_malloc_may_read_beside_first_calls() {
    common::traps::trap_with("heap/beside_new_files", &["read"], &["at_fork"]);
    common::traps::trap_with("heap/beside_first_calls", &["read"], &["at_fork"]);
}

/// As above.
#[test]
fn a_handler_in_malloc_may_seek_beside_page_writes() {
    common::traps::trap_with("heap/beside_pages", &["write"], &["at_fork"]);
}

/// As above.
#[test]
fn a_handler_in_malloc_waits_for_no_call_for_ever() {
    common::traps::trap_with("heap/beside_long_reads", &["read"], &["at_fork"]);
    common::traps::trap_with("heap/beside_starts", &["read"], &["at_fork"]);
}

/// The child waited for ever for the thread that was closing a file.
#[test]
fn a_child_forked_beside_a_close_may_give_up_rights() {
    common::traps::trap_with("heap/forks_beside_closes", &["write"], &["at_fork"]);
}

/// It waited for ever for a lock of its own.
#[test]
fn handlers_of_forks_use_files_as_any_function_may() {
    common::traps::trap_with("forks/at_fork", &["write"], &["at_fork"]);
}

/// They waited for ever for the heap's lock, which their own thread had.
#[test]
fn handlers_of_forks_write_behind_an_allocators_lock() {
    common::traps::trap_with("heap/forks", &["write", "not_taken"], &["at_fork"]);
}

/// As above, and one fork waited for the other one.
#[test]
fn two_forks_write_behind_an_allocators_lock() {
    common::traps::trap_with("heap/two_forks", &["write"], &["at_fork"]);
}

/// A fork waited for seconds, with its thread's signals held back, for one that waited for the handler of such a signal.
#[test]
fn a_fork_may_wait_for_a_signal_handler_of_another_that_forks() {
    common::traps::trap_with("heap/stops", &["write"], &["at_fork"]);
}

/// Its calls were served, and took the heap in the middle of a malloc.
#[test]
fn a_handler_that_another_left_for_is_still_one() {
    common::traps::trap_with("heap/probes", &["write"], &["at_fork"]);
}

/// As above, and each handler took the heap once after libraries had been loaded.
#[test]
fn handlers_of_a_thread_need_no_heap_after_libraries_are_loaded() {
    common::traps::trap_with("heap/threads_probes", &["write"], &["at_fork", "plug"]);
}

/// As above: such a library did not reach ours.
#[test]
fn fork_handlers_of_an_old_library_use_files_as_any_may() {
    common::traps::trap_with("forks/at_fork", &["write"], &["at_fork_old"]);
}
