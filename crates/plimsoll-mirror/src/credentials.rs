//! Where S3 credentials come from, beyond what the store's client reads itself (variables, web identity, container and
//! machine roles): the provider's shared files, `~/.aws/credentials` and `~/.aws/config`, and `AWS_PROFILE`.
//!
//! Invariant: variables outweigh files, and a secret goes from here to the client and nowhere else. A profile that works
//! by another program, by single sign-on or by assuming a role is refused with the variables to set instead.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::{MirrorError, ini};

/// What a profile gives.
#[derive(Default, PartialEq)]
pub(crate) struct Profile {
    pub key_id: Option<String>,
    pub secret: Option<String>,
    pub token: Option<String>,
    pub region: Option<String>,
    pub endpoint: Option<String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Variables by which the client finds credentials without a profile.
const OTHER_WAYS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// Reads the profile that the environment asks for; an empty one where no profile is wanted.
pub(crate) fn profile() -> Result<Profile, MirrorError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let read = |path: Option<PathBuf>| {
        let path = path.unwrap_or_default();
        (path.display().to_string(), fs_err::read_to_string(path).unwrap_or_default())
    };
    let home = std::env::home_dir();
    let place = |name: &str, file: &str| {
        variable(name).map(PathBuf::from).or_else(|| home.as_ref().map(|home| home.join(".aws").join(file)))
    };
    let files = Files {
        credentials: read(place("AWS_SHARED_CREDENTIALS_FILE", "credentials")),
        config: read(place("AWS_CONFIG_FILE", "config")),
    };
    choose(&variable, &files)
}

/// Names and texts of both files; the text of one that is not there is empty.
struct Files {
    credentials: (String, String),
    config: (String, String),
}

fn choose(variable: &dyn Fn(&str) -> Option<String>, files: &Files) -> Result<Profile, MirrorError> {
    let asked = variable("AWS_PROFILE");
    let name = asked.as_deref().unwrap_or("default");
    let keys = ini::section(&files.credentials.1, name);
    let head = if name == "default" { name.to_string() } else { format!("profile {name}") };
    let settings = ini::section(&files.config.1, &head);
    if asked.is_some() && keys.is_none() && settings.is_none() {
        return Err(MirrorError::Credentials {
            place: "AWS_PROFILE".to_string(),
            problem: format!("no profile `{name}` in `{}` or `{}`", files.credentials.0, files.config.0),
        });
    }
    let settings = settings.unwrap_or_default();
    // The credentials file outweighs the config file, which may hold keys as well.
    let mut all = settings.clone();
    all.extend(keys.unwrap_or_default());
    let get = |map: &BTreeMap<String, String>, key: &str| map.get(key).filter(|value| !value.is_empty()).cloned();
    let mut profile =
        Profile { region: get(&all, "region"), endpoint: get(&all, "endpoint_url"), ..Profile::default() };
    if OTHER_WAYS.iter().any(|name| variable(name).is_some()) {
        return Ok(profile);
    }
    profile.key_id = get(&all, "aws_access_key_id");
    profile.secret = get(&all, "aws_secret_access_key");
    profile.token = get(&all, "aws_session_token");
    let whole = profile.key_id.is_some() && profile.secret.is_some();
    let by_other_means = ["sso_session", "sso_start_url", "credential_process", "role_arn", "web_identity_token_file"]
        .into_iter()
        .find(|key| all.contains_key(*key));
    match by_other_means {
        Some(key) if !whole => Err(MirrorError::Credentials {
            place: format!("profile {name}"),
            problem: format!(
                "`{key}` is not served; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, with them, AWS_SESSION_TOKEN"
            ),
        }),
        _ if whole == (profile.key_id.is_some() || profile.secret.is_some()) => Ok(profile),
        _ => Err(MirrorError::Credentials {
            place: format!("profile {name}"),
            problem: "expected both `aws_access_key_id` and `aws_secret_access_key`, found one of them".to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(credentials: &str, config: &str) -> Files {
        Files { credentials: ("cred".into(), credentials.into()), config: ("conf".into(), config.into()) }
    }

    fn with<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    const CREDENTIALS: &str = "[default]\naws_access_key_id = A\naws_secret_access_key = S\n\
                               [work]\naws_access_key_id = B\naws_secret_access_key = T\naws_session_token = U\n";

    #[test]
    fn the_default_profile_is_used_where_nothing_else_is_said() {
        let profile = choose(&with(&[]), &files(CREDENTIALS, "[default]\nregion = r\n")).unwrap();
        assert_eq!((profile.key_id.as_deref(), profile.secret.as_deref()), (Some("A"), Some("S")));
        assert_eq!(profile.region.as_deref(), Some("r"));
    }

    #[test]
    fn a_named_profile_is_used_with_its_token() {
        let profile = choose(&with(&[("AWS_PROFILE", "work")]), &files(CREDENTIALS, "")).unwrap();
        assert_eq!((profile.key_id.as_deref(), profile.token.as_deref()), (Some("B"), Some("U")));
    }

    #[test]
    fn variables_outweigh_the_files() {
        let set = [("AWS_ACCESS_KEY_ID", "X")];
        let profile = choose(&with(&set), &files(CREDENTIALS, "[default]\nregion = r\n")).unwrap();
        assert_eq!((profile.key_id, profile.region.as_deref()), (None, Some("r")));
    }

    #[test]
    fn a_profile_that_is_not_there_or_not_served_is_refused_with_what_to_do() {
        let error = choose(&with(&[("AWS_PROFILE", "gone")]), &files(CREDENTIALS, "")).unwrap_err();
        assert_eq!(error.to_string(), "credentials in `AWS_PROFILE`: no profile `gone` in `cred` or `conf`");
        let config = "[profile sso]\nsso_session = corp\n";
        let error = choose(&with(&[("AWS_PROFILE", "sso")]), &files("", config)).unwrap_err().to_string();
        assert!(error.contains("`sso_session` is not served") && error.contains("AWS_ACCESS_KEY_ID"), "{error}");
        let error = choose(&with(&[]), &files("[default]\naws_access_key_id = A\n", "")).unwrap_err().to_string();
        assert!(error.contains("found one of them"), "{error}");
    }

    #[test]
    fn without_files_there_is_no_profile_and_that_is_no_error() {
        assert_eq!(choose(&with(&[]), &files("", "")).unwrap(), Profile::default());
    }

    #[test]
    fn a_profile_does_not_show_its_secret() {
        let profile = choose(&with(&[("AWS_PROFILE", "work")]), &files(CREDENTIALS, "")).unwrap();
        let shown = format!("{profile:?}");
        assert!(!shown.contains('T') && !shown.contains('U') && !shown.contains('B'), "{shown}");
    }
}
