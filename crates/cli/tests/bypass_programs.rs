//! Programs that a program under the bypass executes or starts: they find what they find without it.

mod common;

traps! {
    programs_that_are_executed_ignore_what_the_program_ignores = "programs/ignoring", ["write"];
    /// A command in wordexp(3) overwrote the file's start.
    programs_that_the_c_library_starts_share_the_offset = "programs/starting", ["write"];
    a_program_goes_on_behind_the_end_of_its_first_thread = "programs/headless", ["write"];
    /// It began at offset 0.
    a_program_started_with_a_pidfd_shares_the_offset = "programs/spawning", ["write"];
    /// It was left running, though the call had failed.
    a_spawn_that_finds_no_number_leaves_no_child = "programs/spawning_beside", ["write"];
    siginterrupt_counts_for_the_action_and_for_later_ones = "programs/interrupting", [];
}
