//! The other end: a URL becomes a store, and keys relative to the URL become the store's.
//!
//! Invariant: the URL is the only thing of it that is ever shown. Credentials come from the environment and the
//! providers' files, go to the client, and stay there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};
use plimsoll_machine::Bytes;
use url::Url;

use crate::rate::Pace;
use crate::wire::{Connector, Redirects};
use crate::{MirrorError, credentials};

/// A mirror that can be spoken to.
pub(crate) struct Remote {
    pub url: String,
    pub store: Arc<dyn ObjectStore>,
    /// Uploads whose parts outlive this process; not in a file system.
    pub parts: Option<Arc<dyn MultipartStore>>,
    /// The folder, where the mirror is one, and the pace that its writes keep. Elsewhere the client keeps it.
    pub folder: Option<Folder>,
    prefix: Key,
}

/// A mirror in a file system.
pub(crate) struct Folder {
    pub root: PathBuf,
    pub pace: Option<Arc<Pace>>,
}

/// Whether a folder that is a mirror is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Make,
    Leave,
}

/// Quick second tries, for connections that were closed while they were idle. The patient ones are ours.
pub(crate) fn retries() -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: Duration::from_millis(100), ..BackoffConfig::default() };
    RetryConfig { backoff, max_retries: 2, retry_timeout: Duration::from_secs(10) }
}

impl Remote {
    /// Understands `url` and sets the client up; nothing is asked yet.
    pub(crate) fn open(url: &str, rate: Option<Bytes>, missing: Missing) -> Result<Remote, MirrorError> {
        let url = url.trim_end_matches('/');
        let wrong = |problem: String| MirrorError::Url { url: url.to_string(), problem };
        let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some() {
            return Err(MirrorError::Url {
                url: format!("{}://...", parsed.scheme()),
                problem: "it has credentials or a query in it, which are not taken".to_string(),
            });
        }
        let pace = rate.map(|rate| Arc::new(Pace::new(rate)));
        if parsed.scheme() == "file" {
            let root = parsed.to_file_path().map_err(|()| wrong("expected `file:///folder`".to_string()))?;
            return Remote::local(url, root, pace, missing);
        }
        let bucket = parsed.host_str().unwrap_or_default();
        if bucket.is_empty() {
            return Err(wrong("expected a bucket behind `://`".to_string()));
        }
        let prefix = Key::from_url_path(parsed.path()).map_err(|error| wrong(error.to_string()))?;
        let failed = |error: object_store::Error| MirrorError::SetUp {
            url: url.to_string(),
            problem: crate::trouble::trouble(&error).problem,
        };
        let connector = Connector { pace, redirects: Redirects::Refuse };
        let (store, parts) = match Service::named(parsed.scheme()) {
            Some(service) => service.bucket(bucket, connector)?.map_err(failed)?,
            None => return Err(wrong("expected `s3://`, `gs://`, `az://` or `file://`".to_string())),
        };
        Ok(Remote { url: url.to_string(), store, parts: Some(parts), folder: None, prefix })
    }

    fn local(url: &str, root: PathBuf, pace: Option<Arc<Pace>>, missing: Missing) -> Result<Remote, MirrorError> {
        if missing == Missing::Make {
            fs_err::create_dir_all(&root)?;
        } else {
            fs_err::metadata(&root)?;
        }
        let store = LocalFileSystem::new_with_prefix(&root).map_err(|error| MirrorError::SetUp {
            url: url.to_string(),
            problem: crate::trouble::trouble(&error).problem,
        })?;
        let store = Arc::new(store.with_fsync(true).with_automatic_cleanup(true));
        let folder = Some(Folder { root, pace });
        Ok(Remote { url: url.to_string(), store, parts: None, folder, prefix: Key::default() })
    }

    /// The store's key of a name relative to the URL.
    pub(crate) fn key(&self, name: &str) -> Key {
        name.split('/').fold(self.prefix.clone(), |key, part| key.join(part))
    }

