//! A program whose file lies in large pieces of the page cache is resident in more memory than one in small ones; its plan knows.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn a_program_that_was_written_in_large_pieces_keeps_its_plan() {
    let dir = tempfile::tempdir().unwrap();
    let program = fs_err::read(env!("CARGO_BIN_EXE_plimsoll")).unwrap();
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/chat/job.toml");
    for piece in [128 << 10, 256 << 10, 1 << 20] {
        // Since Linux 6.18 a fault maps the whole piece; before, it maps 64 KiB of any.
        let copy = dir.path().join(format!("plimsoll-{piece}"));
        let mut file = fs_err::File::create(&copy).unwrap();
        program.chunks(piece).for_each(|bytes| file.write_all(bytes).unwrap());
        drop(file);
        fs_err::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        let out = dir.path().join(format!("run-{piece}"));
        let said = Command::new(&copy).args(["train", job, "--steps", "40", "--out"]).arg(&out).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        fs_err::remove_file(&copy).unwrap();
        let summary = fs_err::read(out.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        let bytes = |name: &str| summary[name].as_u64().unwrap();
        let (planned, peak) = (bytes("planned_ram_bytes"), bytes("peak_ram_bytes"));
        assert!(peak <= planned, "in pieces of {piece}: {peak} of {planned} bytes planned");
    }
}
