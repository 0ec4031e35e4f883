//! The files, read by the tools that they are for: docker compose, systemd, bash, kubectl. What is not installed is skipped, and
//! said to be.

mod deployed;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use deployed::{ODD, file, native, odd, skip, tool};
use plimsoll_deploy::{Deployment, Target, render};
use plimsoll_machine::Bytes;
use serde_json::Value;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_string()).collect()
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What `docker compose config` makes of a deployment.
fn composed(deployment: &Deployment) -> Option<Value> {
    let compose = match tool(&[(&["docker", "compose"], "version"), (&["docker-compose"], "version")]) {
        Ok(words) => words,
        Err(why) => {
            skip(&why);
            return None;
        }
    };
    let (folder, path) = file("compose.yaml", &render(Target::Compose, deployment).unwrap());
    let output = Command::new(&compose[0])
        .args(&compose[1..])
        .arg("-f")
        .arg(&path)
        .arg("config")
        .current_dir(folder.path())
        .env("AWS_SECRET_ACCESS_KEY", "s3cret-value")
        .env_remove("AWS_ACCESS_KEY_ID")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    Some(yaml(&String::from_utf8(output.stdout).unwrap()))
}

#[test]
fn docker_compose_reads_the_words_that_were_written() {
    let Some(config) = composed(&odd()) else { return };
    let service = &config["services"]["chat"];
    // What it prints can be read again, so a dollar is doubled.
    let undone: Vec<String> = words(&service["command"]).iter().map(|word| word.replace("$$", "$")).collect();
    assert_eq!(undone, ODD);
    assert_eq!(words(&service["entrypoint"]), ["plimsoll"]);
    let volumes = service["volumes"].as_array().unwrap();
    assert_eq!(volumes[0]["source"].as_str().unwrap().replace("$$", "$"), "/data/b c: $x'\"");
    assert_eq!((&volumes[0]["read_only"], &volumes[1]["read_only"]), (&Value::Null, &Value::Bool(true)));
    let devices = &service["deploy"]["resources"]["reservations"]["devices"][0];
    assert_eq!((devices["count"].as_u64(), words(&devices["capabilities"])), (Some(4), vec!["gpu".to_string()]));
}

/// A size as versions of compose print it: bytes, perhaps as a text, perhaps with a unit.
fn mib(value: &Value) -> u64 {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
    match text.strip_suffix('m') {
        Some(mib) => mib.parse().unwrap(),
        None => text.parse::<u64>().unwrap() >> 20,
    }
}

#[test]
fn docker_compose_understands_limits_stop_and_restarts_and_passes_variables_by_name() {
    let deployment = Deployment { shm: odd().shm, ..native() };
    let Some(config) = composed(&deployment) else { return };
    let service = &config["services"]["chat"];
    assert_eq!((mib(&service["mem_limit"]), mib(&service["memswap_limit"])), (3344, 3344));
    assert_eq!(mib(&service["shm_size"]), 2048);
    assert_eq!((service["stop_signal"].as_str(), service["init"].as_bool()), (Some("SIGTERM"), Some(true)));
    // Two steps and saves at 64 MiB a second, two copies at 8.
    let grace = service["stop_grace_period"].as_str().unwrap();
    assert!(["589s", "9m49s"].contains(&grace), "{grace}");
    assert_eq!(service["restart"], "on-failure:3");
    // The shell that starts it has one of the two, and that one has its value.
    let environment = &service["environment"];
    assert_eq!(environment["AWS_SECRET_ACCESS_KEY"], "s3cret-value");
    assert_eq!(environment["AWS_ACCESS_KEY_ID"], Value::Null);
}

/// What systemd's own reader makes of a unit: its complaints, and what it holds.
fn verified(deployment: &Deployment) -> Option<String> {
    if let Err(why) = tool(&[(&["systemd-analyze"], "--version")]) {
        skip(&why);
        return None;
    }
    let (_folder, path) = file("plimsoll-chat.service", &render(Target::Systemd, deployment).unwrap());
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(&path)
        .env("SYSTEMD_LOG_LEVEL", "debug")
        .output()
        .unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    let complaints: Vec<&str> = text.lines().filter(|line| line.contains("plimsoll-chat.service:")).collect();
    let bad = |line: &&&str| ["nknown", "gnoring", "nvalid", "ailed"].iter().any(|word| line.contains(word));
    assert_eq!(complaints.iter().filter(bad).collect::<Vec<_>>(), Vec::<&&str>::new(), "{text}");
    Some(text)
}

