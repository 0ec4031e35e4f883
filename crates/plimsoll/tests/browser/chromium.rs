//! A real browser, driven through its DevTools pipe: JSON messages with a NUL behind each.
//!
//! No port, no driver program and no library: Chromium reads commands from file descriptor 3 and writes answers and
//! events to 4. It has a profile of its own and ends with the test, all its processes included.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// How long the browser may take for anything.
const PATIENCE: Duration = Duration::from_secs(90);
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const FLAGS: [&str; 12] = [
    "--remote-debugging-pipe",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
];

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: String,
    sent: u64,
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

/// The browser of this machine, or why there is none.
pub fn installed() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("PLIMSOLL_BROWSER") {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    places.find(|place| place.is_file()).ok_or_else(|| {
        format!("no {} in PATH; name a browser in PLIMSOLL_BROWSER, or let scripts/test install one", NAMES.join(", "))
    })
}

impl Browser {
    /// Starts the browser at `path` with an empty page.
    pub fn start(path: &Path) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh"])
            .arg(path)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, messages) = channel();
        std::thread::spawn(move || {
            // Ends when the browser closes its end, or the test no longer listens.
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                if send.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let (session, events) = (String::new(), Vec::new());
        let mut browser = Browser { child, to, from: messages, session, sent: 0, events, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_string();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Goes to an address.
    pub fn open(&mut self, url: &str) {
        let went = self.call("Page.navigate", json!({ "url": url }));
        assert!(went.get("errorText").is_none(), "{url}: {went}");
        self.wait_for(&format!("location.href === '{url}' && document.readyState === 'complete'"));
    }

    /// The value of a JavaScript expression.
    pub fn value(&mut self, expression: &str) -> Value {
        self.evaluate(expression).unwrap_or_else(|error| panic!("`{expression}`: {error}"))
    }

    /// The value, or what the browser says: an exception, or that the page is being replaced.
    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let done = self.ask("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}))?;
        match done.get("exceptionDetails") {
            Some(exception) => Err(exception.clone()),
            None => Ok(done["result"]["value"].clone()),
        }
    }

    /// Waits until a JavaScript expression holds.
    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        let began = Instant::now();
        loop {
            let holds = self.evaluate(&format!("Boolean({expression})"));
            if holds == Ok(Value::Bool(true)) {
                return;
            }
            if began.elapsed() > PATIENCE {
                let page = self.evaluate("document.body.innerText");
                panic!("`{expression}` never held, it gave {holds:?}; the page says: {page:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The user prefers a scheme: `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// The window is so wide and so high.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Moves the pointer to the middle of what `selector` finds.
    pub fn point_at(&mut self, selector: &str) {
        let place = self.value(&format!(
            "(() => {{ const found = document.querySelector('{selector}'); found.scrollIntoView({{block: 'center'}});
                const box = found.getBoundingClientRect();
                return {{x: box.left + box.width / 2, y: box.top + box.height / 2}}; }})()"
        ));
        let event = json!({"type": "mouseMoved", "x": place["x"], "y": place["y"]});
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Writes a picture of the whole page into the folder that PLIMSOLL_SCREENSHOTS names, if it names one.
    pub fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("PLIMSOLL_SCREENSHOTS") else { return };
        let taken = self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}));
        let picture = from_base64(taken["data"].as_str().unwrap());
        fs_err::write(Path::new(&folder).join(format!("{name}.png")), picture).unwrap();
    }

    /// What the page has complained of: console errors, exceptions, refused loads.
    pub fn complaints(&mut self) -> Vec<String> {
        self.value("0");
        let complaint = |event: &&Value| {
            let params = &event["params"];
            match event["method"].as_str() {
                Some("Runtime.consoleAPICalled") => params["type"] == "error" || params["type"] == "assert",
                Some("Runtime.exceptionThrown") => true,
                Some("Log.entryAdded") => params["entry"]["level"] == "error",
                _ => false,
            }
        };
        self.events.iter().filter(complaint).map(Value::to_string).collect()
    }

    /// Every address that the page has asked for.
    pub fn requests(&mut self) -> Vec<String> {
        self.value("0");
        let asked = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        asked.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_string()).collect()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser lives");
        loop {
            let answer = self.from.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{method}: {error}"));
            if answer["id"] == self.sent {
                return match answer.get("error") {
                    Some(error) => Err(error.clone()),
                    None => Ok(answer["result"].clone()),
                };
            }
            self.events.push(answer);
        }
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().map_while(|byte| DIGITS.iter().position(|&digit| digit == byte));
    let (mut bits, mut count, mut bytes) = (0, 0, Vec::new());
    for digit in digits {
        (bits, count) = ((bits << 6 | digit) & 0xffff, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
