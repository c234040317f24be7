//! Each rule finds what was planted for it, and leaves right code alone.

use serde_json::json;

use super::source::Source;
use super::{Finding, Severity, check_file, house};

/// Rules and lines of the findings of a file of the engine.
fn found(content: &str) -> Vec<(&'static str, usize)> {
    found_in("crates/nvmfs/src/log.rs", content)
}

fn found_in(path: &str, content: &str) -> Vec<(&'static str, usize)> {
    check_file(path, content).iter().map(|finding| (finding.rule, finding.line)).collect()
}

const RIGHT: &str = r##"//! A right file: unsafe { } in a comment, and "strings" too.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// # Safety
/// `cell` is held.
unsafe fn raw(cell: &AtomicU64) -> u64 {
    let text = "unsafe { x.load(Ordering::Relaxed) } // { \" {";
    let more = r#"{ " unsafe { "#;
    let brace = ('{', '\'', b'"', '\u{7b}');
    // ORDERING: Relaxed; a counter, read by nobody who acts on it.
    let count = cell
        .load(Relaxed);
    cell.store(count, Release); // ORDERING: pairs with `read`.
    count
}

// SAFETY: I1, all its fields are atomics.
#[allow(unused)]
unsafe impl Sync for Cell {}

fn read<'a>(cell: &'a AtomicU64, region: &Region) -> u64 {
    // PERSIST: C1, the entry before its mark.
    region.fence();
    // SAFETY: I2, the lane
    // holds the cell.
    let value =
        unsafe { raw(cell) };
    let acquired = Lock::Acquire;
    match value { 0 => 1, n => n.cmp(&1) as u64 }
}

#[cfg(test)]
mod tests {
    fn t(x: &AtomicU64) { x.load(Relaxed); region.fence(); }
}
"##;

#[test]
fn a_right_file_passes() {
    assert_eq!(found(RIGHT), []);
}

#[test]
fn unsafe_without_its_reason_is_found() {
    assert_eq!(found("fn f() {\n    unsafe { g() }\n}\n"), [("safety", 2)]);
    assert_eq!(found("unsafe impl Send for X {}\n"), [("safety", 1)]);
    assert_eq!(found("fn f() {\n    let x = unsafe\n    { g() };\n}\n"), [("safety", 2)]);
    let a_reason_speaks_for_one =
        "fn f() {\n    // SAFETY: I1.\n    unsafe { g() };\n    unsafe { g() };\n}\n";
    assert_eq!(found(a_reason_speaks_for_one), [("safety", 4)]);
    let a_string_is_no_reason = "fn f() {\n    let s = \"SAFETY:\"; unsafe { g(s) }\n}\n";
    assert_eq!(found(a_string_is_no_reason), [("safety", 2)]);
}

#[test]
fn unsafe_needs_its_reason_in_tests_too() {
    let planted = "#[cfg(test)]\nmod tests {\n    fn f() { unsafe { g() } }\n}\n";
    assert_eq!(found(planted), [("safety", 3)]);
}

#[test]
fn a_weak_ordering_without_its_reason_is_found() {
    assert_eq!(found("fn f() {\n    x.load(Ordering::Acquire);\n}\n"), [("ordering", 2)]);
    assert_eq!(found("use a::Ordering::*;\nfn f() {\n    x.swap(1, AcqRel);\n}\n"), [("ordering", 3)]);
    let imported = "use crate::sync::{\n    Relaxed,\n    U64,\n};\nfn f() {\n    x.load(Relaxed);\n}\n";
    assert_eq!(found(imported), [("ordering", 6)]);
    let over_lines =
        "fn f() {\n    x.cas(\n        Ordering::AcqRel,\n        Ordering::Acquire,\n    );\n}\n";
    assert_eq!(found(over_lines), [("ordering", 3)], "once a statement");
}

#[test]
fn an_ordering_reason_reaches_six_lines_and_no_further() {
    let far = |lines: usize| {
        format!(
            "fn f() {{\n    // ORDERING: R.\n{}    x.load(Ordering::Relaxed);\n}}\n",
            "    g();\n".repeat(lines)
        )
    };
    assert_eq!(found(&far(6)), []);
    assert_eq!(found(&far(7)), [("ordering", 10)]);
}

#[test]
fn an_ordering_reason_that_only_points_above_is_found() {
    let first = "    // ORDERING: Relaxed, a hint.\n    x.load(Ordering::Relaxed);\n";
    let pointing = "    y.load(Ordering::Relaxed); // ORDERING: Relaxed, as above.\n";
    assert_eq!(found(&format!("fn f() {{\n{first}{pointing}}}\n")), [("ordering-above", 4)]);
}