/// The value of a line `Name: value` of systemd's dump.
fn dumped<'a>(dump: &'a str, name: &str) -> &'a str {
    let line = dump.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no `{name}` in\n{dump}"))
}

#[test]
fn systemd_reads_the_unit_without_a_complaint() {
    let Some(dump) = verified(&native()) else { return };
    let shown = [
        ("KillMode", "mixed"),
        ("OOMPolicy", "continue"),
        ("TimeoutStopSec", "9min 49s"),
        ("Restart", "on-failure"),
        ("WorkingDirectory", "/tmp"),
        ("MemoryMax", &(3344u64 << 20).to_string()),
        ("MemorySwapMax", "0"),
    ];
    for (name, value) in shown {
        assert!(dumped(&dump, name).starts_with(value), "{name}: {}", dumped(&dump, name));
    }
}

#[test]
fn systemd_reads_the_words_that_were_written() {
    let deployment = Deployment { folder: "/tmp/100% a".into(), ..odd() };
    let Some(dump) = verified(&deployment) else { return };
    assert_eq!(dumped(&dump, "WorkingDirectory"), "/tmp/100% a");
    assert!(dump.contains("XDG_CACHE_HOME=/a b/$c/%d/\"e\""), "{dump}");
    // Shown before `$$` becomes `$`.
    let read: Vec<String> = shown(dumped(&dump, "Command Line")).iter().map(|word| word.replace("$$", "$")).collect();
    assert_eq!(read[1..], *ODD);
}

/// Words as systemd shows them: bare, or in quotes with C's escapes.
fn shown(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<Vec<u8>>, false);
    let mut bytes = line.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            b' ' if !quoted => words.extend(word.take()),
            b'\\' => {
                let escaped = bytes.next().unwrap();
                let real = match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'0'..=b'7' => {
                        let octal = |digit: u8| digit - b'0';
                        let rest: Vec<u8> = bytes.by_ref().take(2).collect();
                        octal(escaped) * 64 + octal(rest[0]) * 8 + octal(rest[1])
                    }
                    other => other,
                };
                word.get_or_insert_default().push(real);
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
}

#[test]
fn kubernetes_types_keep_every_field_that_was_written() {
    if let Err(why) = tool(&[(&["kubectl"], "version --client")]) {
        return skip(&why);
    }
    for deployment in [native(), odd()] {
        let text = render(Target::K8s, &deployment).unwrap();
        let (_folder, path) = file("job.yaml", &text);
        // Reads it into the types of the API and writes those; what they do not have is lost.
        let mut command = Command::new("kubectl");
        command.args(["set", "image", "--local", "chat=other:1", "-o", "json", "-f"]).arg(&path);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
        let mut ours = yaml(&text);
        ours["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1".into();
        let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
        missing("", &ours, &theirs);
    }
}

/// Fails where something of `ours` is not in `theirs`. Quantities come back in a form of their own.
fn missing(at: &str, ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(_)) => {
            ours.iter().for_each(|(key, value)| missing(&format!("{at}.{key}"), value, &theirs[key.as_str()]));
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            ours.iter()
                .zip(theirs)
                .enumerate()
                .for_each(|(n, (ours, theirs))| missing(&format!("{at}[{n}]"), ours, theirs));
        }
        (Value::Number(ours), Value::String(theirs)) => assert_eq!(&ours.to_string(), theirs, "{at}"),
        (Value::String(ours), Value::String(theirs)) if at.ends_with("memory") || at.ends_with("sizeLimit") => {
            let mib = |text: &str| match (text.strip_suffix("Mi"), text.strip_suffix("Gi")) {
                (Some(mib), _) => mib.parse::<u64>().unwrap(),
                (_, Some(gib)) => gib.parse::<u64>().unwrap() << 10,
                _ => panic!("{at}: {text}"),
            };
            assert_eq!(mib(ours), mib(theirs), "{at}");
        }
        _ => assert_eq!(ours, theirs, "{at}"),
    }
}

