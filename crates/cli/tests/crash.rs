//! `heddle crash` as a program: what it prints, what it writes, how it ends.

mod common;

use common::{Place, command, heddle};
use std::process::Stdio;

const WORKLOAD: &str = "create /a\nmkdir /d\nwrite /a 0 5000\nrename /a /d/b\nfsync /d/b\n";

fn place_with(workload: &str) -> (Place, String) {
    let place = Place::new();
    let path = place.path("w.txt");
    std::fs::write(&path, workload).unwrap();
    let path = path.display().to_string();
    (place, path)
}

#[test]
fn a_workload_is_judged_and_the_counts_are_json() {
    let (_place, path) = place_with(WORKLOAD);
    let said = heddle(&["crash", "--workload", &path, "--images", "16", "--random", "2", "--json", "-"]).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(json["states"].as_u64().unwrap() >= json["images"].as_u64().unwrap());
    assert!(json["images"].as_u64().unwrap() > 20 && json["seconds"].as_f64().is_some());
    assert_eq!(json["failures"], 0);
}

#[test]
fn emitted_images_say_what_had_returned_and_each_is_an_image() {
    let (place, path) = place_with(WORKLOAD);
    let dir = place.text("images");
    heddle(&["crash", "--workload", &path, "--images", "4", "--random", "0", "--emit", &dir]).ok();
    let manifest = std::fs::read_to_string(place.path("images/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let images = manifest["images"].as_array().unwrap();
    assert!(images.len() > 10);
    assert!(images.iter().any(|i| i["running"] == 3 && i["returned"] == 2));
    assert!(images.iter().any(|i| i["running"].is_null() && i["returned"] == 5));
    for image in images {
        heddle(&["info", &place.text(&format!("images/{}", image["file"].as_str().unwrap()))]).ok();
    }
    heddle(&["crash", "--workload", &path, "--emit", &dir]).failed(1, &["images of another run"]);
}

#[test]
fn one_image_can_be_made_again() {
    let (_place, path) = place_with(WORKLOAD);
    let said = heddle(&["crash", "--workload", &path, "--at", "3.1:none", "--json", "-"]).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["images"], 1);
    heddle(&["crash", "--workload", &path, "--at", "9.1:none"]).failed(2, &["watches 5 operations"]);
    heddle(&["crash", "--workload", &path, "--at", "nowhere"]).failed(2, &["STEP.FENCE:STORES"]);
    for stores in ["some", "5-2", "1-2-3", ""] {
        let at = format!("3.1:{stores}");
        heddle(&["crash", "--workload", &path, "--at", &at]).failed(2, &["STEP.FENCE:STORES"]);
    }
    heddle(&["crash", "--workload", &path, "--at", "3.99:none"]).failed(2, &["no such fence"]);
    heddle(&["crash", "--workload", &path, "--at", "3.1:99999"]).failed(1, &["replay:", "--at 3.1:99999"]);
}

#[test]
fn a_failure_counts_although_nobody_reads_the_result() {
    let (_place, path) = place_with(WORKLOAD);
    let mut crash = command(&["crash", "--workload", &path, "--at", "3.1:99999"]);
    let mut crash = crash.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(crash.stdout.take());
    assert_eq!(crash.wait().unwrap().code(), Some(1));
}

#[test]
fn a_wrong_workload_is_refused_with_its_line() {
    let (_place, path) = place_with("create /a\nfly /a\n");
    heddle(&["crash", "--workload", &path]).failed(2, &["line 2", "fly", "rename"]);
    heddle(&["crash", "--workload", "/nowhere/w.txt"]).failed(2, &["/nowhere/w.txt"]);
}
