//! `plimsoll watch --web`: the view of a run as a page on this machine. Asked by hand, and looked at in a real browser.
//!
//! Without a browser the tests that need one say so and pass.

mod browser;

use std::collections::{BTreeMap, BTreeSet};

use browser::chromium::{Browser, installed};
use browser::served::{Served, command};
use browser::story::{Story, TOTAL};
use plimsoll_watch::Event;
use rustix::process::Signal;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_page_and_all_that_it_names_come_from_the_program_with_rules_for_the_browser() {
    let story = Story::begun();
    let served = Served::start(&story.run(), 0);
    assert!(served.address.ip().is_loopback());
    let mut open = vec!["/".to_string()];
    let mut seen = BTreeSet::new();
    while let Some(path) = open.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let answer = served.get(&path);
        assert_eq!(answer.status, 200, "{path}");
        for rule in
            ["content-security-policy: default-src 'self'", "x-content-type-options: nosniff", "x-frame-options: deny"]
        {
            assert!(answer.head.contains(rule), "{path}: {}", answer.head);
        }
        let foreign = answer.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!foreign.contains("://"), "{path} names another host");
        // What stands in quotes behind `href=`, `src=` and `from`.
        for mark in ["href=\"", "src=\"", "from \"."] {
            let named = answer.body.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
            open.extend(named.map(str::to_string));
        }
    }
    assert!(seen.len() >= 7, "{seen:?}");
    assert_eq!(served.get("/nothing").status, 404);
}

#[test]
fn only_get_from_this_machine_is_answered_and_the_run_is_left_as_it_was() {
    let mut story = Story::begun();
    story.steps(3);
    let before = fs_err::read(story.journal()).unwrap();
    let served = Served::start(&story.run(), 0);
    let ask = |method: &str, path: &str, hosts: &str| {
        served.say(&format!("{method} {path} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n")).status
    };
    let port = served.address.port();
    for path in ["/", "/view.json", "/events", "/metrics", "/page.js"] {
        for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example", "0.0.0.0"] {
            assert_eq!(ask("GET", path, &format!("Host: {host}\r\n")), 403, "{path} for {host}");
        }
        assert_eq!(ask("GET", path, "Host: localhost\r\nHost: evil.example\r\n"), 403, "{path}");
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"] {
            assert_eq!(ask(method, path, "Host: localhost\r\n"), 405, "{method} {path}");
        }
    }
    assert_eq!(served.say("GET / HTTP/1.0\r\n\r\n").status, 403);
    for host in ["localhost", &format!("localhost:{port}"), &format!("127.0.0.1:{port}"), "[::1]"] {
        assert_eq!(ask("GET", "/view.json", &format!("Host: {host}\r\n")), 200, "{host}");
    }
    drop(served);
    assert!(fs_err::read(story.journal()).unwrap() == before);
    let left: Vec<_> = fs_err::read_dir(story.run()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["journal.jsonl"]);
}

/// The samples of an exposition, held to OpenMetrics: each of a described family, none twice, a number behind each.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut samples = BTreeMap::new();
    let body = text.strip_suffix("# EOF\n").expect("an exposition ends with `# EOF`");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && helped.insert(name), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(families.insert(name, kind).is_none(), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            assert!(
                name.starts_with("plimsoll_") && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()),
                "{line}"
            );
            let kind = |family: Option<&str>| family.and_then(|family| families.get(family)).copied();
            let described = match name.strip_suffix("_total") {
                Some(_) => kind(name.strip_suffix("_total")) == Some("counter"),
                None => kind(Some(name)) == Some("gauge") || kind(name.strip_suffix("_info")) == Some("info"),
            };
            assert!(described, "`{name}` has no type that fits");
            if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                assert!(labels.starts_with('{') && labels.ends_with("\"}") && labels.contains("=\""), "{line}");
            }
            let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(samples.insert(series.to_string(), value).is_none(), "{line} is there twice");
        }
    }
    assert!(families.keys().all(|name| helped.contains(name)));
    samples
}

