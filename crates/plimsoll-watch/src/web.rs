//! The view of a run as a page on this machine, live by server-sent events, and as figures for Prometheus.
//!
//! Invariants: it listens on 127.0.0.1 and nowhere else, answers only those who name this machine, and only reads. All
//! that the page needs is inside the program. A journal is looked at while somebody asks, twice a second at most, and
//! however many ask. One thread. It knows nothing of locks: whoever looks at the run comes in as a closure.

mod feed;
mod guard;
mod metrics;
mod routes;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tokio::signal::unix::{SignalKind, signal};

use crate::{View, WatchError};

/// A page that has its address and waits to be served.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes `port` of 127.0.0.1; 0 takes a free one.
    pub fn bind(port: u16) -> Result<Server, WatchError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listen = || {
            let listener = TcpListener::bind(wanted)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Server { listener, address })
        };
        listen().map_err(|source: std::io::Error| match source.kind() {
            ErrorKind::AddrInUse => WatchError::PortTaken { address: wanted },
            _ => WatchError::NoAddress { address: wanted, source },
        })
    }

    /// Where the page is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the run that is called `name`, until the process is asked to end (SIGINT, SIGTERM). `look` gives the run
    /// as it is now; where it cannot, the page says why and goes on asking.
    pub fn run(
        self,
        name: &str,
        look: impl FnMut() -> Result<View, WatchError> + Send + 'static,
    ) -> Result<(), WatchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let site = routes::site(feed::Feed::new(name, look));
            // Nothing that is being answered is worth waiting for: the page asks again, and an event stream never ends.
            tokio::select! {
                ended = async { axum::serve(listener, site).await } => ended?,
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            Ok(())
        })
    }
}
