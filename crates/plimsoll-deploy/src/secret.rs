//! Which variables stores want, and the last look at a file before it is written: no secret's value stands in it.

use crate::{DeployError, Target};

/// Values that are shorter are words of a language, and found everywhere.
const SHORTEST: usize = 8;

/// Endings of names whose values are secrets.
const SECRET: [&str; 8] =
    ["_KEY", "_KEY_ID", "_TOKEN", "_SECRET", "_PASSWORD", "_PASSWD", "_CREDENTIALS", "_SERVICE_ACCOUNT"];

const S3: [&str; 8] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ALLOW_HTTP",
    "AWS_SKIP_SIGNATURE",
];
/// Which of the files in a home are read, and what of them. A profile that is named and not there is refused, keys or no keys: where
/// there is no home, the name alone would end the run.
const S3_HOME: [&str; 3] = ["AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"];
const GOOGLE: [&str; 2] = ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"];
const AZURE: [&str; 3] = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"];

/// Names of the variables that reading or writing these URLs takes, each once.
pub fn variables_for<'a>(target: Target, urls: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for url in urls {
        let wanted: &[&[&str]] = match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("s3" | "s3a") if target.has_home() => &[&S3, &S3_HOME],
            Some("s3" | "s3a") => &[&S3],
            Some("gs") => &[&GOOGLE],
            Some("az" | "azure" | "abfs" | "abfss" | "adl") => &[&AZURE],
            _ => &[],
        };
        names.extend(wanted.iter().copied().flatten().map(|name| name.to_string()));
    }
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The name of a variable, and nothing else.
pub fn variable(text: &str) -> Result<String, DeployError> {
    let name = text.split('=').next().unwrap_or_default();
    let form = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    // What stands behind `=` may be the secret itself, and is not repeated.
    if name != text || !form(name) {
        return Err(DeployError::NotAVariable { text: name.to_string() });
    }
    Ok(name.to_string())
}

/// Whether a variable of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|end| name.ends_with(end)) || name == "PASSWORD" || name == "TOKEN"
}

/// Refuses words in which the value of a secret variable stands, or a URL with a password or a signature. `variables` are
/// those of the environment.
pub fn refuse<'a>(
    words: impl IntoIterator<Item = &'a str>,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<(), DeployError> {
    let words: Vec<&str> = words.into_iter().collect();
    for word in &words {
        refuse_url(word)?;
    }
    for (name, value) in variables {
        let value = value.trim();
        if value.len() >= SHORTEST && is_secret(&name) && words.iter().any(|word| word.contains(value)) {
            return Err(DeployError::Secret { name });
        }
    }
    Ok(())
}

/// Signs of a signed URL, in small letters.
const SIGNED: [&str; 6] = ["signature=", "sig=", "token=", "secret=", "password=", "credential="];

fn refuse_url(word: &str) -> Result<(), DeployError> {
    for (at, _) in word.match_indices("://") {
        let begins = word[..at].rfind(|c: char| !c.is_ascii_alphanumeric() && c != '+').map_or(0, |at| at + 1);
        let rest = &word[at + 3..];
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let query = rest.split_once('?').map_or(String::new(), |(_, query)| query.to_ascii_lowercase());
        if host.contains('@') || SIGNED.iter().any(|sign| query.contains(sign)) {
            return Err(DeployError::SecretUrl { url: word[begins..at + 3].to_string() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_have_their_variables_each_once() {
        assert_eq!(variables_for(Target::Compose, ["s3://b/x", "data.jsonl", "s3://b/y"]).len(), S3.len());
        assert_eq!(variables_for(Target::Slurm, ["gs://b", "https://h/x"]), GOOGLE);
        assert!(variables_for(Target::Systemd, ["/s3/x"]).is_empty());
    }

    #[test]
    fn a_profile_is_passed_where_its_files_are() {
        for (target, passed) in
            [(Target::Slurm, true), (Target::Systemd, true), (Target::Compose, false), (Target::K8s, false)]
        {
            let names = variables_for(target, ["s3://b/x"]);
            assert_eq!(names.iter().any(|name| name == "AWS_PROFILE"), passed, "{target:?}");
        }
    }

    #[test]
    fn a_variable_is_a_name_and_its_value_is_not_repeated() {
        assert_eq!(variable("HF_TOKEN").unwrap(), "HF_TOKEN");
        for wrong in ["HF_TOKEN=hf_s3cret", "", "1A", "A B", "A-B"] {
            let told = variable(wrong).unwrap_err().to_string();
            assert!(!told.contains("s3cret"), "{told}");
        }
    }

    #[test]
    fn a_secret_in_a_word_is_refused_by_its_name_alone() {
        let there = || [("WANDB_API_KEY".to_string(), "0123456789abcdef".to_string())];
        let told = refuse(["--key=0123456789abcdef"], there()).unwrap_err();
        assert_eq!(told, DeployError::Secret { name: "WANDB_API_KEY".into() });
        assert_eq!(refuse(["--key=$WANDB_API_KEY"], there()), Ok(()));
        // A short or harmless value is no secret that a file could give away.
        assert_eq!(refuse(["a main b"], [("GIT_TOKEN".into(), "main".into())]), Ok(()));
        assert_eq!(refuse(["/home/somebody"], [("HOME".into(), "/home/somebody".into())]), Ok(()));
    }

    #[test]
    fn a_url_with_credentials_is_refused_without_repeating_them() {
        for word in ["s3://k:s3cret@b/x", "--data=https://h/x?X-Amz-Signature=s3cret", "x https://h/?a=b&sig=s3cret"] {
            let told = refuse([word], []).unwrap_err().to_string();
            assert!(!told.contains("s3cret") && told.contains("://..."), "{told}");
        }
        assert_eq!(refuse(["https://h/a@b?x=1", "s3://bucket/key"], []), Ok(()));
    }
}
