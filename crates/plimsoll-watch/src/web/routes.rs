//! What there is to ask for: the page and its parts, the view as JSON, the stream of views, and the metrics.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn;
use axum::response::sse::Sse;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::feed::Feed;
use super::{guard, metrics};

/// The parts of the page: path, kind, content. All of them are inside the program.
const ASSETS: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/chart.js", "text/javascript; charset=utf-8", include_str!("page/chart.js")),
    ("/connection.js", "text/javascript; charset=utf-8", include_str!("page/connection.js")),
    ("/words.js", "text/javascript; charset=utf-8", include_str!("page/words.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Everything that is served.
pub(super) fn site(feed: Arc<Feed>) -> Router {
    let mut site =
        Router::new().route("/view.json", get(view)).route("/events", get(events)).route("/metrics", get(figures));
    for (path, kind, content) in ASSETS {
        site = site.route(path, get(async move || ([(CONTENT_TYPE, kind)], content)));
    }
    let nothing = async || (StatusCode::NOT_FOUND, "there is /, /view.json, /events and /metrics\n");
    site.fallback(nothing).layer(from_fn(guard::guard)).with_state(feed)
}

async fn view(State(feed): State<Arc<Feed>>) -> Response {
    match feed.news().told {
        Ok(told) => ([(CONTENT_TYPE, "application/json")], told.json.clone()).into_response(),
        Err(why) => unseen(&why),
    }
}

async fn events(State(feed): State<Arc<Feed>>) -> Response {
    match feed.listen() {
        Some(stream) => Sse::new(stream).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n").into_response(),
    }
}

async fn figures(State(feed): State<Arc<Feed>>) -> Response {
    match feed.news().told {
        Ok(told) => ([(CONTENT_TYPE, metrics::KIND)], metrics::text(&told)).into_response(),
        Err(why) => unseen(&why),
    }
}

fn unseen(why: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response()
}
