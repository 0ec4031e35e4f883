//! The files, read by the tools that they are for: docker compose, systemd, kubectl. What is not installed is skipped, and
//! said to be.

mod deployed;

use std::process::{Command, Output};

use deployed::{ODD, file, native, odd, skip, tool, tools};
use plimsoll_deploy::{Deployment, Target, render};
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

/// Where a plugin of docker's lies that is a program by itself.
const PLUGIN: &str = "/usr/local/libexec/docker/cli-plugins/docker-compose";

/// What `docker compose config` makes of a deployment, each version that is here by itself.
fn composed(deployment: &Deployment) -> Vec<(String, Value)> {
    let ways: [(&[&str], &str); 3] =
        [(&["docker", "compose"], "version"), (&["docker-compose"], "version"), (&[PLUGIN], "version")];
    let found = tools(&ways).unwrap_or_else(|why| {
        skip(&why);
        Vec::new()
    });
    let config = |compose: Vec<String>| {
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
        assert!(output.status.success(), "{compose:?}: {}", text_of(&output));
        // Standard error has its warnings: of a word that it does not know, say.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{compose:?}");
        (compose.join(" "), yaml(&String::from_utf8(output.stdout).unwrap()))
    };
    found.into_iter().map(config).collect()
}

#[test]
fn docker_compose_reads_the_words_that_were_written() {
    for (by, config) in composed(&odd()) {
        let service = &config["services"]["chat"];
        // What it prints can be read again, so a dollar is doubled.
        let undone: Vec<String> = words(&service["command"]).iter().map(|word| word.replace("$$", "$")).collect();
        assert_eq!(undone, ODD);
        assert_eq!(words(&service["entrypoint"]), ["plimsoll"]);
        let volumes = service["volumes"].as_array().unwrap();
        assert_eq!(volumes[0]["source"].as_str().unwrap().replace("$$", "$"), "/data/b c: $x'\"");
        assert_eq!((&volumes[0]["read_only"], &volumes[1]["read_only"]), (&Value::Null, &Value::Bool(true)));
        let devices = &service["deploy"]["resources"]["reservations"]["devices"][0];
        assert_eq!(
            (devices["count"].as_u64(), words(&devices["capabilities"])),
            (Some(4), vec!["gpu".to_string()]),
            "{by}"
        );
    }
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
    for (by, config) in composed(&deployment) {
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
        assert_eq!(environment["AWS_ACCESS_KEY_ID"], Value::Null, "{by}");
    }
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

/// Python with the published schemas of Kubernetes' API.
fn schemas() -> Result<Vec<String>, String> {
    let python = std::env::var("PLIMSOLL_PYTHON")
        .unwrap_or_else(|_| format!("{}/../../.venv/bin/python", env!("CARGO_MANIFEST_DIR")));
    tool(&[(&[&python, "-m", "kubernetes_validate"], "--version")])
}

#[test]
fn the_manifest_is_what_the_published_schema_says_and_nothing_beside() {
    let validate = match schemas() {
        Ok(words) => words,
        Err(why) => return skip(&why),
    };
    let validated = |text: &str, version: &str| {
        let (_folder, path) = file("job.yaml", text);
        let mut command = Command::new(&validate[0]);
        command.args(&validate[1..]).args(["--strict", "--no-warn", "--kubernetes-version", version]).arg(path);
        command.output().unwrap()
    };
    // That of 1.28 wants conditions of the pod beside exit codes, which the API itself refuses; it was mended in 1.29.
    for (deployment, version) in [(native(), "1.29"), (odd(), "1.29"), (native(), "1.37"), (odd(), "1.37")] {
        let text = render(Target::K8s, &deployment).unwrap();
        let output = validated(&text, version);
        assert!(output.status.success(), "{version}: {}", text_of(&output));
        // A word that is misspelt, and one that must be there.
        for (right, wrong) in
            [("podFailurePolicy:", "podFailurePolice:"), ("            - name: folder-", "            - nam: folder-")]
        {
            assert!(text.contains(right), "{text}");
            assert!(!validated(&text.replacen(right, wrong, 1), version).status.success(), "{version}: {wrong}");
        }
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
