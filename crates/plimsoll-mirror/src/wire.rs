//! The HTTP client under the stores: paced bodies, and a request that stands still is ended.
//!
//! Invariant: bodies of objects go out in small pieces that were paid for; a request may take as long as it moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes as Chunk;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

use crate::rate::Pace;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a request, or an answer, may stand still.
pub(crate) const STALL: Duration = Duration::from_secs(120);
/// How long sent bytes may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// Most answers in a row that point elsewhere.
const MOST_REDIRECTS: usize = 10;
/// What goes out at a time where there is no cap.
const PIECE: u64 = 64 << 10;

/// Makes clients whose uploads keep to a pace.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub pace: Option<Arc<Pace>>,
    pub redirects: Redirects,
}

/// What becomes of an answer that points elsewhere. A store that does so is not the one that was meant; servers of files do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirects {
    Refuse,
    Follow,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The first one wins; a second one is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let client = reqwest::Client::builder()
            .https_only(!plain)
            .http1_only()
            .connect_timeout(CONNECT)
            .tcp_user_timeout(UNACKNOWLEDGED)
            .tcp_keepalive(UNACKNOWLEDGED)
            .redirect(match self.redirects {
                Redirects::Refuse => reqwest::redirect::Policy::none(),
                Redirects::Follow => reqwest::redirect::Policy::limited(MOST_REDIRECTS),
            })
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| object_store::Error::Generic { store: "HTTP", source: error.into() })?;
        Ok(HttpClient::new(Service { client, pace: self.pace.clone() }))
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    pace: Option<Arc<Pace>>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse().map_err(|error| HttpError::new(HttpErrorKind::Request, Url(error)))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let moved = Arc::new(AtomicU64::new(0));
        // Questions are short, and go as they are. Objects come with a length in their head and go in pieces.
        *request.body_mut() = Some(match body.as_bytes() {
            Some(short) => short.clone().into(),
            None => reqwest::Body::wrap_stream(pieces(
                body.into_data_stream().boxed(),
                self.pace.clone(),
                Arc::clone(&moved),
            )),
        });
        let answer = self.client.execute(request);
        tokio::pin!(answer);
        let answer = loop {
            let before = moved.load(Ordering::Relaxed);
            tokio::select! {
                answer = &mut answer => break answer.map_err(failed)?,
                () = tokio::time::sleep(STALL) => if moved.load(Ordering::Relaxed) == before {
                    return Err(HttpError::new(HttpErrorKind::Timeout, StoodStill));
                },
            }
        };
        let (parts, body) = http::Response::<reqwest::Body>::from(answer).into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(failed))))
    }
}

/// An object's body in pieces, each paid for before it goes.
fn pieces(
    body: stream::BoxStream<'static, Result<Chunk, HttpError>>,
    pace: Option<Arc<Pace>>,
    moved: Arc<AtomicU64>,
) -> impl futures_util::Stream<Item = Result<Chunk, HttpError>> + Send + 'static {
    let most = pace.as_ref().map_or(PIECE, |pace| pace.piece()) as usize;
    stream::unfold((body, Chunk::new(), pace, moved), move |(mut body, mut rest, pace, moved)| async move {
        while rest.is_empty() {
            rest = match body.next().await? {
                Ok(chunk) => chunk,
                Err(error) => return Some((Err(error), (body, rest, pace, moved))),
            };
        }
        let piece = rest.split_to(rest.len().min(most));
        if let Some(pace) = &pace {
            pace.pay(piece.len() as u64).await;
        }
        moved.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Some((Ok(piece), (body, rest, pace, moved)))
    })
}

/// What the client says of a request, without the address: the store's own error adds that where it may.
fn failed(error: reqwest::Error) -> HttpError {
    let kind = match () {
        () if error.is_timeout() => HttpErrorKind::Timeout,
        () if error.is_connect() => HttpErrorKind::Connect,
        () if error.is_decode() => HttpErrorKind::Decode,
        () => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error.without_url())
}

#[derive(Debug, thiserror::Error)]
#[error("nothing moved for {} s", STALL.as_secs())]
pub(crate) struct StoodStill;

#[derive(Debug, thiserror::Error)]
#[error("the address of a request is not a URL")]
struct Url(#[source] url::ParseError);

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_body_goes_out_whole_and_in_pieces() {
        let chunks: Vec<Result<Chunk, HttpError>> = [0u8, 1, 2].map(|n| Ok(Chunk::from(vec![n; 100_000]))).into();
        let moved = Arc::new(AtomicU64::new(0));
        let body = pieces(stream::iter(chunks).boxed(), None, Arc::clone(&moved));
        let sent: Vec<Chunk> = runtime().block_on(body.map(|piece| piece.unwrap()).collect());
        assert!(sent.iter().all(|piece| piece.len() as u64 <= PIECE));
        let whole: Vec<u8> = sent.concat();
        assert_eq!(whole, [0u8, 1, 2].map(|n| vec![n; 100_000]).concat());
        assert_eq!(moved.load(Ordering::Relaxed), 300_000);
    }

    #[test]
    fn with_a_cap_no_piece_is_larger_than_the_bucket_gives() {
        let pace = Arc::new(Pace::new(plimsoll_machine::Bytes(1_000_000_000)));
        let most = pace.piece();
        let chunks = vec![Ok(Chunk::from(vec![7; 1 << 20]))];
        let body = pieces(stream::iter(chunks).boxed(), Some(pace), Arc::default());
        let sent: Vec<Chunk> = runtime().block_on(body.map(|piece| piece.unwrap()).collect());
        assert!(sent.iter().all(|piece| piece.len() as u64 <= most));
        assert_eq!(sent.iter().map(Chunk::len).sum::<usize>(), 1 << 20);
    }
}
