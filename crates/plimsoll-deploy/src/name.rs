//! The name of a deployed job: what Kubernetes, compose, systemd and Slurm all take.

use std::fmt;

use serde::Serialize;

use crate::DeployError;

/// The longest that a label may be, less what Kubernetes puts behind a job's name.
const LONGEST: usize = 52;

/// A name of small letters, digits and inner hyphens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Name(String);

impl Name {
    /// The name that is nearest to a text.
    pub fn near(text: &str) -> Result<Name, DeployError> {
        let mut name = String::new();
        for c in text.chars().map(|c| c.to_ascii_lowercase()) {
            match c.is_ascii_lowercase() || c.is_ascii_digit() {
                true => name.push(c),
                false if !name.is_empty() && !name.ends_with('-') => name.push('-'),
                false => {}
            }
            if name.len() == LONGEST {
                break;
            }
        }
        let name = name.trim_end_matches('-');
        if name.is_empty() {
            return Err(DeployError::NoName { text: text.to_string() });
        }
        Ok(Name(name.to_string()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_with_a_letter_makes_a_label() {
        let near = |text: &str| Name::near(text).map(|name| name.0);
        assert_eq!(near("Chat_v2 (best)").unwrap(), "chat-v2-best");
        assert_eq!(near("--a--").unwrap(), "a");
        assert_eq!(near(&"x-".repeat(90)).unwrap().len(), 51);
        assert_eq!(near("чат"), Err(DeployError::NoName { text: "чат".into() }));
        assert_eq!(near(""), Err(DeployError::NoName { text: String::new() }));
    }
}
