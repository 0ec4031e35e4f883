//! A systemd service.
//!
//! Exit codes are told apart: what is wrong, cannot fit or was given up is not started again, what gave way to others (4, saved)
//! is, after a pause. The kernel's kill of a worker must not take the supervisor with it (`OOMPolicy`), and only the supervisor hears
//! the stop (`KillMode`).

use plimsoll_recover::ExitCode;

use crate::quote::{comment, systemd as quoted};
use crate::{DeployError, Deployment, FINAL_HERE, RESTARTS};

/// The unit file.
pub fn systemd(deployment: &Deployment) -> Result<String, DeployError> {
    let d = deployment;
    let name = &d.name;
    let mut out = d.head(&[
        &format!("Put it at /etc/systemd/system/plimsoll-{name}.service, then: systemctl enable --now plimsoll-{name}"),
        &d.stopped_by(&format!("systemctl stop plimsoll-{name}")),
    ]);
    out +=
        &format!("\n[Unit]\nDescription=plimsoll: {name}\nWants=network-online.target\nAfter=network-online.target\n");
    out += &format!("StartLimitIntervalSec=1h\nStartLimitBurst={RESTARTS}\n");
    out += "\n[Service]\nType=exec\n";
    if d.owner.0 != 0 {
        out += &format!("User={}\nGroup={}\n", d.owner.0, d.owner.1);
    }
    out += &format!("WorkingDirectory={}\n", bare_path(&d.folder, "the folder to run in")?);
    for (name, value) in &d.set {
        out += &format!("Environment={}\n", literal(&format!("{name}={value}")));
    }
    if !d.variables.is_empty() {
        out += &format!(
            "# By name. Values: lines NAME=value in this file, readable by root alone (mode 0600).\n# {}\n",
            d.variables.join(" ")
        );
        out += &format!("EnvironmentFile=-/etc/plimsoll/{name}.env\nPassEnvironment={}\n", d.variables.join(" "));
    }
    let words = d.words.iter().map(|word| quoted(word));
    let line: Vec<String> = std::iter::once(literal(&d.program)).chain(words).collect();
    out += &format!("ExecStart={}\n", line.join(" "));
    out += "# The supervisor alone is asked to stop; it sees to the others.\n";
    out += "KillMode=mixed\nKillSignal=SIGTERM\n";
    out += &format!("# {}\nTimeoutStopSec={}\n", comment(&d.grace.says), d.grace.seconds);
    let (stopped, last) = (ExitCode::Stopped.code(), FINAL_HERE.map(|code| code.code().to_string()).join(" "));
    out += &format!(
        "# {stopped}: can go on later. {last}: given up, wrong, or cannot fit; another start would end the same. The rest is its own death.\n"
    );
    out += &format!("SuccessExitStatus={stopped}\nRestart=on-failure\nRestartForceExitStatus={stopped}\n");
    out += &format!("RestartPreventExitStatus={last}\nRestartSec=30\n");
    out += &format!("# {}.\nMemoryMax={}M\nMemorySwapMax=0\n", comment(&d.memory.says()), d.memory.mib());
    out += "# The supervisor answers a worker's death by memory; it needs cgroups of its own below this one.\n";
    out += "OOMPolicy=continue\nDelegate=yes\nNoNewPrivileges=yes\n";
    out += "\n[Install]\nWantedBy=multi-user.target\n";
    Ok(out)
}

/// A path of a setting that takes the rest of its line as it is, but for specifiers.
fn bare_path(path: &str, what: &'static str) -> Result<String, DeployError> {
    let wrong = |found| DeployError::Path { target: "systemd", path: comment(path), what, found };
    if path.chars().any(char::is_control) {
        return Err(wrong("a line end or another control character"));
    }
    if path.ends_with(char::is_whitespace) || path.ends_with('\\') {
        return Err(wrong("a blank or a backslash at its end"));
    }
    Ok(path.replace('%', "%%"))
}

/// A word where `$` means nothing: a variable's setting, or the program itself.
fn literal(word: &str) -> String {
    quoted(word).replace("$$", "$")
}