/// Runs the script with a program that notes its words and ends with `code`, and a `scontrol` that notes that it was called.
/// Neither Slurm nor plimsoll is under test here, but what bash makes of the script.
fn batch(deployment: &Deployment, program: &str, signal: Option<&str>, restarts: &str) -> (Option<i32>, String, bool) {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs_err::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_string()
    };
    put("scontrol", &format!("#!/bin/bash\necho \"$@\" > {}/requeued\n", folder.path().display()));
    let program = put("a program", &format!("#!/bin/bash\n{program}\n"));
    let script = render(Target::Slurm, &Deployment { program, ..deployment.clone() }).unwrap();
    let script = put("job.sh", &script);
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut child = Command::new(script)
        .env("PATH", path)
        .env("SLURM_JOB_ID", "77")
        .env("SLURM_RESTART_COUNT", restarts)
        .env("NOTES", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(signal) = signal {
        until(|| folder.path().join("ready").exists());
        let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let code = child.wait().unwrap().code();
    let noted = fs_err::read_to_string(folder.path().join("words")).unwrap_or_default();
    (code, noted, requeued(folder.path()))
}

fn requeued(folder: &Path) -> bool {
    fs_err::read_to_string(folder.join("requeued")).is_ok_and(|text| text == "requeue 77\n")
}

fn until(done: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !done() {
        assert!(started.elapsed().as_secs() < 60, "it never came to be");
        std::thread::yield_now();
    }
}

#[test]
fn bash_reads_the_words_and_the_folder_that_were_written() {
    let folder = tempfile::Builder::new().prefix("it's $HOME 100% \"a\" ").tempdir().unwrap();
    let deployment = Deployment { folder: folder.path().to_str().unwrap().into(), ..odd() };
    let note = "{ printf '%s\\0' \"$PWD\" \"$XDG_CACHE_HOME\" \"$@\"; } > \"$NOTES/words\"";
    let (code, noted, _) = batch(&deployment, note, None, "0");
    assert_eq!(code, Some(0));
    let read: Vec<&str> = noted.split_terminator('\0').collect();
    assert_eq!(read[0], folder.path().to_str().unwrap());
    assert_eq!(read[1], odd().set[0].1);
    assert_eq!(read[2..], *ODD);
}

#[test]
fn a_job_that_cannot_fit_is_not_queued_again_and_a_killed_one_a_few_times() {
    for code in [0, 1, 2, 3, 4] {
        assert_eq!(batch(&native(), &format!("exit {code}"), None, "0"), (Some(code), String::new(), false), "{code}");
    }
    assert_eq!(batch(&native(), "kill -9 $$", None, "0"), (Some(137), String::new(), true));
    assert_eq!(batch(&native(), "kill -9 $$", None, "3"), (Some(137), String::new(), false));
}

#[test]
fn a_job_whose_time_is_over_saves_and_is_queued_again_and_a_cancelled_one_only_saves() {
    // Asked once, it takes a while, and ends with the code for a stop; asked twice, it would not.
    let saves = "asked=0\ntrap 'asked=$((asked + 1))' TERM\n: > \"$NOTES/ready\"\n\
                 while [ $asked = 0 ]; do sleep 0.02; done\nsleep 0.2\necho $asked > \"$NOTES/words\"\nexit 4";
    assert_eq!(batch(&native(), saves, Some("USR1"), "9"), (Some(4), "1\n".into(), true));
    assert_eq!(batch(&native(), saves, Some("TERM"), "0"), (Some(4), "1\n".into(), false));
}

#[test]
fn slurm_accepts_the_script() {
    // The program may be here without a cluster.
    if let Err(why) = tool(&[(&["sinfo"], "--noheader")]) {
        return skip(&why);
    }
    let deployment = Deployment { cores: 1, memory: plimsoll_deploy::Limit::over(Bytes::mib(64), "plan"), ..native() };
    let (_folder, path) = file("job.sbatch", &render(Target::Slurm, &deployment).unwrap());
    let output = Command::new("sbatch").arg("--test-only").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}
