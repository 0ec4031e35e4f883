//! A real HTTP server over a folder, in this process: ranges, entity tags, and faults that a test asks for.
//!
//! Invariant: what it answers follows from the folder and from the faults that were put on it, one for each request for
//! bytes, in order.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connection;
use tokio::sync::oneshot;

/// What goes wrong with one request for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another status, and nothing else.
    Status(u16),
    /// The connection breaks behind so many bytes.
    Cut(usize),
    /// The answer points elsewhere: to the same file below `/moved`.
    Moved,
}

#[derive(Debug, Default)]
struct Shared {
    root: PathBuf,
    faults: Mutex<VecDeque<Fault>>,
    /// `GET /a.jsonl bytes=0-99 206`.
    requests: Mutex<Vec<String>>,
    ranges: bool,
    tags: bool,
}

/// What a server can do.
#[derive(Clone, Copy, Debug)]
pub enum Skill {
    Usual,
    /// It answers with whole files.
    NoRanges,
    /// It says nothing of versions.
    NoTags,
}

pub struct FileServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl FileServer {
    pub fn start(root: &Path, skill: Skill) -> FileServer {
        let shared = Shared {
            root: root.into(),
            ranges: !matches!(skill, Skill::NoRanges),
            tags: !matches!(skill, Skill::NoTags),
            ..Shared::default()
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = FileServer { shared: Arc::new(shared), address, running: None };
        server.begin();
        server
    }

    /// Listens, at the address that it had before.
    pub fn begin(&mut self) {
        let (end, ended) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let (shared, address) = (self.shared.clone(), self.address);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(address).await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = listen(listener, shared) => {}
                    _ = ended => {}
                }
            });
        });
        self.address = told.recv().unwrap();
        self.running = Some((end, thread));
    }

    /// Goes away, with every connection.
    pub fn end(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            let _ = end.send(());
            thread.join().unwrap();
        }
    }

    pub fn url(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("http://{}/{name}", self.address))
    }

    /// The next requests for bytes go wrong so.
    pub fn faults(&self, faults: &[Fault]) {
        self.shared.faults.lock().unwrap().extend(faults);
    }

    pub fn faults_left(&self) -> usize {
        self.shared.faults.lock().unwrap().len()
    }

    /// Requests that contain all of `words`, in order.
    pub fn requests(&self, words: &[&str]) -> Vec<String> {
        let all = self.shared.requests.lock().unwrap();
        all.iter().filter(|line| words.iter().all(|word| line.contains(word))).cloned().collect()
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.end();
    }
}

async fn listen(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let shared = shared.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let (told, response) = shared.answer(&request);
            shared.requests.lock().unwrap().push(format!("{told} {}", response.status().as_u16()));
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::task::spawn(async move {
            let _ = Connection::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), answer).await;
        });
    }
}

impl Shared {
    fn answer(&self, request: &Request<Incoming>) -> (String, Response<Answer>) {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        let range = header("range").to_string();
        let told = format!("{} {} {range}", request.method(), request.uri().path());
        let status = |code: u16| Response::builder().status(code).body(Answer::default()).unwrap();
        let is_get = request.method() == Method::GET;
        let fault = if is_get { self.faults.lock().unwrap().pop_front() } else { None };
        if let Some(Fault::Status(code)) = fault {
            return (told, status(code));
        }
        let path = request.uri().path();
        if fault == Some(Fault::Moved) {
            let to = Response::builder().status(302).header("location", format!("/moved{path}"));
            return (told, to.body(Answer::default()).unwrap());
        }
        let name = path.strip_prefix("/moved").unwrap_or(path).trim_start_matches('/').replace("%20", " ");
        let Ok(whole) = fs_err::read(self.root.join(name)) else { return (told, status(404)) };
        let mut hasher = DefaultHasher::new();
        whole.hash(&mut hasher);
        let tag = format!("\"{:x}\"", hasher.finish());
        if self.tags && !["", tag.as_str()].contains(&header("if-match")) {
            return (told, status(412));
        }
        let mut response = Response::builder();
        if self.tags {
            response = response.header("etag", &tag);
        }
        let part = parse(&range).filter(|_| self.ranges);
        let (code, bytes) = match part {
            None => (200, &whole[..]),
            Some((from, to)) if from < whole.len() && from <= to => {
                let to = (to + 1).min(whole.len());
                response = response.header("content-range", format!("bytes {from}-{}/{}", to - 1, whole.len()));
                (206, &whole[from..to])
            }
            Some(_) => return (told, status(416)),
        };
        response = response.status(code).header("content-length", bytes.len());
        let body = match fault {
            _ if !is_get => Answer::default(),
            Some(Fault::Cut(at)) => {
                let bytes = Bytes::copy_from_slice(&bytes[..at.min(bytes.len())]);
                Answer { bytes: Some(bytes), breaks: true, waits: 0 }
            }
            _ => Answer { bytes: Some(Bytes::copy_from_slice(bytes)), ..Answer::default() },
        };
        (told, response.body(body).unwrap())
    }
}

fn parse(range: &str) -> Option<(usize, usize)> {
    let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// Bytes, and perhaps the end of the connection behind them.
#[derive(Default)]
struct Answer {
    bytes: Option<Bytes>,
    breaks: bool,
    waits: u32,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.bytes.is_none() && self.breaks && self.waits < 1000 {
            // What was written before is on its way by then.
            self.waits += 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(match self.bytes.take().filter(|bytes| !bytes.is_empty()) {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None if self.breaks => Some(Err(io::Error::other("a fault that was asked for"))),
            None => None,
        })
    }
}
