//! `docker compose`: one service.
//!
//! Compose cannot tell exit codes apart, so a failure is answered by a small number of restarts and then by none: a job that
//! cannot fit is refused a few times within seconds and stays down. Plimsoll itself answers the deaths of its worker.

use crate::quote::{comment, compose as quoted};
use crate::{Deployment, Kind, RESTARTS};

/// The compose file.
pub fn compose(deployment: &Deployment) -> String {
    let d = deployment;
    let mut out = d.head(&[
        "Start, or go on after a stop or a reboot: docker compose up -d",
        &d.stopped_by("docker compose stop"),
    ]);
    out += &format!("services:\n  {}:\n    image: {}\n", quoted(d.name.as_str()), quoted(&d.image));
    out += "    entrypoint: [\"plimsoll\"]\n    command:\n";
    d.words.iter().for_each(|word| out += &format!("      - {}\n", quoted(word)));
    out += &format!("    working_dir: {}\n", quoted(&d.folder));
    out += &format!("    user: \"{}:{}\"\n", d.owner.0, d.owner.1);
    out += "    # Hands on signals and buries what a trainer leaves behind.\n    init: true\n";
    out += "    stop_signal: SIGTERM\n";
    out += &format!("    # {}\n    stop_grace_period: {}s\n", comment(&d.grace.says), d.grace.seconds);
    out += "    # A job that is wrong or cannot fit stays down after that; a finished one is not started again.\n";
    out += &format!("    restart: \"on-failure:{RESTARTS}\"\n");
    let mib = d.memory.mib();
    out += &format!("    # {}. The same figure twice: no swap.\n", comment(&d.memory.says()));
    out += &format!("    mem_limit: {mib}m\n    memswap_limit: {mib}m\n");
    if let Some(shm) = d.shm {
        out += "    # Batches of loader processes and messages between ranks lie there; counted in the limit.\n";
        out += &format!("    shm_size: {}m\n", shm.0.div_ceil(1 << 20));
    }
    let passed = d.variables.iter().map(|name| (quoted(name), true));
    let set = d.set.iter().map(|(name, value)| (quoted(&format!("{name}={value}")), false));
    let driver = (d.cards > 0).then(|| (quoted("NVIDIA_DRIVER_CAPABILITIES=compute,utility"), false));
    let all: Vec<(String, bool)> = set.chain(driver).chain(passed).collect();
    if !all.is_empty() {
        out += "    environment:\n";
    }
    let mut told = false;
    for (line, by_name) in all {
        if by_name && !told {
            out += "      # By name: the values are those of the shell that starts it, or of an .env file beside this one.\n";
            told = true;
        }
        out += &format!("      - {line}\n");
    }
    if !d.mounts.is_empty() {
        out += "    volumes:\n";
    }
    for mount in &d.mounts {
        let path = quoted(&mount.path);
        out += &format!("      - type: bind\n        source: {path}\n        target: {path}\n");
        if !mount.written {
            out += "        read_only: true\n";
        }
    }
    out += "    security_opt: [\"no-new-privileges:true\"]\n";
    if d.kind == Kind::Native {
        out += "    cap_drop: [\"ALL\"]\n";
    }
    out +=
        "    logging:\n      driver: json-file\n      options:\n        max-size: \"10m\"\n        max-file: \"3\"\n";
    if d.cards > 0 {
        out +=
            "    deploy:\n      resources:\n        reservations:\n          devices:\n            - driver: nvidia\n";
        out += &format!("              count: {}\n              capabilities: [\"gpu\"]\n", d.cards);
    }
    out
}
