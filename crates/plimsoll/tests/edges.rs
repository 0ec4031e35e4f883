//! The crates may know each other only along the edges that the design allows (ARCHITECTURE.md).
//!
//! Dev-dependencies are held to the same edges: a test that needs more belongs into the binary's crate.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

const ALLOWED: &[(&str, &str)] = &[
    ("plimsoll-plan", "plimsoll-machine"),
    ("plimsoll-model", "plimsoll-plan"),
    ("plimsoll-data", "plimsoll-plan"),
    ("plimsoll-engine", "plimsoll-plan"),
    ("plimsoll-watch", "plimsoll-machine"),
    ("plimsoll-recover", "plimsoll-machine"),
    ("plimsoll-mirror", "plimsoll-machine"),
    ("plimsoll-mirror", "plimsoll-recover"),
    ("plimsoll-remote", "plimsoll-machine"),
    ("plimsoll-remote", "plimsoll-recover"),
    ("plimsoll-launch", "plimsoll-machine"),
    ("plimsoll-launch", "plimsoll-plan"),
    ("plimsoll-launch", "plimsoll-recover"),
    ("plimsoll-python", "plimsoll-machine"),
    ("plimsoll-deploy", "plimsoll-machine"),
    ("plimsoll-deploy", "plimsoll-recover"),
    ("plimsoll-python", "plimsoll-plan"),
    ("plimsoll-python", "plimsoll-data"),
    ("plimsoll-python", "plimsoll-model"),
    ("plimsoll-python", "plimsoll-mirror"),
];

const CRATES: &[&str] = &[
    "plimsoll",
    "plimsoll-machine",
    "plimsoll-plan",
    "plimsoll-model",
    "plimsoll-data",
    "plimsoll-engine",
    "plimsoll-watch",
    "plimsoll-recover",
    "plimsoll-mirror",
    "plimsoll-launch",
    "plimsoll-deploy",
    "plimsoll-remote",
    "plimsoll-python",
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// Edges between crates of the workspace that the design does not allow, from what `cargo metadata` says.
fn strays(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("packages");
    let members: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut strays = Vec::new();
    for package in packages {
        let from = package["name"].as_str().expect("a package has a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = dependency["name"].as_str().expect("a dependency has a name");
            let inside = members.contains(to) && dependency["path"].is_string();
            if inside && from != "plimsoll" && from != to && !ALLOWED.contains(&(from, to)) {
                strays.push(format!("{from} -> {to}"));
            }
        }
    }
    strays
}

#[test]
fn no_crate_knows_more_than_the_design_allows() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() >= 8, "cargo metadata shows only {} crates", packages.len());
    for package in packages {
        let name = package["name"].as_str().expect("a package has a name");
        assert!(CRATES.contains(&name), "`{name}` is not a crate of the design");
    }
    assert_eq!(strays(&metadata), Vec::<String>::new());
}

#[test]
fn a_stray_edge_is_seen() {
    let package = |name: &str, to: &str| serde_json::json!({ "name": name, "dependencies": [{ "name": to, "path": "/x", "kind": null }] });
    let metadata = serde_json::json!({ "packages": [
        package("plimsoll-engine", "plimsoll-data"),
        package("plimsoll-data", "plimsoll-plan"),
        package("plimsoll-plan", "plimsoll-machine"),
        package("plimsoll", "plimsoll-engine"),
    ] });
    assert_eq!(strays(&metadata), ["plimsoll-engine -> plimsoll-data"]);
}
