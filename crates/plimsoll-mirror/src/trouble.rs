//! What an error of the store means: is it passing, does it last, or is it an answer? Pure.
//!
//! Invariant: what is said of it holds no URL with a query, no header and no body beyond the provider's code and
//! message, and no time that differs from try to try: the same trouble has the same words.

use std::error::Error;
use std::io;

/// What can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// What was asked for is not there.
    Absent,
    /// The upload that parts belong to is not there any more.
    Gone,
    /// No retry cures it; somebody must.
    Lasting,
    /// It may be over soon.
    Passing,
}

/// An error, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub nature: Nature,
    /// What is wrong, as it stands behind the mirror's URL: "answers 403 AccessDenied: ...".
    pub problem: String,
}

/// Understands an error of the store.
pub(crate) fn trouble(error: &object_store::Error) -> Trouble {
    let text = error.to_string();
    let code = tag(&text, "Code");
    if let Some(status) = status(&text).or(code.map(|_| 200)) {
        let nature = judge(status, code);
        let message = tag(&text, "Message").or(tag(&text, "message"));
        let told: Vec<&str> = [code, message].into_iter().flatten().collect();
        let problem = match told.is_empty() {
            true => format!("answers {status}"),
            false => format!("answers {status} {}", told.join(": ")),
        };
        return Trouble { nature, problem: line(&problem) };
    }
    if text.contains("instance metadata") || text.contains("169.254.") {
        let problem = "needs credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, \
                       `~/.aws/credentials` has no such profile, and this machine has no role";
        return Trouble { nature: Nature::Lasting, problem: problem.to_string() };
    }
    let root = root_cause(error);
    let nature = match error {
        object_store::Error::NotFound { .. } => Nature::Absent,
        object_store::Error::InvalidPath { .. }
        | object_store::Error::NotSupported { .. }
        | object_store::Error::NotImplemented { .. }
        | object_store::Error::UnknownConfigurationKey { .. }
        | object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => Nature::Lasting,
        _ if root.contains("certificate") => Nature::Lasting,
        _ => match io_kind(error) {
            Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => Nature::Lasting,
            _ => Nature::Passing,
        },
    };
    Trouble { nature, problem: format!("does not take or give what it should: {}", line(&root)) }
}

fn judge(status: u16, code: Option<&str>) -> Nature {
    match (status, code.unwrap_or_default()) {
        (_, "NoSuchUpload" | "InvalidPart" | "InvalidPartOrder" | "InvalidBlockList") => Nature::Gone,
        (_, "NoSuchBucket" | "ContainerNotFound") => Nature::Lasting,
        (_, "RequestTimeout" | "SlowDown" | "InternalError") => Nature::Passing,
        (404, _) => Nature::Absent,
        (408 | 425 | 429 | 500.., _) => Nature::Passing,
        (300..500, _) => Nature::Lasting,
        _ => Nature::Passing,
    }
}

/// The HTTP status that the store's client writes into its message.
fn status(text: &str) -> Option<u16> {
    let behind = text.split("status code: ").nth(1)?;
    behind.get(..3)?.parse().ok()
}

/// The content of an XML element or the value of a JSON key.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let xml = || text.split_once(&format!("<{name}>"))?.1.split_once(&format!("</{name}>")).map(|(inner, _)| inner);
    let json = || text.split_once(&format!("\"{name}\": \""))?.1.split_once('"').map(|(inner, _)| inner);
    xml().or_else(json).map(str::trim).filter(|inner| !inner.is_empty())
}

/// The innermost cause, which says most and names no address.
fn root_cause(error: &object_store::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn io_kind(error: &object_store::Error) -> Option<io::ErrorKind> {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref::<io::Error>() {
            return Some(found.kind());
        }
        cause = inner.source();
    }
    None
}

/// On one line, and not too long for one.
fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use object_store::Error as Store;

    use super::*;

    fn said(status: &str, body: &str) -> Store {
        let text = format!(
            "Error performing PUT https://h/b/k?X-Sig=abc in 1.5s - Server returned non-2xx status code: {status}: {body}"
        );
        Store::Generic { store: "S3", source: text.into() }
    }

    fn body(code: &str, message: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message><Key>s3cret</Key></Error>"
        )
    }

    #[test]
    fn an_answer_is_reduced_to_status_code_and_message() {
        let found = trouble(&said("403 Forbidden", &body("AccessDenied", "Access\n Denied")));
        assert_eq!(found.problem, "answers 403 AccessDenied: Access Denied");
        assert_eq!(found.nature, Nature::Lasting);
        let found = trouble(&said("503 Service Unavailable", ""));
        assert_eq!((found.problem.as_str(), found.nature), ("answers 503", Nature::Passing));
    }

    #[test]
    fn what_lasts_what_passes_and_what_is_an_answer_are_told_apart() {
        let cases = [
            ("404 Not Found", "NoSuchKey", Nature::Absent),
            ("404 Not Found", "NoSuchUpload", Nature::Gone),
            ("404 Not Found", "NoSuchBucket", Nature::Lasting),
            ("400 Bad Request", "RequestTimeout", Nature::Passing),
            ("400 Bad Request", "InvalidPart", Nature::Gone),
            ("400 Bad Request", "InvalidArgument", Nature::Lasting),
            ("401 Unauthorized", "InvalidToken", Nature::Lasting),
            ("429 Too Many Requests", "SlowDown", Nature::Passing),
            ("500 Internal Server Error", "InternalError", Nature::Passing),
        ];
        for (status, code, nature) in cases {
            assert_eq!(trouble(&said(status, &body(code, "m"))).nature, nature, "{status} {code}");
        }
    }

    #[test]
    fn a_broken_line_passes_and_is_told_by_its_innermost_cause() {
        let refused = io::Error::from_raw_os_error(111);
        let found = trouble(&Store::Generic { store: "S3", source: refused.into() });
        assert_eq!(found.nature, Nature::Passing);
        assert!(found.problem.ends_with("Connection refused (os error 111)"), "{}", found.problem);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(trouble(&Store::Generic { store: "f", source: denied.into() }).nature, Nature::Lasting);
    }

    #[test]
    fn a_machine_without_credentials_is_told_what_to_set() {
        let source = "Error performing PUT http://169.254.169.254/latest/api/token in 2s - timed out".into();
        let found = trouble(&Store::Generic { store: "S3", source });
        assert_eq!(found.nature, Nature::Lasting);
        assert!(found.problem.contains("AWS_ACCESS_KEY_ID"), "{}", found.problem);
    }
}
