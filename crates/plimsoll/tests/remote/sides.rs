//! More than one near side, and a near side that changes its mind: what is whose on the far one.

use super::*;

#[test]
fn what_is_gone_from_a_model_here_is_gone_there_and_nothing_else_is() {
    let pair = ready!();
    let workshop = workshop();
    let job = job(&workshop);
    let model = |name: &str| workshop.path("model").join(name);
    for name in ["model.safetensors", "chat_template.jinja", "notes.md"] {
        fs_err::write(model(name), "of before").unwrap();
    }
    let push = |words: &[&str]| {
        pair.remote(&[&["push", "box", &job, "--init", "weights"], words].concat()).must(0, &[]).json()
    };
    push(&["--json"]);
    // Of another init, with a folder of its own.
    pair.remote(&["push", "box", &job]).must(0, &[]);
    let places = || {
        let mut found = Vec::new();
        for key in fs_err::read_dir(pair.far("inputs")).unwrap().map(|key| key.unwrap().path().join("model")) {
            for file in fs_err::read_dir(&key).into_iter().flatten() {
                let name = file.unwrap().file_name().into_string().unwrap();
                found.push((key.join("model.safetensors").exists() || key.join("model-1.safetensors").exists(), name));
            }
        }
        found.sort();
        found
    };
    let of = |weighted: bool, names: &[&str]| names.iter().map(|name| (weighted, name.to_string())).collect::<Vec<_>>();
    let random = ["chat_template.jinja", "config.json", "notes.md", "tokenizer.json"];
    let before = ["chat_template.jinja", "config.json", "model.safetensors", "notes.md", "tokenizer.json"];
    assert_eq!(places(), [of(false, &random), of(true, &before)].concat());
    // One file becomes shards, and the template goes: the far side must find neither of before.
    fs_err::rename(model("model.safetensors"), model("model-1.safetensors")).unwrap();
    fs_err::remove_file(model("chat_template.jinja")).unwrap();
    push(&["--json"]);
    let after = ["config.json", "model-1.safetensors", "notes.md", "tokenizer.json"];
    assert_eq!(places(), [of(false, &random), of(true, &after)].concat());
}

#[test]
fn folders_and_data_of_one_name_from_other_places_or_people_are_kept_apart() {
    let pair = ready!();
    // Two folders of one name, and the same path of somebody else.
    for (place, text) in [("a/train", "first"), ("b/train", "second")] {
        fs_err::create_dir_all(pair.near(place)).unwrap();
        fs_err::write(pair.near(place).join("train.py"), text).unwrap();
    }
    let push = |user: &str, folder: &str| {
        Said::of(pair.command_of(user, &["push", "box", "--folder", folder]).output().unwrap())
            .must(0, &[])
            .stderr
            .clone()
    };
    let told = [push("config", "a/train"), push("config", "b/train")];
    fs_err::write(pair.near("a/train/train.py"), "of somebody else").unwrap();
    let url = pair.url(pair.port);
    Said::of(pair.command_of("other", &["add", "box", &url]).output().unwrap()).must(0, &[]);
    let told = [&told[..], &[push("other", "a/train")]].concat();
    let texts: Vec<String> = told
        .iter()
        .map(|told| {
            let place = told
                .rsplit_once("box:")
                .and_then(|(_, rest)| rest.split_once(": "))
                .unwrap_or_else(|| panic!("{told}"))
                .0;
            fs_err::read_to_string(pair.far(place).join("train.py")).unwrap()
        })
        .collect();
    assert_eq!(texts, ["first", "second", "of somebody else"]);
    // Data of a job, too.
    let workshop = workshop();
    let job = job(&workshop);
    let inputs = || fs_err::read_dir(pair.far("inputs")).into_iter().flatten().count();
    let send = |user: &str| {
        Said::of(pair.command_of(user, &["push", "box", &job]).output().unwrap()).must(0, &[]).stderr.clone()
    };
    send("config");
    let mine = inputs();
    send("other");
    assert_eq!(inputs(), 2 * mine);
    send("config");
    assert_eq!(inputs(), 2 * mine);
}

