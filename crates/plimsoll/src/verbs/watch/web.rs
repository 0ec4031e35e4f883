//! `plimsoll watch --web`: the page's address on stdout, then the page, until Ctrl-C.

use std::path::Path;

use plimsoll_watch::web::Server;
use plimsoll_watch::{View, WatchError};

use crate::render::{self, Exit, Fail, OrFail};

/// Serves the view of the run in `run` on `port` of 127.0.0.1; 0 takes a free one.
pub fn serve(
    run: &Path,
    port: u16,
    look: impl FnMut() -> Result<View, WatchError> + Send + 'static,
) -> Result<(), Fail> {
    let server = Server::bind(port).map_err(|error| match error {
        WatchError::PortTaken { .. } => {
            Fail::new(Exit::BadInput, error).hint("name another port with --port N; --port 0 takes a free one")
        }
        other => Fail::from(other),
    })?;
    render::data(format!("http://{}/", server.address()))?;
    render::talk("the page and /metrics are there until Ctrl-C; the run does not notice");
    server.run(&super::name(run), look).or_failed()
}