#[test]
fn orderings_of_other_kinds_are_left_alone() {
    assert_eq!(found("fn f() {\n    x.load(Ordering::SeqCst);\n    a.cmp(b) == Ordering::Less;\n}\n"), []);
    assert_eq!(found("enum Step {\n    Acquire,\n    Release,\n}\nfn f() {\n    g(Step::Release);\n}\n"), []);
    assert_eq!(found_in("crates/arena/tests/loom.rs", "fn f() {\n    x.load(Ordering::Relaxed);\n}\n"), []);
}

#[test]
fn a_fence_without_its_reason_is_found_outside_pmem() {
    let planted = "fn f() {\n    region.fence();\n}\n";
    assert_eq!(found(planted), [("persist", 2)]);
    for call in ["region.fence_and_wait()", "region.fence_unless(bug)", "region.wait_unless(bug)"] {
        assert_eq!(found(&planted.replace("region.fence()", call)), [("persist", 2)]);
    }
    assert_eq!(found_in("crates/pmem/src/region.rs", planted), []);
}

#[test]
fn long_files_warn_and_too_long_files_fail() {
    let lines = |count: usize| "struct X;\n".repeat(count);
    let severities = |count| -> Vec<Severity> {
        check_file("crates/vfs/src/a.rs", &lines(count))
            .iter()
            .map(|finding: &Finding| finding.severity)
            .collect()
    };
    assert_eq!(severities(400), []);
    assert_eq!(severities(401), [Severity::Warning]);
    assert_eq!(severities(601), [Severity::Error]);
}

#[test]
fn a_long_function_warns_and_a_long_declaration_does_not() {
    let body = "    g();\n".repeat(69);
    assert_eq!(found(&format!("struct S;\nfn f(a: [u8; 2]) {{\n{body}}}\n")), [("function-size", 2)]);
    assert_eq!(
        found(&format!("trait T {{\n    fn f(&self, a: [u8; 2]);\n{}}}\n", "    const X: u8;\n".repeat(90))),
        []
    );
}

#[test]
fn unfinished_code_is_found() {
    for name in ["todo", "unimplemented", "dbg"] {
        assert_eq!(found(&format!("fn f() {{\n    {name}!(x);\n}}\n")), [("unfinished", 2)]);
    }
    assert_eq!(found("/// Not a todo!\nfn todo() {}\n"), []);
    for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
        assert_eq!(found_in("docs/a.md", &format!("text\n<!-- {word}: later -->\n")), [("left-to-do", 2)]);
    }
    assert_eq!(found(&format!("const TEMPLATE: &str = \"a{}\";\n", "X".repeat(6))), []);
}

#[test]
fn raw_pointers_outside_pmem_are_found() {
    let planted = "fn f(at: *mut u8) -> *const u8 {\n    at\n}\n";
    assert_eq!(found(planted), [("raw-pointer", 1)]);
    assert_eq!(found_in("crates/pmem/src/copy.rs", planted), []);
}

#[test]
fn a_question_for_the_variant_outside_its_files_is_found() {
    let asking = |question: &str| format!("fn f(core: &Core) -> bool {{\n    {question}\n}}\n");
    for question in [
        "core.variant == Variant::Nova",
        "fs.core.variant.log() == LogKind::Tail",
        "variant.locks_whole_file()",
        "core.locks.is_some()",
        "let Some(lock) = &self.locks else { return false };",
    ] {
        let planted = asking(question);
        assert_eq!(found(&planted), [("papers", 2)], "{question}");
        for file in ["papers.rs", "upkeep/relog/papers.rs", "volume.rs", "shared/fork.rs", "log/tests.rs"] {
            assert_eq!(found_in(&format!("crates/nvmfs/src/{file}"), &planted), [], "{file}");
        }
        assert_eq!(found_in("crates/f2fs/src/log.rs", &planted), []);
    }
    assert_eq!(found(&asking("core\n\n        .locks\n        .is_some()")), [("papers", 4)]);
    for other in
        ["image.variant == x", "score.locks()", "core.locks_held()", "locks.len()", "hook\n    .locks()"]
    {
        assert_eq!(found(&asking(other)), [], "{other}");
    }
}

#[test]
fn a_path_of_one_machine_is_found() {
    for folder in ["home", "root", "Users", "work"] {
        assert_eq!(found_in("docs/a.md", &format!("see /{folder}/me\n")), [("machine-path", 1)]);
        assert_eq!(found_in("docs/a.md", &format!("see src/{folder}/me.rs\n")), []);
    }
}