#[test]
fn two_who_push_or_pull_the_same_at_once_do_not_mix_it() {
    let pair = ready!();
    pair.remote(&["status", "box"]).must(0, &[]);
    folder(&pair, 12 * MIB);
    let large = pair.near("stuff/large");
    let push = || {
        pair.command(&["push", "box", "--folder", "stuff", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = [push(), push()].map(|push| Said::of(push.wait_with_output().unwrap()).must(0, &[]).json());
    assert_same(&large, &pushed_to(&pair, "stuff").join("large"));
    // The second found what the first had sent.
    let sent: u64 = both.iter().map(|told| told["sent_bytes"].as_u64().unwrap()).sum();
    assert!(sent < 13 * MIB as u64, "{both:?}");
    // A pull of which one is under way.
    fs_err::create_dir_all(pair.far("runs")).unwrap();
    fs_err::create_dir_all(pair.far("runs/a-1")).unwrap();
    fs_err::write(pair.far("runs/a-1/journal.jsonl"), "").unwrap();
    fs_err::copy(&large, pair.far("runs/a-1/large")).unwrap();
    let proxy = Proxy::to(pair.port, &[]);
    pair.add("counted", proxy.port);
    pair.remote(&["status", "counted"]).must(0, &[]);
    let proxy = Proxy::to(pair.port, &[Fate::Wait(proxy.sent() + 100)]);
    pair.add("slow", proxy.port);
    let pull = |name: &str| ["pull", name, "a-1", "--out", "here"].map(str::to_string);
    let words = pull("slow");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let slow = pair.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("it is under way", || (proxy.met() > 0).then_some(()));
    pair.remote(&words).must(2, &["another plimsoll is writing to `here`"]);
    proxy.let_go();
    Said::of(slow.wait_with_output().unwrap()).must(0, &[]);
    assert_same(&large, &pair.near("here/large"));
}

/// What others than its owner may do with a file.
fn others(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::mode(&fs_err::metadata(path).unwrap()) & 0o077
}

#[test]
fn what_is_its_owners_alone_is_so_on_the_other_side_and_nobody_else_sees_commands() {
    let pair = ready!();
    let private = |path: &Path| {
        fs_err::write(path, "TOKEN=geheim").unwrap();
        fs_err::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    folder(&pair, 3 * MIB);
    private(&pair.near("stuff/.env"));
    fs_err::set_permissions(pair.near("stuff/large"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    pair.remote(&["push", "box", "--folder", "stuff"]).must(0, &[]);
    let there = pushed_to(&pair, "stuff");
    assert_eq!(
        ["", ".env", "large", "deep/note"].map(|name| others(&there.join(name)) != 0),
        [true, false, false, true]
    );
    assert_eq!(others(&pair.far("work")), 0);
    let again = pair.remote(&["push", "box", "--folder", "stuff", "--json"]).must(0, &[]).json();
    assert_eq!((&again["sent_bytes"], &again["unchanged"]), (&0.into(), &again["files"]));
    // And back.
    fs_err::create_dir_all(pair.far("runs/a-1")).unwrap();
    fs_err::write(pair.far("runs/a-1/journal.jsonl"), "").unwrap();
    private(&pair.far("runs/a-1/.env"));
    pair.remote(&["pull", "box", "a-1", "--out", "here"]).must(0, &[]);
    assert!(others(&pair.near("here/.env")) == 0 && others(&pair.near("here/journal.jsonl")) != 0);
    // A far folder that is made is nobody else's.
    let new = pair.path("new/far");
    pair.remote(&["add", "fresh", &format!("ssh://127.0.0.1:{}{}", pair.port, new.display())]).must(0, &[]);
    pair.remote(&["status", "fresh"]).must(0, &[]);
    assert_eq!(others(&new), 0);
}

#[test]
fn a_far_side_that_cannot_is_told_from_one_that_was_asked_for_what_cannot_be() {
    let pair = ready!();
    folder(&pair, 10);
    fs_err::write(pair.far("work"), "is no folder").unwrap();
    pair.remote(&["push", "box", "--folder", "stuff"]).must(1, &["on `127.0.0.1`", "Not a directory"]);
    fs_err::remove_file(pair.far("work")).unwrap();
    fs_err::create_dir_all(pair.far("runs/a-1")).unwrap();
    fs_err::write(pair.far("runs/a-1/journal.jsonl"), "").unwrap();
    pair.remote(&["pull", "box", "a-1", "--exclude", "[a"]).must(2, &["is not a pattern"]);
    pair.remote(&["logs", "box", "a-2"]).must(2, &["has no run `a-2`", "it has `a-1`"]);
}

#[test]
fn checkpoints_that_are_gone_there_go_here_once_newer_ones_are_whole() {
    let pair = ready!();
    let workshop = workshop();
    let run = pair.remote(&["train", "box", &job(&workshop), "--steps", "100000", "--keep", "1"]);
    let run = run.must(0, &[]).stdout.trim().to_string();
    let pull = || {
        pair.remote(&["stop", "box", &run]).must(0, &["is stopped at step"]);
        let said = pair.remote(&["pull", "box", &run, "--checkpoints", "--out", "here"]).must(0, &[]).stderr.clone();
        let steps = |at: PathBuf| {
            let names = fs_err::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<String>>()
        };
        (said, steps(pair.near("here/checkpoints")), steps(pair.far(&format!("runs/{run}/checkpoints"))))
    };
    let (_, before, _) = pull();
    pair.remote(&["resume", "box", &run]).must(0, &["by itself"]);
    let step = pair.seen(&run)["step"].as_u64().unwrap();
    until("it goes on", || (pair.seen(&run)["step"].as_u64().unwrap() > step).then_some(()));
    let (said, here, there) = pull();
    assert!(!before.is_subset(&there) && here == there, "{before:?} {here:?} {there:?}");
    assert!(said.contains("is not there any more, and was removed here"), "{said}");
    // Another run of that name, of a machine that was made anew, does not take its place.
    let (first, aside) = (pair.far(&format!("runs/{run}/journal.jsonl")), pair.path("journal"));
    fs_err::rename(&first, &aside).unwrap();
    fs_err::write(&first, fs_err::read_to_string(&aside).unwrap().replacen("unix_ms\":", "unix_ms\":1", 1)).unwrap();
    let pulled = pair.remote(&["pull", "box", &run, "--checkpoints", "--out", "here"]);
    pulled.must(2, &["`here` has another run", "name another folder with `--out`"]);
    fs_err::rename(&aside, &first).unwrap();
    // Where somebody has trained here, what is here may be his own.
    fs_err::write(pair.near("here/.lock"), "").unwrap();
    pair.remote(&["resume", "box", &run]).must(0, &["by itself"]);
    until("it goes on", || (pair.seen(&run)["step"].as_u64().unwrap() > step).then_some(()));
    let (_, both, last) = pull();
    assert!(both.is_superset(&here) && both.is_superset(&last), "{both:?} {last:?}");
}