    /// The name relative to the URL of a store's key.
    pub(crate) fn name(&self, key: &Key) -> Option<String> {
        let parts: Vec<String> = key.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_string()).collect();
        Some(parts.join("/"))
    }
}

/// A kind of store with buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    S3,
    Google,
    Azure,
}

/// A store, once for whole objects and once for parts of uploads.
pub(crate) type Bucket = (Arc<dyn ObjectStore>, Arc<dyn MultipartStore>);

impl Service {
    /// By the scheme of a URL.
    pub(crate) fn named(scheme: &str) -> Option<Service> {
        match scheme {
            "s3" => Some(Service::S3),
            "gs" => Some(Service::Google),
            "az" => Some(Service::Azure),
            _ => None,
        }
    }

    /// Sets the client of a bucket up; nothing is asked yet.
    pub(crate) fn bucket(
        self,
        bucket: &str,
        connector: Connector,
    ) -> Result<Result<Bucket, object_store::Error>, MirrorError> {
        Ok(match self {
            Service::S3 => s3(bucket)?.with_http_connector(connector).build().map(both),
            Service::Google => GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_retry(retries())
                .with_http_connector(connector)
                .build()
                .map(both),
            Service::Azure => MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_retry(retries())
                .with_http_connector(connector)
                .build()
                .map(both),
        })
    }
}

fn both<S: ObjectStore + MultipartStore>(store: S) -> (Arc<dyn ObjectStore>, Arc<dyn MultipartStore>) {
    let store = Arc::new(store);
    (Arc::clone(&store) as _, store)
}

fn s3(bucket: &str) -> Result<AmazonS3Builder, MirrorError> {
    let profile = credentials::profile()?;
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
    // `from_env` has had its say; a profile fills in what it left open.
    let mut fill = |key: AmazonS3ConfigKey, value: Option<String>| {
        if let (None, Some(value)) = (builder.get_config_value(&key), value) {
            builder = std::mem::take(&mut builder).with_config(key, value);
        }
    };
    fill(AmazonS3ConfigKey::AccessKeyId, profile.key_id);
    fill(AmazonS3ConfigKey::SecretAccessKey, profile.secret);
    fill(AmazonS3ConfigKey::Token, profile.token);
    fill(AmazonS3ConfigKey::Region, profile.region);
    fill(AmazonS3ConfigKey::Endpoint, profile.endpoint);
    if builder.get_config_value(&AmazonS3ConfigKey::Checksum).is_none() {
        builder = builder.with_checksum_algorithm(Checksum::SHA256);
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match Remote::open(url, None, Missing::Leave) {
            Ok(_) => panic!("`{url}` was taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_url_that_is_none_of_ours_is_refused_and_one_with_a_secret_is_not_repeated() {
        assert!(refused("ftp://a/b").contains("expected `s3://`"));
        assert!(refused("bucket").contains("`bucket` is not the URL of a mirror"));
        let told = refused("s3://AK:s3cret@bucket/run");
        assert!(!told.contains("s3cret") && told.contains("credentials"), "{told}");
        let told = refused("az://c/run?sig=s3cret");
        assert!(!told.contains("s3cret"), "{told}");
    }

    #[test]
    fn names_become_keys_below_the_url_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}/run/", folder.path().display());
        let remote = Remote::open(&url, None, Missing::Make).unwrap_or_else(|error| panic!("{error}"));
        let key = remote.key("checkpoints/step-3/manifest.json");
        assert_eq!(key.as_ref(), "checkpoints/step-3/manifest.json");
        assert_eq!(remote.name(&key).as_deref(), Some("checkpoints/step-3/manifest.json"));
        assert!(!remote.url.ends_with('/'));
    }

    #[test]
    fn a_folder_to_fetch_from_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let told = refused(&format!("file://{}/gone", folder.path().display()));
        assert!(told.contains("gone"), "{told}");
    }
}