#[test]
fn a_host_is_found_and_a_standard_is_not() {
    let link = |host: &str| format!("see {}//{host}/x\n", "https:");
    assert_eq!(found_in("crates/vfs/src/a.rs", &format!("// {}", link("doi.org"))), [("host", 1)]);
    assert_eq!(found_in("docs/a.md", &link("doi.org")), []);
    assert_eq!(found_in("docs/a.md", &link("doi.org.example.com")), [("host", 1)]);
    let format = |name: &str| format!("const A: &str = \"{}//{name}\";\n", "http:");
    assert_eq!(found_in("xtask/src/a.rs", &format("www.w3.org/2000/svg")), [], "the name of a format");
    assert_eq!(found_in("xtask/src/a.rs", &format("www.w3.org/2000/svg/x")), [("host", 1)]);
    assert_eq!(found_in(".cargo/config.toml", "[source.crates-io]\n"), [("host", 1)]);
}

#[test]
fn unclean_lines_are_found() {
    assert_eq!(found("fn f() {} \n"), [("trailing-space", 1)]);
    assert_eq!(found("fn f() {}"), [("last-line", 1)]);
    assert_eq!(found(&format!("// {}\n", "é".repeat(137))), []);
    assert_eq!(found(&format!("// {}\n", "é".repeat(138))), [("width", 1)]);
    assert_eq!(found(&format!("//! | {} |\n", "é".repeat(200))), [], "a row of a table cannot be broken");
}

#[test]
fn a_reason_that_holds_throughout_reaches_to_the_end_of_its_function() {
    let gap = "    y();\n".repeat(9);
    let two = |word: &str| {
        let first =
            format!("fn f() {{\n    // ORDERING: Relaxed {word}.\n{gap}    x.load(Ordering::Relaxed);\n}}\n");
        format!("{first}fn g() {{\n    x.load(Ordering::Relaxed);\n}}\n")
    };
    assert_eq!(found(&two("here")), [("ordering", 12), ("ordering", 15)]);
    assert_eq!(found(&two("throughout")), [("ordering", 15)]);
    assert_eq!(found(&two("throughout this file")), []);
}

fn rules(findings: Vec<Finding>) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let package = |name: &str, on: &str, kind: Option<&str>| {
        let dependencies = json!([{"name": on, "kind": kind}]);
        json!({"packages": [{"name": name, "description": "x", "dependencies": dependencies}]})
    };
    let rules_of = |name, on, kind| rules(house::check_packages(&package(name, on, kind)));
    assert_eq!(rules_of("heddle-vfs", "heddle-nvmfs", None), ["arrows"]);
    assert_eq!(rules_of("heddle-fuse", "heddle-nvmfs", None), ["arrows"]);
    assert_eq!(rules_of("heddle-nvmfs", "heddle-fxmark", Some("dev")), ["arrows"]);
    assert_eq!(rules_of("heddle-attic", "libc", None), ["arrows"], "a crate without a room");
    assert!(rules_of("heddle-fuse", "heddle-nvmfs", Some("dev")).is_empty());
    assert!(rules_of("heddle-range-lock", "heddle-arena", None).is_empty());
    assert!(rules_of("heddle-nvmfs", "zerocopy", None).is_empty());
}

#[test]
fn a_crate_that_does_not_say_what_it_is_is_found() {
    let silent = json!({"packages": [{"name": "heddle-vfs", "description": null, "dependencies": []}]});
    assert_eq!(rules(house::check_packages(&silent)), ["description"]);
    assert!(house::check_crate_root("crates/vfs/src/lib.rs", "mod a;\n").is_some());
    assert!(house::check_crate_root("crates/vfs/src/lib.rs", "//! What it is.\n").is_none());
}

#[test]
fn an_empty_change_log_is_found() {
    assert!(house::check_change_log("# Changes\n").is_some());
    assert!(house::check_change_log("# Changes\n\n## 0.1.0\n\n- Files can be read.\n").is_none());
}

#[test]
fn comments_and_strings_over_several_lines_are_no_code() {
    let source = Source::new(
        "a.rs",
        "/* unsafe /* { */\n still */ let a = \"x\n{ unsafe \" ;\nlet l: &'static str;\n",
    );
    let code: Vec<&str> = source.lines.iter().map(|line| line.code.trim()).collect();
    assert_eq!(code, ["", "let a = \"", "\" ;", "let l: &'static str;"]);
}

#[test]
fn a_test_name_has_at_most_twelve_words() {
    let test = |name: &str| format!("struct S;\n#[test]\nfn {name}() {{}}\n");
    assert!(found(&test("a_b_c_d_e_f_g_h_i_j_k_l")).is_empty());
    assert_eq!(found(&test("a_b_c_d_e_f_g_h_i_j_k_l_m")), [("test-name", 3)]);
}
