//! A real S3 server in a process of its own, over a folder; killed with `SIGKILL` and started again at will.
//!
//! The process is this test binary again: the ignored test [`serve`] becomes the server where the environment says so.
//! Every request that was answered is a line of `requests` beside the folder: `PUT /bucket/key?query 200`.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connection;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;

pub const KEY_ID: &str = "AKIDPLIMSOLL";
pub const SECRET: &str = "never-to-be-seen-4711";
pub const BUCKET: &str = "bucket";

const FOLDER: &str = "PLIMSOLL_TEST_S3_FOLDER";
const PORT: &str = "PLIMSOLL_TEST_S3_PORT";

/// A server and the folder that it keeps everything in.
pub struct Server {
    home: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with an empty bucket in `home`.
    pub fn start(home: &Path) -> Server {
        fs_err::create_dir_all(home.join("objects").join(BUCKET)).unwrap();
        // A port that nobody has now; the server takes it at every start.
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let mut server = Server { home: home.to_path_buf(), port, child: None };
        server.restart();
        server
    }

    /// Starts the server, at the same address, and waits until it listens.
    pub fn restart(&mut self) {
        let ready = self.home.join("ready");
        let _ = fs_err::remove_file(&ready);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "support_mirror::server::serve", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(FOLDER, &self.home)
            .env(PORT, self.port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        super::wait_for("the server to listen", || ready.exists());
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// What a program needs to speak to it.
    pub fn environment(&self, command: &mut Command) {
        command
            .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_REGION", "us-east-1")
            .env("NO_PROXY", "127.0.0.1");
    }

    /// The object `key`, as the server keeps it.
    pub fn object(&self, key: &str) -> PathBuf {
        self.home.join("objects").join(BUCKET).join(key)
    }

    /// Requests that were answered and contain all of `words`, in order.
    pub fn requests(&self, words: &[&str]) -> Vec<String> {
        let all = fs_err::read_to_string(self.home.join("requests")).unwrap_or_default();
        all.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_string).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
#[ignore = "is the server, when it is started as one"]
fn serve() {
    let (Some(home), Ok(port)) = (std::env::var_os(FOLDER).map(PathBuf::from), std::env::var(PORT)) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(listen(&home, port.parse().unwrap()));
}

async fn listen(home: &Path, port: u16) {
    let service = {
        let mut builder = S3ServiceBuilder::new(FileSystem::new(home.join("objects")).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        builder.build()
    };
    let log = fs_err::OpenOptions::new().create(true).append(true).open(home.join("requests")).unwrap();
    let log = std::sync::Arc::new(std::sync::Mutex::new(log));
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    fs_err::write(home.join("ready"), "").unwrap();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (service, log, objects) = (service.clone(), log.clone(), home.join("objects"));
        let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let told = format!("{} {}", request.method(), request.uri());
            // This server makes a bucket that is not there; the real one refuses.
            let bucket = request.uri().path().split('/').nth(1).unwrap_or_default();
            let known = objects.join(bucket).is_dir();
            let (answer, log) = (Service::call(&service, request), log.clone());
            async move {
                let answer = if known { answer.await } else { Ok(no_such_bucket()) };
                let status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
                writeln!(log.lock().unwrap(), "{told} {status}").unwrap();
                answer
            }
        });
        tokio::task::spawn(async move {
            let _ = Connection::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), answer).await;
        });
    }
}

fn no_such_bucket() -> hyper::Response<s3s::Body> {
    let body = "<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code>\
                <Message>The specified bucket does not exist</Message></Error>";
    hyper::Response::builder().status(404).body(s3s::Body::from(body.to_string())).unwrap()
}
