//! A wire that breaks where the test wants it to: TCP from one port to another, counted from near to far.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens behind a number of bytes, counted over all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The connection is cut.
    Cut(u64),
    /// Nothing goes through any more, and nobody is told.
    Hold(u64),
    /// Nothing goes through until the test lets it.
    Wait(u64),
}

/// The wire.
pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

struct State {
    to: u16,
    sent: AtomicU64,
    fates: Vec<Fate>,
    met: AtomicUsize,
    /// Connections that are held, to be let go at the end.
    held: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
    /// How many waits are over.
    let_go: AtomicUsize,
}

impl Proxy {
    /// To a port of this machine.
    pub fn to(to: u16, fates: &[Fate]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sent, met, over) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let let_go = AtomicUsize::new(0);
        let state = Arc::new(State { to, sent, fates: fates.to_vec(), met, held: Mutex::default(), over, let_go });
        let own = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if own.over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", own.to)) else { continue };
                let (near_again, far_again) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let state = Arc::clone(&own);
                std::thread::spawn(move || state.carry(near, far));
                std::thread::spawn(move || back(far_again, near_again));
            }
        });
        Proxy { port, state }
    }

    /// Bytes that went to the far side.
    pub fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }

    /// Ends one wait.
    pub fn let_go(&self) {
        self.state.let_go.fetch_add(1, Ordering::SeqCst);
    }

    /// How many fates were met.
    pub fn met(&self) -> usize {
        self.state.met.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        for held in self.state.held.lock().unwrap().drain(..) {
            let _ = held.shutdown(Shutdown::Both);
        }
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl State {
    fn carry(&self, mut near: TcpStream, mut far: TcpStream) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = near.read(&mut buffer) {
            let sent = self.sent.fetch_add(read as u64, Ordering::SeqCst) + read as u64;
            let met = self.met.load(Ordering::SeqCst);
            match self.fates.get(met) {
                Some(Fate::Cut(at)) if sent > *at => {
                    self.met.store(met + 1, Ordering::SeqCst);
                    break;
                }
                Some(Fate::Hold(at)) if sent > *at => {
                    self.held.lock().unwrap().extend([near, far]);
                    self.met.store(met + 1, Ordering::SeqCst);
                    return;
                }
                Some(Fate::Wait(at)) if sent > *at => {
                    let waits = self.fates[..=met].iter().filter(|fate| matches!(fate, Fate::Wait(_))).count();
                    self.met.store(met + 1, Ordering::SeqCst);
                    while self.let_go.load(Ordering::SeqCst) < waits && !self.over.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                _ => {}
            }
            if far.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
    }
}

fn back(mut far: TcpStream, mut near: TcpStream) {
    let _ = std::io::copy(&mut far, &mut near);
    let _ = near.shutdown(Shutdown::Write);
}
