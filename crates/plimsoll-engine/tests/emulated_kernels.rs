//! The card's kernels, run on the CPU a thread a fiber, beside numpy: see `kernels/emulated`. Needs Python with numpy and a
//! C++ compiler; without them the test says so and passes.
#![allow(clippy::print_stdout)] // why it was skipped

use std::process::Command;

fn computes_what_numpy_does(script: &str) {
    let Some(python) = std::env::var_os("PLIMSOLL_PYTHON") else {
        println!("skipped: PLIMSOLL_PYTHON is not set");
        return;
    };
    if Command::new("g++").arg("--version").output().is_err() {
        println!("skipped: there is no g++");
        return;
    }
    let script = format!("{}/kernels/emulated/{script}", env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(python).arg(script).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}\n{}", said(&ran.stdout), said(&ran.stderr));
}

#[test]
fn every_kernel_computes_what_numpy_does() {
    computes_what_numpy_does("test_ops.py");
}

#[test]
fn every_kernel_of_series_computes_what_numpy_does() {
    computes_what_numpy_does("test_series.py");
}
