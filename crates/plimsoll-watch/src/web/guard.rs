//! Who is answered, and under which rules a browser may use the answer.
//!
//! Every page in the user's browser can send requests to 127.0.0.1, and a name that its owner points at 127.0.0.1 (DNS
//! rebinding) even lets it read the answers. The Host header gives such a page away: it holds the name that the browser
//! was asked for. So only names of this machine are answered. Nothing but GET is, and nothing here changes a run.

use axum::extract::Request;
use axum::http::header::{ALLOW, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const RULES: [(HeaderName, &str); 6] = [
    (
        HeaderName::from_static("content-security-policy"),
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cache-control"), "no-store"),
];

/// Answers who may be answered, and puts the rules on every answer, refusals included.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let mut response = match refusal(request.method(), request.headers()) {
        Some((StatusCode::METHOD_NOT_ALLOWED, why)) => {
            (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET")], why).into_response()
        }
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, rule) in RULES {
        headers.insert(name, HeaderValue::from_static(rule));
    }
    response
}

/// Why a request is not answered, if it is not.
fn refusal(method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    let mut hosts = headers.get_all(HOST).iter();
    let local = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().is_ok_and(is_this_machine),
        _ => false,
    };
    if !local {
        return Some((StatusCode::FORBIDDEN, "only requests to localhost, 127.0.0.1 or [::1] are answered\n"));
    }
    if method != Method::GET {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n"));
    }
    None
}

/// Whether a Host header names this machine, with or without a port.
fn is_this_machine(host: &str) -> bool {
    let names = ["localhost", "127.0.0.1", "[::1]"];
    names.iter().any(|name| {
        let Some((start, rest)) = host.split_at_checked(name.len()) else { return false };
        let port = rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        start.eq_ignore_ascii_case(name) && (rest.is_empty() || port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_pass() {
        for host in ["localhost", "LocalHost:7410", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:7410"] {
            assert!(is_this_machine(host), "{host}");
        }
        let strangers = [
            "",
            "evil.example",
            "localhost.evil.example",
            "localhost:7410.evil.example",
            "127.0.0.1.evil.example:80",
            "127.0.0.10",
            "evil.example#localhost",
            "localhost@evil.example",
            "[::1",
            "[::1]evil",
            "::1",
            "0.0.0.0:7410",
            "ü",
        ];
        for host in strangers {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_request_with_no_host_or_two_is_refused_and_so_is_all_but_get() {
        let hosts = |hosts: &[&'static str]| -> HeaderMap {
            hosts.iter().map(|host| (HOST, HeaderValue::from_static(host))).collect()
        };
        let status = |method: Method, said: &[&'static str]| refusal(&method, &hosts(said)).map(|(status, _)| status);
        assert_eq!(status(Method::GET, &["localhost"]), None);
        assert_eq!(status(Method::GET, &[]), Some(StatusCode::FORBIDDEN));
        assert_eq!(status(Method::GET, &["localhost", "evil.example"]), Some(StatusCode::FORBIDDEN));
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::HEAD] {
            assert_eq!(status(method, &["localhost"]), Some(StatusCode::METHOD_NOT_ALLOWED));
        }
    }
}
