//! URLs of data, taken apart: which store, which object, and what a person can do where it refuses. Pure.
//!
//! Invariant: no URL that holds a secret is taken, and none is repeated in what is said of it.

use object_store::path::Path as Key;
use url::Url;

use crate::objects::{ObjectError, refused};
use crate::remote::Service;

/// A URL, taken apart.
pub(crate) struct Address {
    /// `s3://bucket` or `https://host:1234`.
    pub home: String,
    pub scheme: String,
    pub key: Key,
}

impl Address {
    pub fn of(url: &str) -> Result<Address, ObjectError> {
        let wrong = |problem: String| {
            refused(format!("is no URL of data: {problem}"), "expected `s3://bucket/file` or `https://host/file`")
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no `://`".into()))?;
        if Service::named(scheme).is_some() {
            // As everywhere with stores, the key is what stands there, unescaped.
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() || bucket.contains('@') {
                return Err(wrong("expected a bucket behind `://`, and no credentials".into()));
            }
            let key = Key::parse(key).map_err(|error| wrong(error.to_string()))?;
            return Ok(Address { home: format!("{scheme}://{bucket}"), scheme: scheme.into(), key });
        }
        let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !["http", "https"].contains(&scheme) {
            return Err(wrong("expected `s3://`, `gs://`, `az://`, `http://` or `https://`".into()));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some() {
            return Err(wrong("it has credentials or a query in it, which are not taken".into()));
        }
        let key = Key::from_url_path(parsed.path()).map_err(|error| wrong(error.to_string()))?;
        Ok(Address { home: parsed.origin().ascii_serialization(), scheme: scheme.into(), key })
    }

    /// What a person can do where the store refuses.
    pub fn hint(&self) -> &'static str {
        match Service::named(&self.scheme) {
            Some(Service::S3) => {
                "credentials are found as by the AWS CLI (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a role); \
                 AWS_SKIP_SIGNATURE=true reads public buckets, AWS_ENDPOINT_URL names another server"
            }
            Some(Service::Google) => "GOOGLE_APPLICATION_CREDENTIALS names the file of a service account",
            Some(Service::Azure) => "give AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or a token)",
            None => "files of HTTP servers are read without credentials; copy it here if it needs some",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<(String, String), String> {
        Address::of(url).map(|address| (address.home, address.key.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_is_a_home_and_a_key_and_secrets_in_it_are_refused() {
        let two = |home: &str, key: &str| Ok((home.to_string(), key.to_string()));
        assert_eq!(address("s3://b/some/key 1%20.csv"), two("s3://b", "some/key 1%20.csv"));
        assert_eq!(address("az://c/x.csv"), two("az://c", "x.csv"));
        assert_eq!(address("http://127.0.0.1:8080/a%20b.csv"), two("http://127.0.0.1:8080", "a b.csv"));
        assert!(address("ftp://h/x").unwrap_err().contains("expected `s3://`"));
        for url in ["https://user:s3cret@h/x", "https://h/x?sig=s3cret", "s3://k:s3cret@b/x"] {
            let told = address(url).unwrap_err();
            assert!(!told.contains("s3cret") && told.contains("credentials"), "{told}");
        }
    }
}