#[test]
fn the_metrics_are_openmetrics_and_hold_the_figures_of_the_run() {
    let mut story = Story::begun();
    story.steps(120);
    story.dies();
    story.goes_on_smaller();
    story.steps(10);
    story.tell(Event::Skipped { step: 111, what: "loss".into(), in_a_row: 1 });
    story.tell(Event::Incident {
        step: 111,
        saved_step: 100,
        kind: "odd \"kind\" \\ of\ndeath".into(),
        told: "x".into(),
        confidence: "likely".into(),
        because: Vec::new(),
        evidence: Value::Null,
    });
    let served = Served::start(&story.run(), 0);
    let answer = served.get("/metrics");
    assert!(answer.head.contains("content-type: application/openmetrics-text"), "{}", answer.head);
    let samples = samples(&answer.body);
    let view = json(&served.get("/view.json").body);
    let mib = |count: u64| (count << 20) as f64;
    let expected = [
        ("plimsoll_step", view["step"].as_f64().unwrap()),
        ("plimsoll_planned_steps", TOTAL as f64),
        ("plimsoll_loss", view["latest"]["loss"].as_f64().unwrap()),
        ("plimsoll_tokens_per_second", view["tokens_per_second"].as_f64().unwrap()),
        ("plimsoll_status{status=\"dead\"}", 1.0),
        ("plimsoll_status{status=\"running\"}", 0.0),
        ("plimsoll_run_info{name=\"chat-1\",version=\"0.1.0\"}", 1.0),
        ("plimsoll_ram_planned_bytes{part=\"weights\"}", ((1024 * 88 * 190 / 231) << 10) as f64),
        ("plimsoll_ram_planned_peak_bytes", mib(190)),
        ("plimsoll_ram_budget_bytes", mib(200)),
        ("plimsoll_restarts_total", 1.0),
        ("plimsoll_saves_total", 2.0),
        ("plimsoll_evaluations_total", 2.0),
        ("plimsoll_skipped_updates_total", 1.0),
        ("plimsoll_incidents_total{kind=\"kernel_oom_in_our_cgroup\"}", 1.0),
        ("plimsoll_incidents_total{kind=\"odd \\\"kind\\\" \\\\ of death\"}", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(samples.get(name), Some(&value), "{name} in {}", answer.body);
    }
    let spent = samples.iter().filter(|(name, _)| name.starts_with("plimsoll_time_seconds_total{")).count();
    assert_eq!(spent, 5);
}

#[test]
fn a_run_without_a_step_has_metrics_and_no_figure_that_nobody_measured() {
    let story = Story::begun();
    let served = Served::start(&story.run(), 0);
    let samples = samples(&served.get("/metrics").body);
    assert_eq!(samples["plimsoll_step"], 0.0);
    for unknown in ["plimsoll_loss", "plimsoll_eval_loss", "plimsoll_gradient_norm", "plimsoll_tokens_per_second"] {
        assert!(!samples.contains_key(unknown), "{unknown}");
    }
    assert_eq!(samples["plimsoll_headroom_bytes"], (1890u64 << 20) as f64);
}

#[test]
fn listeners_hear_of_the_run_at_once_and_of_each_change_and_of_trouble_and_its_end() {
    let mut story = Story::begun();
    story.steps(5);
    let served = Served::start(&story.run(), 0);
    let (mut one, mut other) = (served.listen(), served.listen());
    let at_step = |step: u64| move |view: &str| json(view)["step"] == step;
    assert_eq!(json(&one.until("view", at_step(5)))["name"], "chat-1");
    story.steps(2);
    one.until("view", at_step(7));
    other.until("view", at_step(7));
    let aside = story.run().join("aside");
    fs_err::rename(story.journal(), &aside).unwrap();
    fs_err::create_dir(story.journal()).unwrap();
    let trouble = one.until("trouble", |_| true);
    assert!(trouble.contains("journal.jsonl"), "{trouble}");
    fs_err::remove_dir(story.journal()).unwrap();
    fs_err::rename(&aside, story.journal()).unwrap();
    story.steps(1);
    one.until("view", at_step(8));
}

#[test]
fn a_quiet_run_is_a_beat_and_not_the_same_view_again() {
    let mut story = Story::begun();
    let lock = story.held();
    story.steps(2);
    let served = Served::start(&story.run(), 0);
    let mut stream = served.listen();
    assert_eq!(stream.next().0, "view");
    // The run's clock goes on all the while.
    assert_eq!(stream.next().0, "beat");
    drop(lock);
    assert_eq!(json(&stream.until("view", |_| true))["status"], "dead");
}

#[test]
fn a_port_that_is_taken_is_said_with_a_remedy() {
    let story = Story::begun();
    let served = Served::start(&story.run(), 0);
    let output = command(&story.run(), served.address.port()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("`{}` is taken", served.address)) && said.contains("--port 0"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn ctrl_c_and_sigterm_end_it_cleanly_also_while_somebody_listens() {
    let story = Story::begun();
    for signal in [Signal::INT, Signal::TERM] {
        let served = Served::start(&story.run(), 0);
        let mut stream = served.listen();
        assert_eq!(stream.next().0, "view");
        assert_eq!(served.end(signal).code(), Some(0), "{signal:?}");
    }
}

/// The browser, or why there is none.
fn browser() -> Result<Browser, String> {
    installed().map(|path| Browser::start(&path))
}

const STEPS: &str = "document.getElementById('steps').textContent";

#[test]
fn the_page_follows_the_run_without_a_reload_and_asks_nobody_else() {
    let mut page = match browser() {
        Ok(page) => page,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut story = Story::begun();
    let lock = story.held();
    story.steps(60);
    // Whatever the journal says is text.
    let message = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>".to_string();
    story.tell(Event::Warning { step: 60, message: message.clone() });
    let served = Served::start(&story.run(), 0);
    page.resize(1280, 1000);
    page.open(&served.url());
    page.wait_for(&format!("{STEPS}.startsWith('step 60 of {TOTAL}')"));
    page.wait_for("document.getElementById('status').textContent === 'running'");
    page.wait_for("document.getElementById('connection').hidden");
    page.value("window.marker = 'the same page'");
    let curve = "document.querySelector('#loss path.train.curve').getAttribute('d')";
    let before = page.value(curve);

    story.steps(170);
    story.dies();
    story.goes_on_smaller();
    story.steps(75);
    page.wait_for(&format!("{STEPS}.startsWith('step 275 of {TOTAL} (69\u{a0}%)')"));
    assert_eq!(page.value("window.marker"), "the same page");
    assert_ne!(page.value(curve), before);
    assert_eq!(page.value("document.getElementById('progress').value"), 275);
    let events = page.value("document.getElementById('events').innerText");
    let events = events.as_str().unwrap();
    assert!(events.contains("out of memory (proven)") && events.contains(&message), "{events}");
    assert_eq!(page.value("document.querySelectorAll('#events img, #events script').length"), 0);
    let parts = page.value("document.getElementById('parts').innerText");
    assert!(parts.as_str().unwrap().contains("optimizer state"), "{parts}");

    page.point_at("#loss > svg");
    page.wait_for("!document.querySelector('#loss .readout').hidden");
    let read = page.value("document.querySelector('#loss .readout').innerText");
    let read = read.as_str().unwrap();
    assert!(read.starts_with("step ") && read.contains("training: "), "{read}");
    page.point_at("#memory > svg");
    page.wait_for("!document.querySelector('#memory .readout').hidden");
    let read = page.value("document.querySelector('#memory .readout').innerText");
    let read = read.as_str().unwrap();
    assert!(read.starts_with("running time 0:") && read.contains("planned: 231\u{a0}MiB"), "{read}");
    page.picture("hover");
    page.point_at("h1");
    page.wait_for("document.querySelector('#loss .readout').hidden");
    page.value("document.querySelector('#loss > svg').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))");
    let read = page.value("document.querySelector('#loss .readout').innerText");
    assert!(read.as_str().unwrap().starts_with("step 275\ntraining: "), "{read}");
    page.value("document.querySelector('#loss > svg').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))");

    let told =
        "(() => { const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]; })()";
    let mut schemes = Vec::new();
    for scheme in ["light", "dark"] {
        page.prefer(scheme);
        schemes.push(page.value(told));
        for (width, height) in [(1280, 1000), (400, 800)] {
            page.resize(width, height);
            page.wait_for(&format!("document.documentElement.clientWidth === {width}"));
            page.wait_for("document.documentElement.scrollWidth <= innerWidth");
            // The charts are as wide as what holds them.
            page.wait_for("document.querySelector('#loss > svg').viewBox.baseVal.width === document.querySelector('#loss > svg').clientWidth");
            page.picture(&format!("live-{scheme}-{width}"));
        }
    }
    let [light, dark] = [0, 1].map(|at| schemes[at].as_array().unwrap().iter().map(brightness).collect::<Vec<_>>());
    assert!(light[0] > 0.8 && light[1] < 0.3, "light: {schemes:?}");
    assert!(dark[0] < 0.2 && dark[1] > 0.8, "dark: {schemes:?}");

    let requests = page.requests();
    assert!(requests.iter().any(|asked| asked.ends_with("/events")), "{requests:?}");
    assert!(requests.iter().all(|asked| asked.starts_with(&served.url())), "{requests:?}");
    assert_eq!(page.complaints(), Vec::<String>::new());
    drop(lock);
    page.wait_for("document.getElementById('status').textContent === 'dead'");
}

/// How bright a CSS colour is, from 0 to 1.
fn brightness(colour: &Value) -> f64 {
    let colour = colour.as_str().unwrap();
    let inside =
        colour.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')).unwrap_or_else(|| panic!("{colour}"));
    inside.split(',').map(|part| part.trim().parse::<f64>().unwrap()).sum::<f64>() / 3.0 / 255.0
}

#[test]
fn the_page_says_that_the_server_is_gone_and_finds_it_again() {
    let mut page = match browser() {
        Ok(page) => page,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut story = Story::begun();
    story.steps(10);
    let served = Served::start(&story.run(), 0);
    page.open(&served.url());
    page.wait_for(&format!("{STEPS}.startsWith('step 10 of')"));
    page.value("window.marker = 'the same page'");
    let port = served.address.port();
    drop(served);
    let banner = "document.getElementById('connection')";
    page.wait_for(&format!("!{banner}.hidden && {banner}.textContent.includes('lost')"));
    page.picture("lost");
    story.steps(5);
    let _again = Served::start(&story.run(), port);
    page.wait_for(&format!("{STEPS}.startsWith('step 15 of')"));
    page.wait_for(&format!("{banner}.hidden"));
    assert_eq!(page.value("window.marker"), "the same page");
}

#[test]
fn the_page_shows_a_dead_run_and_why_it_died() {
    let mut page = match browser() {
        Ok(page) => page,
        Err(why) => return println!("skipped: {why}"),
    };
    let mut story = Story::begun();
    story.steps(130);
    story.dies();
    let served = Served::start(&story.run(), 0);
    page.resize(1280, 1000);
    page.open(&served.url());
    page.wait_for("document.getElementById('status').textContent === 'dead'");
    let why = page.value("document.getElementById('why').textContent");
    assert!(why.as_str().unwrap().contains("out of memory"), "{why}");
    assert!(page.value(STEPS).as_str().unwrap().starts_with("step 130 of"));
    page.picture("dead");
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
fn the_page_of_somebody_elses_trainer_shows_its_processes_in_the_place_of_a_plan() {
    let mut page = match browser() {
        Ok(page) => page,
        Err(why) => return println!("skipped: {why}"),
    };
    let run = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/stalled");
    let served = Served::start(&run, 0);
    page.resize(1280, 1000);
    page.open(&served.url());
    page.wait_for("document.getElementById('status').textContent === 'finished'");
    let title = page.value("document.getElementById('parts-title').textContent");
    assert_eq!(title, "Processes");
    let rows = "[...document.querySelectorAll('#parts tbody tr')].map((row) => row.cells[0].firstChild.textContent)";
    assert_eq!(page.value(rows), serde_json::json!(["rank 0", "rank 1", "launcher"]));
    let facts = page.value("document.getElementById('facts').textContent");
    assert!(facts.as_str().unwrap().starts_with("hf-trainer by torchrun · plimsoll"), "{facts}");
    let figures = page.value("document.getElementById('figures').textContent");
    assert!(figures.as_str().unwrap().contains("limit 16.4"), "{figures}");
    page.picture("foreign");
    assert_eq!(page.complaints(), Vec::<String>::new());
}
