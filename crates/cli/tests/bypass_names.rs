//! Functions that the bypass stands before, however a program comes to them: looked up, and by the C library's other names.

mod common;

use common::traps::trap_with;

/// What was written by a function that the program had looked up overwrote the file's start.
#[test]
fn functions_looked_up_in_the_c_library_share_the_offset() {
    trap_with("lookup/found", &["write"], &["looks_up"]);
}

#[test]
fn another_librarys_function_of_the_name_is_called_once() {
    trap_with("lookup/between", &["write"], &["looks_up"]);
}

#[test]
fn what_is_not_found_by_name_is_said_as_by_the_loader() {
    trap_with("lookup/missing", &[], &["looks_up"]);
}
