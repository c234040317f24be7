//! A climbing arrow and a circle are found; what stands in order passes.

use super::graph::Graph;
use super::table::{Circle, Exception};
use super::{Rules, check_graph};

const LAYERS: &[&[&str]] = &[&["ground"], &["middle", "middle::low"], &["top"]];

fn graph(files: &[(&str, &str)]) -> Graph {
    let file = |(path, text): &(&str, &str)| (format!("crates/x/src/{path}"), (*text).to_owned());
    let mut files: Vec<(String, String)> = files.iter().map(file).collect();
    files.push(("crates/x/src/lib.rs".into(), String::new()));
    Graph::of(&files, "crates/x/src")
}

fn in_order<'t>() -> Rules<'t> {
    Rules { name: "crates/x", layers: Some(LAYERS), exceptions: Vec::new(), circles: Vec::new() }
}

/// Rules and lines of what is found in three modules with this text in them.
fn found(ground: &str, middle: &str, top: &str, rules: &Rules<'_>) -> Vec<(&'static str, usize)> {
    let graph =
        graph(&[("ground.rs", ground), ("middle.rs", middle), ("middle/low.rs", ""), ("top/mod.rs", top)]);
    check_graph(&graph, rules).iter().map(|finding| (finding.rule, finding.line)).collect()
}

#[test]
fn arrows_that_point_down_pass() {
    let top = "use crate::{ground::A, middle as m};\nfn f() { m::low::g(); crate::ground::h() }\n";
    assert_eq!(found("", "use crate::ground;\n", top, &in_order()), []);
}

#[test]
fn an_import_that_climbs_is_found() {
    let planted = "use std::io;\nuse crate::{\n    middle::{self, low},\n};\n";
    assert_eq!(found(planted, "", "", &in_order()), [("module-order", 3), ("module-order", 3)]);
}

#[test]
fn a_path_in_code_that_climbs_is_found() {
    assert_eq!(found("fn f() {\n    super::top::g();\n}\n", "", "", &in_order()), [("module-order", 2)]);
    let by_its_parent = "use super::top as t;\n";
    assert_eq!(found("", by_its_parent, "", &in_order()), [("module-order", 1)]);
}

#[test]
fn tests_comments_and_strings_may_name_what_they_like() {
    let words = "// crate::top::f\nconst S: &str = \"crate::top::f\";\n";
    let of_tests = "#[cfg(test)]\nuse crate::top;\n#[cfg(test)]\nmod tests {\n    use crate::top::f;\n}\n";
    assert_eq!(found(words, "", "", &in_order()), []);
    assert_eq!(found(of_tests, "", "", &in_order()), []);
    let modules = graph(&[
        ("a.rs", "#[cfg(all(test, loom))]\nmod models;\n"),
        ("a/models/b.rs", "use crate::c;\n"),
        ("c.rs", ""),
    ]);
    assert_eq!(modules.arrows, []);
    assert_eq!(modules.modules.len(), 2);
}

#[test]
fn an_exception_lets_one_arrow_climb_and_must_be_needed() {
    let exception = Exception { folder: "crates/x", from: "ground", to: "top", reason: "a test" };
    let rules = Rules { exceptions: vec![&exception], ..in_order() };
    assert_eq!(found("use crate::top;\n", "", "", &rules), []);
    assert_eq!(found("use crate::top;\nuse crate::middle;\n", "", "", &rules), [("module-order", 2)]);
    assert_eq!(found("", "", "", &rules), [("module-order", 1)], "nothing needs it");
}

#[test]
fn a_module_without_a_floor_is_found() {
    let graph = graph(&[
        ("ground.rs", ""),
        ("middle.rs", ""),
        ("middle/low.rs", ""),
        ("top.rs", ""),
        ("cellar.rs", ""),
    ]);
    let found: Vec<String> =
        check_graph(&graph, &in_order()).into_iter().map(|finding| finding.path).collect();
    assert_eq!(found, ["crates/x/src/cellar.rs"]);
}

#[test]
fn a_circle_is_found_on_a_floor_and_without_an_order() {
    let (low, middle) = ("use crate::middle;\n", "use crate::middle::low::f;\n");
    let files = [("ground.rs", ""), ("middle.rs", middle), ("middle/low.rs", low), ("top.rs", "")];
    let circle = |rules: &Rules<'_>, files: &[(&str, &str)]| -> Vec<&str> {
        check_graph(&graph(files), rules).iter().map(|finding| finding.rule).collect()
    };
    assert_eq!(circle(&in_order(), &files), ["module-circle"]);
    let without = Rules { layers: None, ..in_order() };
    assert_eq!(circle(&without, &files), [""; 0], "a file and its folder are one module there");
    let three = [
        ("a.rs", "use crate::b;\n"),
        ("b.rs", "use crate::c;\n"),
        ("c/d.rs", "use crate::a;\n"),
        ("c.rs", ""),
    ];
    assert_eq!(circle(&without, &three), ["module-circle"]);
    let known = Circle { folder: "crates/x", modules: &["a", "b", "c"], reason: "a test" };
    let known = Rules { circles: vec![&known], ..without };
    assert_eq!(circle(&known, &three), [""; 0]);
    assert_eq!(circle(&known, &three[1..]), ["module-circle"; 3], "it is gone");
}
