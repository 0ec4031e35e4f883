//! What becomes of a connection that says nothing, breaks in the middle of an answer, or is one of two; and the names of remotes.

use super::*;

/// The program on the far side is the one whose digest it is named by.
fn assert_program_is_whole(pair: &Pair) {
    let programs: Vec<PathBuf> =
        fs_err::read_dir(pair.far("bin")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(programs.len(), 1, "{programs:?}");
    let digest = Command::new("sha256sum").arg(&programs[0]).output().unwrap().stdout;
    let digest = String::from_utf8(digest).unwrap().split_whitespace().next().unwrap().to_string();
    assert!(programs[0].ends_with(format!("plimsoll-{digest}")), "{programs:?} has {digest}");
}

#[test]
fn a_far_side_that_says_nothing_is_left_with_what_it_printed() {
    let pair = pair!("ForceCommand printf 'One-time password: '; read answer");
    let said = pair.command(&["probe", "box"]).env("PLIMSOLL_SSH_PATIENCE", "2").output().unwrap();
    Said::of(said)
        .must(1, &["`127.0.0.1` says nothing for 2 s but `One-time password:`", "hint: does a login shell wait"]);
    let said = pair.command(&["probe", "box"]).env("PLIMSOLL_SSH_PATIENCE", "soon").output().unwrap();
    Said::of(said).must(2, &["PLIMSOLL_SSH_PATIENCE = `soon`: expected seconds"]);
}

#[test]
fn a_wrapper_that_keeps_the_pipes_open_is_left_as_soon() {
    let pair = ready!();
    // Killed, it leaves `cat` behind, which ends with us.
    let wrapper = pair.path("wrapper");
    fs_err::write(&wrapper, "#!/bin/sh\nprintf 'One moment: '\ncat\n:\n").unwrap();
    fs_err::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut probe = pair.command(&["probe", "box"]);
    let said = probe.env("PLIMSOLL_SSH", &wrapper).env("PLIMSOLL_SSH_PATIENCE", "1").output().unwrap();
    Said::of(said).must(1, &["`127.0.0.1` says nothing for 1 s but `One moment:`"]);
}

#[test]
#[ignore = "waits for the silence of a minute: cargo nextest run -p plimsoll --test remote --run-ignored only frozen"]
fn a_far_side_that_is_frozen_is_left_after_a_minute_and_asked_again() {
    let pair = ready!();
    let go = pair.far("go");
    pair.remote(&["status", "box"]).must(0, &[]);
    pair.wrap(&format!(
        "if [ \"$1\" = probe ] && [ ! -e {0} ]; then : > {0}; kill -STOP $PPID; exit; fi",
        go.display()
    ));
    let probe =
        pair.command(&["probe", "box", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = Said::of(probe.wait_with_output().unwrap());
    said.must(0, &["was lost: nothing was heard for 60 s", "trying again"]).json();
}

#[test]
fn two_who_bring_the_program_at_once_both_have_it_and_whole() {
    let pair = pair!("");
    // One has sent a part when its wire stands still; another one comes, goes on from there, and is done.
    let proxy = Proxy::to(pair.port, &[Fate::Wait(2 * MIB as u64)]);
    pair.add("slow", proxy.port);
    let slow =
        pair.command(&["probe", "slow", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("a part is there", || (proxy.met() > 0).then_some(()));
    pair.remote(&["probe", "box"]).must(0, &[]);
    assert_program_is_whole(&pair);
    // What it still sends must not reach the program that now has the name.
    proxy.let_go();
    Said::of(slow.wait_with_output().unwrap()).must(0, &[]).json();
    pair.remote(&["probe", "box"]).must(0, &[]);
    until("nothing else is left there", || (fs_err::read_dir(pair.far("bin")).unwrap().count() == 1).then_some(()));
    assert_program_is_whole(&pair);
}

#[test]
fn a_copy_of_the_program_that_is_damaged_is_made_anew() {
    let pair = pair!("");
    killed_at(&pair, &["probe", "held"], [MIB as u64, 2 * MIB as u64].into_iter());
    let part = pair.far_program();
    assert!(part.extension().is_some_and(|end| end == "part"), "{part:?}");
    let mut bytes = fs_err::read(&part).unwrap();
    bytes[1000] ^= 1;
    fs_err::write(&part, bytes).unwrap();
    pair.remote(&["probe", "box"]).must(0, &[]);
    assert_program_is_whole(&pair);
}

#[test]
fn data_of_a_connection_that_broke_is_not_printed() {
    let pair = ready!();
    pair.remote(&["status", "box"]).must(0, &[]);
    let (once, go) = (pair.far("once"), pair.far("go"));
    // More than a pipe holds, so that it is under way when the connection is gone.
    pair.wrap(&format!(
        "if [ \"$1\" = probe ] && [ ! -e {0} ]; then\n  : > {0}; echo '{{ \"half\":'; yes '' | head -c 1000000; echo half is out >&2\n  \
         while [ ! -e {1} ]; do sleep 0.05; done\n  kill -9 $PPID; exit\nfi",
        once.display(),
        go.display()
    ));
    let mut probe =
        pair.command(&["probe", "box", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut talk = BufReader::new(probe.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("half is out") {
        assert!(talk.read_line(&mut line).unwrap() > 0, "{line}");
    }
    fs_err::write(&go, "").unwrap();
    let said = Said::of(probe.wait_with_output().unwrap());
    assert!(said.must(0, &[]).json().is_object());
    talk.read_to_string(&mut line).unwrap();
    assert!(line.contains("was lost") && line.contains("trying again"), "{line}");
}

#[test]
fn a_reader_of_logs_that_leaves_ends_them_and_a_lost_tunnel_is_opened_until_it_stands() {
    let pair = ready!();
    let workshop = workshop();
    let run =
        pair.remote(&["train", "box", &job(&workshop), "--steps", "100000"]).must(0, &[]).stdout.trim().to_string();
    let mut logs = Killed(pair.command(&["logs", "box", &run, "-f"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(logs.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    until("it ends", || logs.0.try_wait().unwrap());
    // Where `closed` is, a tunnel cannot be opened, once.
    let (wrapper, closed) = (pair.path("wrapper"), pair.path("closed"));
    let refuse = format!("if [ -e {0} ]; then rm {0}; echo refused >&2; exit 255; fi", closed.display());
    let real = format!("exec ssh -F {} \"$@\"", pair.path("ssh_config").display());
    fs_err::write(&wrapper, format!("#!/bin/sh\ncase \"$*\" in *' -L '*) {refuse};; esac\n{real}\n")).unwrap();
    fs_err::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut watch = pair.command(&["watch", "box", &run, "--web", "--port", "0"]);
    watch.env("PLIMSOLL_SSH", &wrapper);
    let mut watch = Killed(watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(watch.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap().trim_end_matches('/').to_string();
    assert!(page(&address).unwrap().contains("\"status\":\"running\""));
    let lead = format!("-L {address}:127.0.0.1:");
    let tunnel = processes(&[&lead]);
    assert_eq!(tunnel.len(), 1, "{tunnel:?}");
    fs_err::write(&closed, "").unwrap();
    kill_process(tunnel[0], Signal::KILL).unwrap();
    until("the page is there again", || page(&address).filter(|page| page.contains("\"status\":\"running\"")));
    assert!(watch.0.try_wait().unwrap().is_none() && !closed.exists());
    drop(watch);
    pair.remote(&["stop", "box", &run]).must(0, &[]);
}

#[test]
fn a_port_that_somebody_takes_before_the_tunnel_is_no_page() {
    let pair = ready!();
    let workshop = workshop();
    let run =
        pair.remote(&["train", "box", &job(&workshop), "--steps", "100000"]).must(0, &[]).stdout.trim().to_string();
    // It comes to the port late.
    let (wrapper, there, go) = (pair.path("wrapper"), pair.path("there"), pair.path("go"));
    let wait = format!(": > {}; while [ ! -e {} ]; do sleep 0.05; done", there.display(), go.display());
    let real = format!("exec ssh -F {} \"$@\"", pair.path("ssh_config").display());
    fs_err::write(&wrapper, format!("#!/bin/sh\ncase \"$*\" in *' -L '*) {wait};; esac\n{real}\n")).unwrap();
    fs_err::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut watch = pair.command(&["watch", "box", &run, "--web", "--port", &port.to_string()]);
    watch.env("PLIMSOLL_SSH", &wrapper).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = Killed(watch.spawn().unwrap());
    until("the tunnel is opened", || there.exists().then_some(()));
    let other = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    fs_err::write(&go, "").unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    watch.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    watch.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(watch.0.wait().unwrap().code(), Some(1), "{err}");
    assert!(err.contains("Address already in use") && out.is_empty(), "{out}{err}");
    drop(other);
    pair.remote(&["stop", "box", &run]).must(0, &[]);
}

#[test]
fn names_of_remotes_are_listed_and_removed_also_where_one_is_spoilt() {
    let pair = ready!();
    let url = "ssh://me@gpu.example:2222/srv/a%23b";
    pair.remote(&["add", "other", url]).must(0, &[]);
    let own = pair.url(pair.port);
    let expected = serde_json::json!({ "box": own.trim_end_matches('/'), "other": url });
    assert_eq!(pair.remote(&["list", "--json"]).must(0, &[]).json(), expected);
    let said = pair.remote(&["list"]);
    assert_eq!(said.must(0, &[]).stdout, format!("box  {}\nother  {url}\n", own.trim_end_matches('/')));
    pair.remote(&["add", "other", "ssh://host/srv"]).must(0, &["`other` was ssh://me@gpu.example:2222/srv/a%23b"]);
    // Somebody writes into the book what is no address.
    let book = pair.path("config/plimsoll/remotes.toml");
    let text = fs_err::read_to_string(&book).unwrap();
    fs_err::write(&book, text.replace("ssh://host/srv", "ssh://me:geheim@host/srv")).unwrap();
    pair.remote(&["status", "box"]).must(0, &[]);
    let said = pair.remote(&["status", "other"]);
    assert!(!said.must(2, &["remote `other`", "plimsoll remote remove NAME"]).stderr.contains("geheim"));
    let said = pair.remote(&["list", "--json"]);
    assert!(!said.must(0, &["remote `other`"]).stderr.contains("geheim"));
    assert!(said.json()["other"].is_null() && said.json()["box"].is_string());
    pair.remote(&["remove", "other"]).must(0, &[]);
    pair.remote(&["remove", "other"]).must(2, &["there is no remote `other`; known: `box`"]);
    assert_eq!(pair.remote(&["list", "--json"]).json().as_object().unwrap().len(), 1);
}
